"""A training run in progress: how far it is, what is due, and what has been kept of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

import hdvpd
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch
from hdvpd.config import Config, SceneSpec
from hdvpd.data.setup import keep_setup
from hdvpd.data.store import Dataset
from hdvpd.data.windows import describe_windows
from hdvpd.training.checkpoint_folder import Progress
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.metrics_log import METRICS_FILE, MetricsLog, Record
from hdvpd.training.preflight import try_checkpoint, try_parts
from hdvpd.training.processes import Team
from hdvpd.training.reporting import Reporter, save_first_batch
from hdvpd.training.run_folder import RunFolder, config_identity, library_versions
from hdvpd.training.saving import BackgroundSaver, Saved
from hdvpd.training.spread_checkpoints import SpreadStore

Validate = Callable[[Any], Mapping[str, float] | None]
Windows = Sequence[tuple[int | str, ...]]
"""`Dataset.window_id` of all windows of a batch."""
_PATIENCE_S = 10.0
"""For a save that all processes make, where something else has gone wrong: one may be lost."""


class Session:
    """Counts steps and does what is due after each: log, validation, checkpoint.

    What is due is decided by the step count and by what is already on disk, so a validation or a
    checkpoint that a signal prevented is made up for when the run resumes.

    Attributes:
      step: steps done.
      report: talks to the user.
      log: `metrics.jsonl`.
      team: processes that train together.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        scene: SceneSpec,
        store: CheckpointStore,
        progress: Progress,
        team: Team | None = None,
        *,
        spread: bool = False,
    ) -> None:
        """Open the run folder's files.

        Args:
          path: the run folder; a folder that is thrown away in processes but the primary.
          config: of the run.
          scene: what the model knows of the data set.
          store: checkpoints of the run.
          progress: where it stands, from `new_progress` or a checkpoint.
          team: processes that train together; None is this one alone.
          spread: no process holds the whole train state: all save it together.
        """
        self._path, self._config = path, config
        self._store, self._dataset = store, progress["dataset"]
        self.team, self._spread = team or Team(), spread
        self.step: int = progress["next_batch"]
        self._saved = self.step if self.step in store.steps() else None
        self._verified = False
        self._saver = BackgroundSaver(SpreadStore(store, self.team) if spread else store)
        # First what may be refused, so that a new run's folder is still empty then.
        console = None if self.team.primary else Console(quiet=True)
        self.report = Reporter(path, config, start_step=self.step, console=console)
        self._texts = RunFolder(path).describe(config, scene, dataset_identity=self._dataset)
        self.log = MetricsLog(
            path / METRICS_FILE,
            run_record(config, dataset=self._dataset),
            step=self.step,
            window=progress["window"],
        )
        for record in self.log.resumed:
            self.report.repeat(record)

    def close(self) -> None:
        """End the save under way, whatever else went wrong, and close the files."""
        failure = self._saver.close(_PATIENCE_S if self._spread else None)
        if failure is not None:
            self.report.say(f"a checkpoint was not saved: {failure}")
        self.log.close()
        self.report.close()

    def begin(self, dataset: Dataset, batch: Batch | None) -> None:
        """Keep what a start leaves in the run folder beside its numbers.

        Args:
          dataset: that is trained on.
          batch: windows of the first batch, for a picture; None if nothing is left to train.
        """
        if not self.team.primary:
            return
        if batch is not None and self.step == 0:
            save_first_batch(self._path / "first_batch.png", batch)
        keep_setup(self._path, dataset)

    def preflight(self, parts: Mapping[str, Callable[[], Any]], state: Any) -> None:
        """Try what is ahead before it begins.

        Args:
          parts: as in `hdvpd.training.preflight.try_parts`; all processes must try them.
          state: the train state.

        Raises:
          UserError: memory or disk do not suffice.
        """
        train, existing = self._config.train, len(self._store.steps())
        try_parts(parts, self.report, train, self.step)
        run, team = self._store.path.parent, self.team if self._spread else Team()

        def attempt() -> None:
            try_checkpoint(run, state, self.report, train, existing, team)

        if self._spread:
            attempt()
        else:
            self.team.together(lambda: attempt() if self.team.primary else None)

    def count(
        self,
        metrics: Mapping[str, np.ndarray],
        *,
        windows: Windows,
        seconds: float,
        data_wait_s: float,
    ) -> None:
        """Take up a finished step.

        Raises:
          UserError: too many steps in a row were not finite, or a checkpoint could not be saved.
        """
        self.step += 1
        self.log.add(self.step, metrics, windows)
        self.report.count_step(
            self.step, float(metrics["loss"]), seconds=seconds, data_wait_s=data_wait_s
        )
        if self.step % self._config.train.log_every == 0:
            self.report.show_train(self.step, self.log.write_train(self.step))
        self._check_skipped(int(metrics["nonfinite"]), int(metrics["nonfinite_in_row"]), windows)
        self._report_saved(self._saver.finished())

    def do_due(self, state: Any, validate: Validate) -> None:
        """Validate and save, if this step is one to do so and it has not been done.

        Args:
          state: the train state after `step` steps.
          validate: from parameters to metrics; None if it was interrupted.
        """
        train = self._config.train
        if train.validate_every and self.step % train.validate_every == 0:
            self._validate(state, validate)
        if self.step % train.checkpoint_every == 0:
            self.save(state)

    def finish(self, state: Any, validate: Validate, *, interrupted: bool) -> None:
        """Leave everything on disk; after the last step also log and validate what is not yet.

        Args:
          state: the train state after `step` steps.
          validate: as in `do_due`.
          interrupted: the run stops early and will be resumed.
        """
        progress = self._progress()
        if not interrupted:
            if self.log.window:
                self.report.show_train(self.step, self.log.write_train(self.step, end_of_run=True))
            if self._config.train.validate_every:
                self._validate(state, validate, end_of_run=True)
        self.save(state, progress)
        self._report_saved(self._saver.finished(wait=True))
        run = self._store.path.parent
        advice = f"; continue with hdvpd train --resume {run}" if interrupted else ""
        self.report.say(f"step {self.step} is saved in {self._store.path}{advice}")

    def save(self, state: Any, progress: Progress | None = None) -> None:
        """Begin to save a checkpoint, unless this step has one; the first of a start is read back.

        Raises:
          UserError: the checkpoint before it could not be saved.
        """
        if self.team.from_primary(int(self._saved == self.step)):
            return
        if not (self._spread or self.team.primary):
            return
        self.log.sync()
        before = self._saver.save(
            self.step,
            state,
            progress=progress or self._progress(),
            files=self._texts,
            verify=not self._verified,
        )
        self._report_saved(before)
        self._saved, self._verified = self.step, True

    def _report_saved(self, saved: Saved | None) -> None:
        if saved is not None:
            self.report.write_timing(
                "checkpoint",
                step=saved.step,
                seconds=round(saved.seconds, 3),
                waited_s=round(saved.waited_s, 3),
            )

    def _progress(self) -> Progress:
        return new_progress(self._dataset) | {
            "step": self.step,
            "next_batch": self.step,
            "window": list(self.log.window),
        }

    def _validate(self, state: Any, validate: Validate, *, end_of_run: bool = False) -> None:
        if self.team.from_primary(int(self.log.has_validation(self.step))):
            return
        begin = time.perf_counter()
        metrics = validate(state.params)
        if metrics is not None:
            seconds = round(time.perf_counter() - begin, 3)
            self.report.write_timing("validation", step=self.step, seconds=seconds)
            record = self.log.write_validation(self.step, metrics, end_of_run=end_of_run)
            self.report.show_validation(self.step, record)

    def _check_skipped(self, skipped: int, in_row: int, windows: Windows) -> None:
        if not skipped:
            return
        limit = self._config.train.max_nonfinite
        read = describe_windows(windows)
        self.report.say(f"step {self.step}: loss or gradient is not finite, step skipped ({read})")
        if in_row >= limit:
            self._report_saved(self._saver.finished(wait=True))
            raise UserError(
                f"Loss or gradient was not finite in {in_row} steps in a row, up to step "
                f"{self.step} (train.max_nonfinite = {limit}), so the run stops. Checkpoints "
                f"({self._store.steps()}) hold finite values only. Look for extreme values in the "
                "data with `hdvpd data inspect`, or start a new run with lower "
                "train.learning_rates or train.clip_norm."
            )


def new_progress(dataset: str) -> Progress:
    """Say where a run stands before its first step.

    Returns:
      Values for the checkpoint: steps done, the loader's next batch, metrics not yet in a record.
    """
    return {"step": 0, "next_batch": 0, "window": [], "dataset": dataset}


def run_record(config: Config, *, dataset: str) -> Record:
    """Make the first record of `metrics.jsonl`: what decides the numbers that follow."""
    return {
        "kind": "run",
        "seed": config.train.seed,
        "config": config_identity(config),
        "dataset": dataset,
        "device": jax.devices()[0].device_kind,
        "versions": {"hdvpd": hdvpd.__version__, **library_versions()},
    }
