"""`hdvpd train`: train a model, or continue a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from hdvpd.basics.errors import UserError
from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import config_flags, optional
from hdvpd.commands.processes import Processes
from hdvpd.config import Config
from hdvpd.config.experiments import apply_overrides, load_config

if TYPE_CHECKING:
    from hdvpd.training.run_folder import RunFolder

ConfigFlags = Annotated[Mapping[str, Any], tyro.conf.arg(name="", constructor_factory=config_flags)]
"""What is given of the configuration's flags, as tables."""


@dataclass(frozen=True)
class Train(AbstractCommand):
    """Train a model, or continue a run.

    Defaults of the configuration's flags are the paper's; the experiment's file comes before them,
    and a flag before the file.

    Example: hdvpd train demo --name first --train.num-steps 300
    """

    experiment: tyro.conf.Positional[Annotated[str, optional("EXPERIMENT")]] = ""
    """Name (paper, demo, debug) or path of a TOML file; --resume RUN also goes without it."""
    name: Annotated[str, optional("RUN")] = ""
    """Name of the run; empty means the experiment's."""
    runs_dir: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs")
    """Folder that holds the runs' folders."""
    resume: Annotated[str, optional("auto|RUN")] = ""
    """Continue exactly: `auto` the run of this name, or start it; RUN a run's folder or name."""
    step: Annotated[int | None, optional("INT")] = None
    """Checkpoint to continue from; by default the newest undamaged one."""
    processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)
    config: ConfigFlags = field(default_factory=dict)

    def run(self) -> None:
        """Train."""
        config, run = self._resolve()
        goes_on = self.resume and any((run.path / "checkpoints").glob("[0-9]*"))
        announce("continuing" if goes_on else "training", run.path)

        from hdvpd.training import train
        from hdvpd.training.parallel import offer_cores

        resume = str(run.path) if self.resume not in ("", "auto") else self.resume or None
        offer_cores(config.train)  # before any joins others
        self.processes.run(
            lambda: train.main(config, run_dir=run.path, resume=resume, step=self.step)
        )

    def _resolve(self) -> "tuple[Config, RunFolder]":
        self._require_sense()

        from hdvpd.training.run_folder import RunFolder

        named = Path(self.experiment).stem or Path(self.resume).name or "run"
        run = RunFolder(self.runs_dir / (self.name or named))
        if not self.experiment:
            run = RunFolder.find_to_train(run.path, self.resume, self.step)
            source = str(run.config_file)
            return apply_overrides(run.config(), self.config, source=source), run
        config = load_config(self.experiment, self.config)
        if self.resume not in ("", "auto"):
            run = RunFolder.find_to_train(run.path, self.resume, self.step)
        if self.resume:
            run.require_experiment(config)
        return config, run

    def _require_sense(self) -> None:
        """Refuse flags that do not go together, and a name that is a path."""
        if "/" in self.name or self.name in (".", ".."):
            raise UserError(
                f"--name {self.name} is a path, not the name of a run, which is a folder in "
                f"{self.runs_dir}. Give a plain name, and with --runs-dir the folder to put it in."
            )
        if self.name and self.resume not in ("", "auto"):
            raise UserError(
                f"--resume {self.resume} continues that run under its own name, so --name "
                f"{self.name} would do nothing. Leave --name out; or copy the folder "
                f"of the run to {self.runs_dir / self.name} and give --resume auto."
            )
        if self.experiment:
            return
        if not self.resume or (self.resume == "auto" and not self.name):
            raise UserError(
                "name an experiment, for example `hdvpd train demo`, or continue a run with "
                "`hdvpd train --resume runs/demo` (a flag that takes a list takes every word "
                "after it: put the experiment first)."
            )
