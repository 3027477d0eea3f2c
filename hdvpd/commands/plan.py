"""`hdvpd plan`: choose joint targets by what a model predicts, and see what they lead to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import Seed, optional


@dataclass(frozen=True)
class PlanTask(AbstractCommand):
    """Plan for the simulated arms with a run's model, execute the plan, and compare.

    Example: hdvpd plan runs/demo --task push --out plans/push
    """

    run_folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Folder of a run on simulated data, or its name in runs/."""
    task: Literal["push", "can"]
    """Push a block to a goal, or grasp a can and lift it."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the results; an earlier plan there is replaced."""
    goal: Annotated[tuple[float, float] | None, optional("X Y")] = None
    """Where the block's centre is to go [m]; by default drawn where a push can reach."""
    seed: Seed = 0
    """Seed of the start, the goal and the candidates."""
    horizon: int = 8
    """Control steps of the plan, at least 4."""
    solver: Literal["random", "cem", "icem", "mppi"] = "icem"
    """How the space of plans is searched."""
    samples: int = 32
    """Candidates per round."""
    iterations: int = 2
    """Rounds."""
    particles: int = 2048
    """Particles that candidates are rolled out with, at most; the plan is shown with all."""
    step: Annotated[int | None, optional("INT")] = None
    """Checkpoint; by default the newest undamaged one."""

    def run(self) -> None:
        """Plan and execute."""
        announce("planning with", self.run_folder)

        from hdvpd.planning.command import Search, make_plan

        make_plan(
            self.run_folder,
            task=self.task,
            out=self.out,
            search=Search(self.solver, self.samples, self.iterations, self.horizon, self.particles),
            seed=self.seed,
            goal=self.goal,
            checkpoint_step=self.step,
        )
