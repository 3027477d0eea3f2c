"""`hdvpd eval`: roll out held-out episodes."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from hdvpd.basics.errors import UserError
from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import config_flags, optional
from hdvpd.commands.processes import Processes
from hdvpd.config import Config
from hdvpd.config.settings import free_keys


def _flags() -> Any:
    return config_flags(*free_keys(Config, "evaluation"), default="the run's")


@dataclass(frozen=True)
class Evaluate(AbstractCommand):
    """Roll out held-out episodes and write curves, videos and a report.

    Each run's own configuration is used; flags change it for the evaluation only.

    Example: hdvpd eval runs/demo --steps 8
    """

    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], optional("RUN")]]
    """Folders of the runs; several are compared in one plot."""
    out: Annotated[Path | None, optional("DIR")] = None
    """Where to write; by default RUN/eval. Needed for several runs."""
    steps: Annotated[int | None, optional("INT")] = None
    """Predicted frames per rollout; short for --eval.num-steps."""
    step: Annotated[int | None, optional("INT")] = None
    """Checkpoint; by default the newest undamaged one."""
    objects_only: bool = False
    """Only score how objects move, in all windows and without rendering anything."""
    processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)
    config: Annotated[Mapping[str, Any], tyro.conf.arg(name="", constructor_factory=_flags)] = (
        field(default_factory=dict)
    )

    def run(self) -> None:
        """Evaluate."""
        if not self.runs:
            raise UserError("name at least one run folder, for example `hdvpd eval runs/demo`.")

        announce("evaluating", *self.runs)

        from hdvpd.evaluation import eval as evaluation

        scene_page = None
        if not self.objects_only and importlib.util.find_spec("viser"):
            from hdvpd.viewing.clips import clip_page as scene_page

        self.processes.run(
            lambda: evaluation.main(
                list(self.runs),
                out=self.out,
                steps=self.steps,
                checkpoint_step=self.step,
                overrides=self.config,
                objects_only=self.objects_only,
                scene_page=scene_page,
            )
        )
