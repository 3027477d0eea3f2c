"""What can be set in a study: frozen dataclasses whose fields are the flags of its command.

Light: the command line imports this module to show its help.
"""

from dataclasses import dataclass
from typing import Any

from hdvpd.errors import UserError

MOTIF_TASKS = ("cycle", "caveman", "circle", "grid", "ladder", "circular-ladder")
"""Induced cycles in trees, then the five motifs planted in random graphs."""
MOTIF_MODELS = ("gkat", "gat", "gcn", "sgc")


@dataclass(frozen=True)
class MotifSettings:
    """The study of motifs and cycles; "paper" is arXiv 2107.07999, section 5.1 and its appendix."""

    tasks: str = ",".join(MOTIF_TASKS)
    """Tasks, separated by commas."""
    models: str = ",".join(MOTIF_MODELS)
    """Models, separated by commas; all but gkat need the extra `graphs`."""
    seeds: int = 3
    """Runs per task and model; a seed draws graphs, initial weights and batches (paper: 15)."""
    graphs: int = 256
    """Graphs per class, three quarters of them to train and the others to stop (paper: 2048)."""
    test_graphs: int = 256
    """Further graphs per class, looked at once when training has ended (paper: none)."""
    nodes: int = 100
    """Nodes of the random graph that a motif is joined to."""
    tree_nodes: int = 50
    """Nodes of the random binary trees."""
    join_probability: float = 0.004
    """Probability of an edge between a motif's node and one of the random graph's."""
    walk_length: int = 3
    """Hops of the walks of gkat's mask on graphs with motifs."""
    cycle_walk_length: int = 6
    """Hops of the walks of gkat's mask on trees with a cycle."""
    decay: float = 1.0
    """What a visit counts less per hop in gkat's mask (paper: not stated; its program: 1)."""
    epochs: int = 100
    """Epochs at most (paper: 500)."""
    patience: int = 40
    """Epochs without better validation loss or accuracy that end a run (paper: 80)."""
    batch_size: int = 32
    """Graphs per step (paper: 128)."""
    learning_rate: float = 5e-3
    """Of Adam (paper: 1e-3 over 500 epochs of many more steps)."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        _require_positive(
            self, "seeds", "graphs", "test_graphs", "nodes", "tree_nodes", "walk_length",
            "cycle_walk_length", "epochs", "patience", "batch_size", "learning_rate",
        )  # fmt: skip
        _require(self, "tree_nodes", self.tree_nodes >= 5, "shorter trees leave no pair to join")
        _require(self, "join_probability", 0 < self.join_probability <= 1, "a probability, not 0")
        _require(self, "decay", 0 <= self.decay <= 1, "a number between 0 and 1")
        fits = self.batch_size <= 2 * (self.graphs - self.graphs // 4)
        _require(self, "batch_size", fits, "no more than there are graphs to train on")
        split_names(self, "tasks", MOTIF_TASKS)
        split_names(self, "models", MOTIF_MODELS)


@dataclass(frozen=True)
class ExpressivitySettings:
    """The study of what masked attention can tell apart."""

    walkers: str = "1,2,4,8,16,32,64"
    """Walkers per node, separated by commas."""
    hops: int = 6
    """Hops at most; the mask is the power series cut there."""
    halting: float = 0.1
    """Probability that a walker stops before a hop."""
    runs: int = 256
    """Independent draws of all walks per seed."""
    seeds: int = 5
    """Repetitions over which intervals are taken."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        _require_positive(self, "hops", "seeds")
        _require(self, "runs", self.runs >= 2, "a spread needs two draws")
        _require(self, "halting", 0 <= self.halting < 1, "a probability below 1")
        words = self.walkers.split(",")
        whole = all(word.strip().isdecimal() and int(word) > 0 for word in words)
        _require(self, "walkers", whole, "positive numbers, separated by commas")


@dataclass(frozen=True)
class MechanismSettings:
    """The table of attention mechanisms: their costs, and their errors against dense forms."""

    mechanisms: str = "all"
    """Mechanisms, separated by commas."""
    from_exponent: int = 10
    """The smallest number of tokens, as a power of two."""
    to_exponent: int = 16
    """The largest number of tokens, as a power of two; four less for quadratic mechanisms, which
    start two earlier."""
    width: int = 8
    """Features, and width of the values."""
    rounds: int = 5
    """Calls of which the fastest counts."""
    peak_tokens: int = 65536
    """Tokens where peak memory is measured; 0 leaves it out."""
    peak_width: int = 64
    """Features, and width of the values, where peak memory is measured."""
    seed: int = 0
    """Of graphs, walks and inputs."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        _require_positive(self, "width", "rounds", "peak_width")
        _require(self, "from_exponent", self.from_exponent >= 5, "5 or more")
        enough = self.to_exponent >= self.from_exponent + 3
        _require(self, "to_exponent", enough, "three more than --from-exponent or more")
        _require(self, "peak_tokens", self.peak_tokens >= 0, "no negative number")

    @property
    def exponents(self) -> range:
        """Of the sizes at which mechanisms are measured."""
        return range(self.from_exponent, self.to_exponent + 1)

    @property
    def quadratic_exponents(self) -> range:
        """Of the sizes at which quadratic mechanisms are measured."""
        return range(self.from_exponent - 2, self.to_exponent - 3)


def split_names(settings: Any, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a field, separated there by commas; "all" stands for every known one.

    Raises:
      UserError: there is none, or one is not known.
    """
    if getattr(settings, name) == "all":
        return known
    found = tuple(word.strip() for word in getattr(settings, name).split(",") if word.strip())
    _require(settings, name, bool(found) and set(found) <= set(known), f"some of {','.join(known)}")
    return found


def _require_positive(settings: Any, *names: str) -> None:
    for name in names:
        _require(settings, name, getattr(settings, name) > 0, "a positive number")


def _require(settings: Any, name: str, condition: bool, expected: str) -> None:
    if not condition:
        value = getattr(settings, name)
        raise UserError(f"--{name.replace('_', '-')} {value}: expected {expected}.")
