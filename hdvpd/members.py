"""The members of the comparison: models that differ in their dynamics and in nothing else."""

import difflib
from collections.abc import Mapping

from hdvpd.config import Config
from hdvpd.errors import UserError
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
        near = difflib.get_close_matches(member, MEMBERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"the members are {', '.join(MEMBERS)}."
        raise UserError(f"there is no member {member!r}; {hint}")
    flags = [
        word
        for key, value in MEMBERS[member].items()
        for word in (f"--model.{key.replace('_', '-')}", str(value))
    ]
    return apply_overrides(config, flags, source=f"member {member}")
