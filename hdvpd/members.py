"""The members of the comparison: models that differ in their dynamics and in nothing else."""

from collections.abc import Mapping

from hdvpd.config import Config
from hdvpd.errors import UserError, nearest
from hdvpd.experiments import apply_overrides

MEMBERS: Mapping[str, Mapping[str, str | int]] = {
    "grf": {"dynamics": "interlacer", "local": "grf", "walks": "exact"},
    # 27 repelling walkers would be exact; with 9 the last hop is drawn.
    "grf_sampled": {
        "dynamics": "interlacer",
        "local": "grf",
        "walks": "repelling",
        "num_walkers": 9,
    },
    "mp": {"dynamics": "interlacer", "local": "mp"},
    "none": {"dynamics": "interlacer", "local": "none"},
    "graph_network": {"dynamics": "graph_network"},
    "rwgnk": {"dynamics": "interlacer", "local": "rwgnk", "local_heads": 4},
    "diffusion": {"dynamics": "interlacer", "local": "diffusion", "local_heads": 4},
}
"""What each member sets in `[model]`, by its name."""

COMPARED = ("grf", "grf_sampled", "mp", "none", "graph_network")
"""The members that `hdvpd compare` trains unless it is told which."""


def with_member(config: Config, member: str) -> Config:
    """Return a configuration with a member's dynamics.

    Args:
      config: what all members share.
      member: name of the member.

    Raises:
      UserError: there is no such member, or the configuration has no place for it.
    """
    if member not in MEMBERS:
        near = nearest(member, MEMBERS)
        hint = f"did you mean {near!r}?" if near else f"the members are {', '.join(MEMBERS)}."
        raise UserError(f"there is no member {member!r}; {hint}")
    return apply_overrides(config, {"model": MEMBERS[member]}, source=f"member {member}")
