"""`hdvpd model`: what a model consists of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from hdvpd.commands.base import AbstractCommand
from hdvpd.commands.flags import config_flags
from hdvpd.config.experiments import load_config


def _flags() -> Any:
    return config_flags(
        *("data.path", "data.cameras", "data.height", "data.width", "data.workspace_min"),
        *("data.workspace_max", "model", "render", "train.batch_size", "train.horizon"),
        *("train.num_rays", "train.remat"),
        default="the experiment's",
    )


@dataclass(frozen=True)
class Summary(AbstractCommand):
    """Count the parameters of every part and estimate the memory of a training step.

    Nothing is computed, so it works for any size on any machine. The data set is only asked for its
    cameras and kinematic points; without it two cameras and 84 points are assumed.

    Example: hdvpd model summary paper --all-members
    """

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")]]
    """Name of an experiment (paper, demo, debug) or path of a TOML file."""
    all_members: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show every member of the comparison with this experiment's settings."""
    config: Annotated[Mapping[str, Any], tyro.conf.arg(name="", constructor_factory=_flags)] = (
        field(default_factory=dict)
    )

    def run(self) -> None:
        """Print the summary."""
        config = load_config(self.experiment, self.config)

        from hdvpd.training.summary import print_summary

        print_summary(config, all_members=self.all_members)


@dataclass(frozen=True)
class Convert(AbstractCommand):
    """Rewrite experiment files and runs of an earlier version in present keys.

    What was there before stays beside it, as `...-earlier.toml`. Parameters are not touched.

    Example: hdvpd model convert runs/demo my.toml
    """

    paths: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="PATH")]]
    """TOML files, or folders of runs."""

    def run(self) -> None:
        """Convert."""
        from hdvpd.training.convert import convert

        for path in self.paths:
            changed = convert(path)
            print("\n".join(f"rewrote {file}" for file in changed) or f"{path} needs no rewriting")
