"""The validation of a run: the loss on fixed held-out windows with fixed rays."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.stages
import numpy as np
from flax import nnx

from hdvpd.basics.types import Batch, PRNGKey
from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, read_window, stack_windows
from hdvpd.training.interrupts import StopSignals
from hdvpd.training.parallel import Layout
from hdvpd.training.session import Session
from hdvpd.training.step import Metrics, Params, make_validate


class Validation:
    """Function from parameters to mean metrics over the held-out windows.

    Attributes:
      compiled: computes the metrics of one part of the windows; None until it is set or needed.
    """

    def __init__(
        self,
        session: Session,
        config: Config,
        graphdef: nnx.GraphDef,
        dataset: Dataset,
        held_out: list[tuple[int, int]],
        stop: StopSignals,
        layout: Layout,
    ):
        """Cut the windows into parts.

        Args:
          session: whose processes validate together.
          config: of the run.
          graphdef: of the model.
          dataset: that the windows are of.
          held_out: (episode, start) of every window.
          stop: a signal ends the validation after the part that it is at.
          layout: spreads a part over its devices.
        """
        self._session, self._config, self._dataset = session, config, dataset
        self._stop, self._layout = stop, layout
        self.compiled: Callable[..., Metrics] | None = None
        # The largest equal parts that fit in a training batch: one compilation.
        limit, count = config.train.batch_size, len(held_out)
        self._size = max((n for n in range(1, limit + 1) if count % n == 0), default=1)
        self._parts = [held_out[i : i + self._size] for i in range(0, count, self._size)]
        self._spread = self._size % layout.mesh.size == 0
        self._validate = make_validate(graphdef, layout, spread=self._spread)

    def lower(self, params: Params) -> jax.stages.Lowered:
        """Trace the program that computes one part."""
        return cast(jax.stages.Wrapped, self._validate).lower(params, *self._read(0))

    def __call__(self, params: Params) -> dict[str, float] | None:
        """Return the mean metrics; None if a signal came before all windows were done."""
        if self.compiled is None:
            with self._session.report.compiling("the validation"):
                self.compiled = self.lower(params).compile()
        results = []
        for number in range(len(self._parts)):
            if self._session.team.any(self._stop.received is not None):
                return None
            results.append(jax.device_get(self.compiled(params, *self._read(number))))
        return average_batches(results)

    def _read(self, number: int) -> tuple[Batch, PRNGKey]:
        """Read a part of the windows, and place it where it is computed."""
        config, layout, part = self._config, self._layout, self._parts[number]
        if self._spread:
            part = part[layout.slice_of(self._session.team.number, self._size)]
        length = OBSERVED_FRAMES + config.train.horizon
        batch = stack_windows([read_window(self._dataset, *w, length, config.data) for w in part])
        key = jax.random.fold_in(jax.random.key(config.train.seed + 1), number)
        place = layout.place_batch if self._spread else layout.place_everywhere
        return place(batch), layout.place_everywhere(key)


def average_batches(batches: list[Mapping[str, Any]]) -> dict[str, float]:
    """Average metrics over equally large batches."""
    return {
        name: float(np.mean([b[name] for b in batches], dtype=np.float64)) for name in batches[0]
    }
