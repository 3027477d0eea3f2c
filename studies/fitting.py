"""Training a classifier until it stops getting better, the same way whatever library it is of."""

import abc
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hdvpd.basics.types import Int
from studies.graph_tasks import GraphSet


class Score(NamedTuple):
    """How well graphs are classified: mean cross-entropy and share of correct labels."""

    loss: float
    accuracy: float


class AbstractLearner(abc.ABC):
    """A model with its optimiser and its training graphs in the form it needs."""

    @property
    @abc.abstractmethod
    def num_parameters(self) -> int:
        """Trained numbers."""

    @abc.abstractmethod
    def prepare(self, graphs: GraphSet) -> Any:
        """Bring graphs into the form that the model reads."""

    @abc.abstractmethod
    def train_epoch(self, prepared: Any, batches: Int[np.ndarray, "steps b"]) -> None:
        """Take one step of Adam per batch of graphs."""

    @abc.abstractmethod
    def evaluate(self, prepared: Any) -> Score:
        """Score graphs that `prepare` returned."""

    @abc.abstractmethod
    def parameters(self) -> Any:
        """Return what `restore` takes; later training does not change it."""

    @abc.abstractmethod
    def restore(self, parameters: Any) -> None:
        """Go back to earlier parameters."""


@dataclass(frozen=True)
class Fit:
    """What training came to.

    Attributes:
      epochs: done.
      best_epoch: the one whose parameters were kept, from 1; 0 if every loss was NaN.
      validation: score of these.
      seconds_per_epoch: median over epochs of the time in `train_epoch`; compilation, which is in
        the first one, hardly counts in it.
    """

    epochs: int
    best_epoch: int
    validation: Score
    seconds_per_epoch: float


def fit(
    learner: AbstractLearner,
    train: GraphSet,
    validation: GraphSet,
    *,
    epochs: int,
    patience: int,
    batch_size: int,
    seed: int,
) -> Fit:
    """Train until neither validation loss nor accuracy improved for `patience` epochs.

    The learner is left with the parameters of the lowest validation loss. Every epoch sees the
    training graphs once in a new order, which `seed` decides, but for a rest smaller than a batch.
    """
    prepared, held_out = learner.prepare(train), learner.prepare(validation)
    rng = np.random.default_rng(seed)
    steps = len(train) // batch_size
    best, kept = Score(np.inf, 0.0), learner.parameters()
    best_epoch, highest, last_gain, seconds = 0, 0.0, 0, []
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(train))[: steps * batch_size].reshape(steps, batch_size)
        started = time.perf_counter()
        learner.train_epoch(prepared, order)
        seconds.append(time.perf_counter() - started)
        score = learner.evaluate(held_out)
        if score.loss < best.loss or score.accuracy > highest:
            last_gain = epoch
        highest = max(highest, score.accuracy)
        if score.loss < best.loss:
            best, best_epoch, kept = score, epoch, learner.parameters()
        if epoch - last_gain >= patience:
            break
    learner.restore(kept)
    return Fit(len(seconds), best_epoch, best, float(np.median(seconds)))
