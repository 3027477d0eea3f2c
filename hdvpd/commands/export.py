"""`hdvpd export`: recordings as files for other viewers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import optional


@dataclass(frozen=True)
class Export(AbstractCommand):
    """Write a rollout of a run, an episode of a data set, or all plans of a rollout folder.

    Example: hdvpd export runs/demo --format rerun
    """

    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN|DATASET|ROLLOUT")]]
    """Folder of a run, of a data set, or of what `hdvpd rollout` or `hdvpd plan` wrote."""
    format: Literal["rerun", "html"] = "rerun"
    """A file for the rerun viewer, or a page that plays in a browser without a server."""
    out: Annotated[Path | None, optional("FILE")] = None
    """Where to write; by default SOURCE-episode-N.rrd or .html in the present folder. Of several
    plans, each is a file of its own, whose name ends in the plan's."""
    episode: Annotated[int | None, optional("N")] = None
    """Of a run or a data set: number of the episode; by default the first that there is."""
    start: int = 0
    """Of a run, with --episode: the first of its two observed frames."""
    actions: Annotated[Path | None, optional("FILE")] = None
    """Of a run, with --episode: joint targets (.npy or .csv) instead of the recorded ones."""
    steps: Annotated[int | None, optional("INT")] = None
    """Of a run: predicted frames; by default its eval.num_steps."""
    step: Annotated[int | None, optional("INT")] = None
    """Of a run: the checkpoint; by default the newest undamaged one."""

    def run(self) -> None:
        """Write the file, or those of several plans."""
        announce("exporting", self.source)

        from hdvpd.viewing import main

        main.export(
            self.source,
            out=self.out,
            form=self.format,
            episode=self.episode,
            start=self.start,
            actions=self.actions,
            steps=self.steps,
            checkpoint_step=self.step,
        )
