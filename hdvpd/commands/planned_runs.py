"""The runs of a comparison: members or values of the configuration, each with every seed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hdvpd.basics.errors import UserError
from hdvpd.config import Config
from hdvpd.config.experiments import apply_overrides
from hdvpd.config.members import member_names, with_member
from hdvpd.config.variants import Variant, list_changes, list_variants

UNVARIED = (Variant("", {}),)


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run of the comparison.

    Attributes:
      member: name of the member.
      config: of the run; its `train.seed` is the run's.
      folder: of the run.
    """

    member: str
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name

    @property
    def scores(self) -> Path:
        """File of what the run scored."""
        return self.folder / "scores.json"


def choose_variants(vary: Sequence[str], ablate: Sequence[str]) -> list[Variant]:
    """List the variants that the flags of `hdvpd compare` ask for.

    Raises:
      UserError: they ask for every combination and for one change at a time.
    """
    if vary and ablate:
        raise UserError(
            "--vary compares every combination, --ablate one change at a time: give one of them."
        )
    return list_changes(ablate) if ablate else list_variants(vary)


def plan_runs(
    config: Config,
    members: Sequence[str],
    num_seeds: int,
    folder: Path,
    variants: Sequence[Variant] = UNVARIED,
) -> list[PlannedRun]:
    """List all runs, in the order in which they are trained.

    Raises:
      UserError: a member is unknown or named twice, there is nothing to compare, or no seed.
    """
    if num_seeds < 1:
        raise UserError(f"--seeds {num_seeds}: use a positive number; intervals need 2 or more.")
    names = [Path(member).stem for member in members]
    if len(set(names)) < len(names) or not (members or len(variants) > 1):
        raise UserError(
            f"--members {','.join(members)}: name members once each, out of "
            f"{', '.join(member_names())}, or files of other names."
        )
    configs = {
        ",".join(filter(None, (name, variant.label))): varied_config(config, member, variant)
        for name, member in zip(names or [""], members or [""], strict=True)
        for variant in variants
    }
    first = config.train.seed
    return [
        PlannedRun(name, with_seed(own, seed), folder / f"{name}-{seed}")
        for seed in range(first, first + num_seeds)
        for name, own in configs.items()
    ]


def varied_config(config: Config, member: str, variant: Variant) -> Config:
    """Return the configuration of a member's variant.

    Raises:
      UserError: there is no such member, key or value.
    """
    own = with_member(config, member) if member else config
    return apply_overrides(own, variant.tables, source=variant.flag)


def with_seed(config: Config, seed: int) -> Config:
    """Return a configuration with another `train.seed`."""
    return dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
