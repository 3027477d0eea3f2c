"""What can be set in a study: frozen dataclasses whose fields are its flags, their docstrings help.

Light: the command line imports this module to show its help.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from hdvpd.basics.errors import UserError

MOTIF_TASKS = ("cycle", "caveman", "circle", "grid", "ladder", "circular-ladder")
"""Induced cycles in trees, then the five motifs planted in random graphs."""
MOTIF_MODELS = ("gkat", "gat", "gcn", "sgc")
DIGITS = 1797
"""Images in scikit-learn's set of digits."""
CLIP_SIZE = (32, 40)
"""Height and width of the simulated clips [px]."""


@dataclass(frozen=True)
class GrfSettings:
    """Measure the graph-random-feature estimator against theory: tables and figures."""

    seed: int = 0
    """Seed of graphs and walks."""


@dataclass(frozen=True)
class PictureSettings:
    """Draw every kind of mask: its graph, and its matrix."""

    seed: int = 0
    """Seed of graphs and walks."""


@dataclass(frozen=True)
class CalibrationSettings:
    """Check the calibration of small data sets, sound and with every error: one table.

    Stopped, it continues; several processes may work at one folder.
    """

    sound: int = 40
    """Sound sets."""
    each: int = 5
    """Sets with each error."""
    seed: int = 0
    """Draws all of them."""


