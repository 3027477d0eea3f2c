"""A run in progress: its losses, and its newest checkpoint's rollout, in the page as they come."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import viser
import viser.uplot

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.viewing.page import Page
from hdvpd.viewing.runs import RunSource

INTERVAL_S = 2.0
"""How often the run's folder is looked at."""


def read_losses(
    file: Path,
) -> tuple[Float[np.ndarray, "a"], Float[np.ndarray, "a"], Float[np.ndarray, "a"]]:
    """Read the losses of a run from its `metrics.jsonl`.

    Args:
      file: also one that is being written, or is not there yet.

    Returns:
      Steps, and the losses of training and of validation at them; NaN where there is none.
    """
    losses: dict[int, dict[str, float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            record = json.loads(line)
        except ValueError:
            break  # half a line: the rest comes later
        if record.get("kind") in ("train", "validation") and record.get("loss") is not None:
            losses.setdefault(int(record["step"]), {})[record["kind"]] = float(record["loss"])
    steps = sorted(losses)
    train, validation = (
        np.asarray([losses[step].get(kind, np.nan) for step in steps])
        for kind in ("train", "validation")
    )
    return np.asarray(steps, float), train, validation


def filled(values: Float[np.ndarray, "a"]) -> Float[np.ndarray, "a"]:
    """Put for every NaN the value before it; for those at the start, the first that there is."""
    known = np.flatnonzero(np.isfinite(values))
    latest = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    return values[known[np.maximum(latest, 0)]]


class Progress:
    """Watches a run's folder for a page."""

    def __init__(self, page: Page, source: RunSource) -> None:
        """Add the curve to the page, and begin to watch."""
        self._page, self._source = page, source
        self._file = source.folder / "metrics.jsonl"
        self._plot: viser.GuiUplotHandle | None = None
        self._shown = -1
        self._stopping = threading.Event()
        self._folder = page.server.gui.add_folder("Training")
        with self._folder:
            self._text = page.server.gui.add_text("run", "", disabled=True)
        self.look()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="hdvpd-watch")
        self._watcher.start()

    def stop(self) -> None:
        """End watching."""
        self._stopping.set()
        self._watcher.join()

    def look(self) -> None:
        """Show what the folder says now."""
        steps, train, validation = read_losses(self._file)
        if len(steps) > max(self._shown, 1):
            self._shown = len(steps)
            self._draw(steps, {"training": train, "validation": validation})
        if self._source.refresh():
            self._page.reload()
        world, total = self._source.world, self._source.config.train.num_steps
        done = int(steps[-1]) if len(steps) else 0
        shown = "no checkpoint yet" if world is None else f"rollout of step {world.step}"
        text = f"step {done} of {total}, {shown}"
        if self._text.value != text:
            self._text.value = text

    def _draw(self, steps: np.ndarray, losses: Mapping[str, np.ndarray]) -> None:
        """Draw what is known; between two validations the line stays at the last."""
        known = {k: filled(loss) for k, loss in losses.items() if np.isfinite(loss).any()}
        data = (steps, *known.values())
        if self._plot is not None and len(self._plot.data) == len(data):
            self._plot.data = data
            return
        if self._plot is not None:
            self._plot.remove()
        colors = {"training": "#1f77b4", "validation": "#d62728"}
        lines = [viser.uplot.Series(label=k, stroke=colors[k], width=2) for k in known]
        with self._folder:
            self._plot = self._page.server.gui.add_uplot(
                data,
                (viser.uplot.Series(label="step"), *lines),
                scales={
                    "x": viser.uplot.Scale(time=False),
                    "y": viser.uplot.Scale(distr=3),  # logarithmic
                },
                aspect=1.5,
            )

    def _watch(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            try:
                self.look()
            except UserError as error:  # such as a checkpoint that is replaced while it is read
                self._page.say(str(error))
            except Exception:
                logging.getLogger("hdvpd").exception("watching %s failed", self._source.folder)
