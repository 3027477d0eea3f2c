"""`hdvpd rollout`: a model's prediction for any actions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import optional


@dataclass(frozen=True)
class Rollout(AbstractCommand):
    """Predict what follows recorded actions, or your own, and write it as a page and files.

    Example: hdvpd rollout runs/demo --episode 9 --actions reach.npy wait.csv --out rollouts/9
    """

    run_folder: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    """Folder of a run, or its name in runs/."""
    episode: int
    """Episode whose two frames from --start on are observed."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the results; an earlier rollout there is replaced."""
    start: int = 0
    """First observed frame."""
    actions: Annotated[tuple[str, ...], optional("FILE")] = ()
    """.npy or .csv files of joint targets, or numbers of episodes; by default what the robot did in
    this episode."""
    data: Annotated[Path | None, optional("DIR")] = None
    """Data set; by default that of the training."""
    steps: Annotated[int | None, optional("INT")] = None
    """Predicted steps; by default all rows of a file, of an episode the run's --eval.num-steps."""
    step: Annotated[int | None, optional("INT")] = None
    """Checkpoint; by default the newest undamaged one."""

    def run(self) -> None:
        """Roll out."""
        announce("rolling out", self.run_folder)

        from hdvpd.world.command import roll_out

        roll_out(
            self.run_folder,
            episode=self.episode,
            out=self.out,
            start=self.start,
            actions=self.actions,
            data=self.data,
            steps=self.steps,
            checkpoint_step=self.step,
        )
