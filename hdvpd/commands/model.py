"""`hdvpd model`: what a model consists of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from hdvpd.basics.errors import UserError
from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import config_flags, optional
from hdvpd.config.experiments import load_config

_CARD_HEADINGS = {"## Numbers", "## Limits", "## Departures from the paper"}


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
        if not self.paths:
            raise UserError(
                "name what to convert: experiment files or folders of runs, for example "
                "`hdvpd model convert runs/demo`."
            )

        from hdvpd.training.convert import convert

        for path in self.paths:
            changed = convert(path)
            print("\n".join(f"rewrote {file}" for file in changed) or f"{path} needs no rewriting")


@dataclass(frozen=True)
class Pack(AbstractCommand):
    """Write a trained run's parameters and configuration as one small file, with a model card.

    The run must be evaluated first: the card states its numbers.

    Example: hdvpd model pack runs/demo --out demo.zip
    """

    run_dir: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(name="run", metavar="RUN")]]
    """Folder of the run, or its name in runs/."""
    out: Annotated[Path, optional("FILE")]
    """Where to; the card is written beside it, as .md."""
    step: Annotated[int | None, optional("INT")] = None
    """Checkpoint; by default the newest undamaged one."""

    def run(self) -> None:
        """Pack."""
        announce("packing", self.run_dir)

        from hdvpd.basics.files import write
        from hdvpd.evaluation.model_card import write_card
        from hdvpd.training.checkpoints import CheckpointStore
        from hdvpd.training.packed import pack
        from hdvpd.training.run_folder import RunFolder

        run_dir = RunFolder.find(self.run_dir).path
        store = CheckpointStore(run_dir)
        if self.out.suffix != ".zip":
            raise UserError(
                f"--out {self.out}: a packed model is a .zip file, and its card lies beside it; "
                "give a name such as mine.zip."
            )
        page = self.out.with_suffix(".md")
        if page.exists() and not _is_card(page):
            raise UserError(
                f"--out {self.out}: the card would replace {page}, which is no model card. Choose "
                "another name, or move that page away."
            )
        step = store.sound_step(self.step)
        config, _, progress = store.read_origin(step)
        card = write_card(run_dir, config, self.out.stem, step, progress["dataset"])
        pack(run_dir, self.out, step)
        write(page, card, "Free some space or choose another --out.")
        print(f"model  {self.out} ({self.out.stat().st_size:,} bytes)\ncard   {page}")


@dataclass(frozen=True)
class Unpack(AbstractCommand):
    """Make a run folder of a packed model; every command that takes a run takes it.

    Example: hdvpd model unpack demo.zip --out runs/theirs
    """

    file: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE")]]
    """Written by `hdvpd model pack`."""
    out: Annotated[Path, optional("DIR")]
    """The new run folder."""

    def run(self) -> None:
        """Unpack."""
        announce("unpacking", self.file)

        from hdvpd.training.packed import unpack

        unpack(self.file, self.out)
        print(f"run    {self.out}")


def _is_card(page: Path) -> bool:
    """Say whether a page has the headings of the cards that `Pack` writes."""
    try:
        return set(page.read_text(errors="replace").splitlines()) >= _CARD_HEADINGS
    except OSError:
        return False