@dataclass(frozen=True)
class MotifSettings:
    """Train GKAT and graph networks to find motifs and cycles: table and figure.

    Of the networks only gkat runs without the extra `graphs`. "paper" is arXiv 2107.07999, section
    5.1 and its appendix.
    """

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
        require_positive(
            self, "seeds", "graphs", "test_graphs", "nodes", "tree_nodes", "walk_length",
            "cycle_walk_length", "epochs", "patience", "batch_size", "learning_rate",
        )  # fmt: skip
        require(self, "tree_nodes", self.tree_nodes >= 5, "shorter trees leave no pair to join")
        require(self, "join_probability", 0 < self.join_probability <= 1, "a probability, not 0")
        require(self, "decay", 0 <= self.decay <= 1, "a number between 0 and 1")
        fits = self.batch_size <= 2 * (self.graphs - self.graphs // 4)
        require(self, "batch_size", fits, "no more than there are graphs to train on")
        split_names(self, "tasks", MOTIF_TASKS)
        split_names(self, "models", MOTIF_MODELS)


@dataclass(frozen=True)
class ExpressivitySettings:
    """Measure which graphs of equal Weisfeiler-Lehman colours masked attention tells apart."""

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
        require_positive(self, "hops", "seeds")
        require(self, "runs", self.runs >= 2, "a spread needs two draws")
        require(self, "halting", 0 <= self.halting < 1, "a probability below 1")
        words = self.walkers.split(",")
        whole = all(word.strip().isdecimal() and int(word) > 0 for word in words)
        require(self, "walkers", whole, "positive numbers, separated by commas")


POSITIONS = ("learned", "none")
_MASKS = ("", "toeplitz", "exact", "grf", "ad-hoc", "free")
_WALKED = ("grf", "ad-hoc")


class Variant(NamedTuple):
    """One kind of attention in a transformer, written such as softmax or linear+grf-16.

    Attributes:
      attention: softmax or linear.
      mask: toeplitz (a number per offset), exact (power series of the grid graph), grf (the same by
        walks), ad-hoc (counts of visits instead), free (learned features), or empty.
      walkers: per cell, for grf and ad-hoc; 0 for others.
    """

    attention: Literal["softmax", "linear"]
    mask: str
    walkers: int


def parse_variant(word: str) -> Variant | None:
    """Return the variant that a word names, or None if it names none."""
    attention, plus, mask = word.partition("+")
    name, _, walkers = mask.rpartition("-")
    if name not in _WALKED:
        name, walkers = mask, ""
    known = attention in ("softmax", "linear") and name in _MASKS and bool(plus) == bool(name)
    counted = walkers.isdecimal() and int(walkers) > 0
    if not known or counted != (name in _WALKED):
        return None
    return Variant(cast("Literal['softmax', 'linear']", attention), name, int(walkers or 0))


@dataclass(frozen=True)
class TransformerSettings:
    """What the studies of vision transformers share; "paper" is arXiv 2410.03462, appendix C."""

    variants: str
    """Variants, separated by commas: softmax or linear, and +toeplitz, +exact, +free, +grf-N or
    +ad-hoc-N with N walkers per cell."""
    positions: str
    """Position embeddings, learned, none or both separated by a comma (paper: learned)."""
    seeds: int
    """Runs per variant; a seed draws the split, initial weights, walks and batches."""
    steps: int
    """Steps of Adam."""
    batch_size: int
    """Examples per step."""
    patch: int
    """Height and width of a patch [px]."""
    width: int = 32
    """Width of tokens (paper: 768)."""
    heads: int = 2
    """Heads of attention (paper: 12)."""
    depth: int = 3
    """Blocks of an encoder, all but the last with masks (paper: 12). The last is read out at the
    class token, which every mask lets see all cells alike."""
    learning_rate: float = 3e-3
    """Of Adam, after a tenth of the steps as warm-up; then a cosine to 1e-5."""
    hops: int = 10
    """Last power of W in a mask's features (paper: 100, or 10 for the smaller image sets)."""
    halting: float = 0.1
    """Probability that a walker stops before a hop."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        require_positive(
            self, "seeds", "steps", "batch_size", "patch", "width", "heads", "depth",
            "learning_rate",
        )  # fmt: skip
        require(self, "width", self.width % self.heads == 0, "a multiple of --heads")
        require(self, "hops", self.hops >= 0, "0 or more")
        require(self, "halting", 0 <= self.halting < 1, "a probability below 1")
        split_names(self, "positions", POSITIONS)
        words = split_words(self.variants)
        known = bool(words) and all(map(parse_variant, words))
        require(self, "variants", known, "such as softmax,linear+exact,linear+grf-16")


@dataclass(frozen=True)
class VisionSettings(TransformerSettings):
    """Compare attention and masks in small vision transformers on digits: table and figure.

    The digits come with scikit-learn (extra `vision`).
    """

    variants: str = (
        "softmax,linear,linear+toeplitz,linear+exact,linear+grf-1,linear+grf-4,linear+grf-16,"
        "linear+grf-64,linear+ad-hoc-16,linear+free"
    )
    positions: str = "learned,none"
    seeds: int = 5
    steps: int = 1000
    batch_size: int = 16
    patch: int = 1
    train_images: int = 1000
    """Images to train on; the rest of the 1,797 is to test."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        super().__post_init__()
        fits = self.batch_size <= self.train_images < DIGITS
        require(self, "train_images", fits, f"--batch-size or more and below {DIGITS}")
        require(self, "patch", self.patch in (1, 2, 4), "1, 2 or 4: images have 8x8 pixels")


@dataclass(frozen=True)
class VideoSettings(TransformerSettings):
    """Compare attention and masks in video transformers on simulated clips: table and figure.

    The clips show the three robot tasks (extra `sim`).
    """

    variants: str = "softmax,softmax+grf-16"
    positions: str = "learned"
    seeds: int = 5
    steps: int = 400
    batch_size: int = 8
    patch: int = 4
    depth: int = 2
    clips: int = 240
    """Simulated clips, a third of them for each task."""
    test_clips: int = 80
    """Clips of them to test."""
    frames: int = 8
    """Frames of a clip."""
    workers: int = 2
    """Processes that simulate; never changes what is written."""

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        super().__post_init__()
        require_positive(self, "workers", "test_clips")
        require(self, "frames", self.frames >= 3, "3 or more")
        fits = self.batch_size <= self.clips - self.test_clips
        require(self, "clips", fits, "--test-clips and --batch-size together or more")
        fits = all(pixels % self.patch == 0 for pixels in CLIP_SIZE)
        require(self, "patch", fits, "a divisor of {} and {} pixels".format(*CLIP_SIZE))


@dataclass(frozen=True)
class MechanismSettings:
    """Measure time, memory and error of every attention mechanism, in one table."""

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
        require_positive(self, "width", "rounds", "peak_width")
        require(self, "from_exponent", self.from_exponent >= 5, "5 or more")
        enough = self.to_exponent >= self.from_exponent + 3
        require(self, "to_exponent", enough, "three more than --from-exponent or more")
        require(self, "peak_tokens", self.peak_tokens >= 0, "no negative number")

    @property
    def exponents(self) -> range:
        """Of the sizes at which mechanisms are measured."""
        return range(self.from_exponent, self.to_exponent + 1)

    @property
    def quadratic_exponents(self) -> range:
        """Of the sizes at which quadratic mechanisms are measured."""
        return range(self.from_exponent - 2, self.to_exponent - 3)


def split_words(text: str) -> tuple[str, ...]:
    """Return the words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def split_names(settings: Any, name: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a field, separated there by commas; "all" stands for every known one.

    Raises:
      UserError: there is none, or one is not known.
    """
    if getattr(settings, name) == "all":
        return known
    found = split_words(getattr(settings, name))
    require(settings, name, bool(found) and set(found) <= set(known), f"some of {','.join(known)}")
    return found


def require_positive(settings: Any, *names: str) -> None:
    """Refuse settings that are not positive."""
    for name in names:
        require(settings, name, getattr(settings, name) > 0, "a positive number")


def require(settings: Any, name: str, condition: bool, expected: str) -> None:
    """Refuse a setting unless a condition holds.

    Raises:
      UserError: it does not.
    """
    if not condition:
        value = getattr(settings, name)
        raise UserError(f"--{name.replace('_', '-')} {value}: expected {expected}.")
