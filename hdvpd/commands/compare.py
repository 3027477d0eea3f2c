"""`hdvpd compare`: the members of the dynamics family, trained alike."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from hdvpd.commands.base import AbstractCommand
from hdvpd.commands.flags import Names
from hdvpd.commands.train import ConfigFlags


@dataclass(frozen=True)
class Compare(AbstractCommand):
    """Train every member of the dynamics family alike, and compare them.

    The same command continues after an interruption; what is finished is not repeated.

    Example: hdvpd compare --members grf,none --seeds 3
    """

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")]] = (
        "compare"
    )
    """Experiment that all members share: name or path of a TOML file."""
    members: Names = ("grf", "grf_sampled", "mp", "none", "graph_network")
    """Members, separated by commas: those of `configs/members`, or paths of such files."""
    seeds: Annotated[int, tyro.conf.arg(metavar="INT")] = 3
    """Runs per member."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/compare")
    """Folder of the results and, in `runs`, of the runs."""
    config: ConfigFlags = field(default_factory=dict)

    def run(self) -> None:
        """Compare."""
        from hdvpd.commands import compare_runs

        compare_runs.main(
            self.experiment,
            out=self.out,
            members=self.members,
            num_seeds=self.seeds,
            overrides=self.config,
        )
