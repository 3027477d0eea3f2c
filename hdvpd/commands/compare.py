"""`hdvpd compare`: the members of the dynamics family, trained alike."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from hdvpd.commands.base import AbstractCommand
from hdvpd.commands.flags import Names, optional
from hdvpd.commands.train import ConfigFlags

MEMBERS = ("grf", "grf_sampled", "mp", "none", "graph_network")


@dataclass(frozen=True)
class Compare(AbstractCommand):
    """Train every member of the dynamics family alike, and compare them.

    The same command continues after an interruption; what is finished is not repeated. Given in
    several processes at the same time, on machines that see the same folder, they share the runs.

    Example: hdvpd compare --members grf,none --seeds 3
    """

    experiment: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="EXPERIMENT")]] = (
        "compare"
    )
    """Experiment that all members share: name or path of a TOML file."""
    members: Annotated[Names, optional("NAMES")] = ()
    """Members, separated by commas: those of `configs/members`, or paths of such files. By default
    grf,grf_sampled,mp,none,graph_network; with --vary or --ablate the experiment's own."""
    vary: Annotated[tuple[str, ...], optional("KEY=VALUE,VALUE")] = ()
    """Values of the configuration to compare, in every combination:
    --vary train.clip-norm=0.01,0.1 model.carry=true,false."""
    ablate: Annotated[tuple[str, ...], optional("KEY=VALUE")] = ()
    """Changes of the configuration, each compared alone with the experiment as it is:
    --ablate train.clip-norm=0.1 model.even=false."""
    seeds: Annotated[int, tyro.conf.arg(metavar="INT")] = 3
    """Runs per member and combination."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/compare")
    """Folder of the results and, in `runs`, of the runs."""
    config: ConfigFlags = field(default_factory=dict)

    def run(self) -> None:
        """Compare."""
        from hdvpd.commands import compare_runs

        compare_runs.main(
            self.experiment,
            out=self.out,
            members=self.members or (() if self.vary or self.ablate else MEMBERS),
            vary=self.vary,
            ablate=self.ablate,
            num_seeds=self.seeds,
            overrides=self.config,
        )
