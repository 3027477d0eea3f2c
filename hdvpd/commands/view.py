"""`hdvpd view`: look at runs, data sets and rollouts in a browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hdvpd.commands.base import AbstractCommand, announce
from hdvpd.commands.flags import optional


@dataclass(frozen=True)
class View(AbstractCommand):
    """Show a run's rollouts, the episodes of a data set, or a rollout folder, in a browser.

    Example: hdvpd view runs/demo
    """

    source: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN|DATASET|ROLLOUT")]]
    """Folder of a run, of a data set, or of what `hdvpd rollout` or `hdvpd plan` wrote."""
    port: int = 8080
    """Where the page is served; 0 takes any free port."""
    host: str = "localhost"
    """Address at which it listens; 0.0.0.0 shows it to everybody in the network."""
    split: Annotated[str | None, optional("SPLIT")] = None
    """Of a run: which episodes are rolled out; by default test, and validation while it trains."""
    episode: Annotated[int | None, optional("N")] = None
    """Of a run or a data set: the only episode."""
    start: int = 0
    """With --episode: the first of its two observed frames."""
    actions: Annotated[tuple[Path, ...], optional("FILE")] = ()
    """With --episode: joint targets (.npy or .csv), each rolled out as a scene to choose."""
    steps: Annotated[int | None, optional("INT")] = None
    """Of a run: predicted frames; by default its eval.num_steps."""
    step: Annotated[int | None, optional("INT")] = None
    """Of a run: the checkpoint; by default the newest undamaged one."""

    def run(self) -> int | None:
        """Serve the page until Ctrl-C."""
        announce("opening", self.source)

        from hdvpd.viewing import main

        return main.view(
            self.source,
            host=self.host,
            port=self.port,
            split=self.split,
            episode=self.episode,
            start=self.start,
            actions=self.actions,
            steps=self.steps,
            checkpoint_step=self.step,
        )
