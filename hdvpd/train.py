"""Train a model: `main` takes a finished configuration and fills a run folder.

Exactness: parameters, optimiser, data order and ray choice are functions of the seed and the step
count, and a checkpoint carries the step count, the position in the data and the metrics not yet
logged. So a run that was stopped and resumed ends, on a CPU, with the same bytes in its parameters
and in `metrics.jsonl` as one that was not.
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import jax.stages
from flax import nnx

from hdvpd.config import Config, SceneSpec
from hdvpd.data.loader import Loader
from hdvpd.data.object_motion import moving_windows
from hdvpd.data.setup import keep_setup
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_window, stack_windows
from hdvpd.errors import UserError
from hdvpd.kernels.kept_programs import keep_programs
from hdvpd.kernels.memory import keep_freed_memory
from hdvpd.training.checkpoints import CheckpointStore, Progress, require_disk_space
from hdvpd.training.interrupts import StopSignals
from hdvpd.training.parallel import Layout, make_layout
from hdvpd.training.reporting import save_first_batch
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import Session, Validate, average_batches, new_progress
from hdvpd.training.step import (
    Metrics,
    Params,
    TrainState,
    TrainStep,
    create_train_state,
    make_train_step,
    make_validate,
)
from hdvpd.types import Batch, PRNGKey

MakeTrainStep = Callable[[Config, nnx.GraphDef], TrainStep]


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What a run reads.

    Attributes:
      dataset: the opened data set.
      scene: what the model must know of it.
      windows: all training windows.
      held_out: (episode, start) of every validation window; none if the run never validates.
    """

    dataset: Dataset
    scene: SceneSpec
    windows: WindowIndex
    held_out: list[tuple[int, int]]


def main(
    config: Config,
    *,
    run_dir: Path | str,
    resume: str | None = None,
    step: int | None = None,
    make_step: MakeTrainStep | None = None,
) -> None:
    """Train, or continue training, until `train.num_steps`.

    Args:
      config: the resolved experiment.
      run_dir: folder of the run, `runs/<name>`.
      resume: None for a new run; "auto" to continue the one in `run_dir` if there is one; or the
        path or name of the run to continue.
      step: checkpoint to continue from; by default the newest sound one.
      make_step: makes the jitted step, by default a new one. Runs that differ only in the seed can
        be given the same, which is then compiled once.

    Raises:
      UserError: something that the user can put right; nothing that was saved is lost.
      SystemExit: 143 after SIGTERM, 130 after SIGINT, with everything saved.
    """
    keep_freed_memory()
    keep_programs()
    run = RunFolder.find_to_train(Path(run_dir), resume, step)
    path = run.path
    data, layout = open_data(config), make_layout(config.train)
    with StopSignals() as stop, run.lock(), contextlib.ExitStack() as opened:
        store = run.checkpoints(config.train.keep_checkpoints)
        graphdef, state, progress = start_or_restore(store, config, data, step)
        session = Session(path, config, data.scene, store, progress)
        opened.callback(session.close)
        loader = opened.enter_context(contextlib.closing(open_loader(config, data, session.step)))
        state = layout.place_state(state)
        batches = device_batches(loader, config.train.num_steps - session.step, layout)
        batch = next(batches, None)
        key = layout.place_everywhere(jax.random.key(config.train.seed))
        train_step = (make_step or make_train_step)(config, graphdef)
        train_step = compile_step(session, train_step, state, batch, key)
        validate = make_validator(session, config, graphdef, data, stop, layout)

        if batch is not None and session.step == 0:
            save_first_batch(path / "first_batch.png", batch)
        keep_setup(path, data.dataset)
        session.do_due(state, validate)
        while batch is not None and not stop.received:
            begin, waited = time.perf_counter(), loader.data_wait_s
            with jax.transfer_guard("disallow"):
                state, metrics = train_step(state, batch, key)
            batch = next(batches, None)  # read and copied while the device computes
            metrics = jax.device_get(metrics)
            seconds, data_wait_s = time.perf_counter() - begin, loader.data_wait_s - waited
            session.count(metrics, seconds=seconds, data_wait_s=data_wait_s)
            session.do_due(state, validate)
        session.finish(state, validate, interrupted=bool(stop.received))
    if stop.exit_status is not None:
        raise SystemExit(stop.exit_status)


def open_data(config: Config) -> TrainingData:
    """Open the data set and list the windows of training and validation.

    Returns:
      What the run reads.

    Raises:
      UserError: the data set is missing or damaged, a split is empty, or episodes are too short.
    """
    dataset = Dataset(config.data.path)
    length = OBSERVED_FRAMES + config.train.horizon
    held_out: list[tuple[int, int]] = []
    if config.train.validate_every:
        index = WindowIndex(dataset, "validation", length)
        count = min(config.train.validation_windows, len(index))
        held_out = index.sample(config.train.seed, 0, count)
    windows = WindowIndex(dataset, "train", length)
    if config.train.moving_window_share > 0:
        favour_moving(dataset, windows, config)
    return TrainingData(
        dataset=dataset,
        scene=dataset.scene_spec(config.data),
        windows=windows,
        held_out=held_out,
    )


def favour_moving(dataset: Dataset, windows: WindowIndex, config: Config) -> None:
    """Draw `train.moving_window_share` of the windows from those in which an object moves.

    Raises:
      UserError: nothing moves in any window.
    """
    share = config.train.moving_window_share
    moving = moving_windows(dataset, windows, config.data)
    if not moving:
        raise UserError(
            f"train.moving_window_share = {share} asks for windows in which an object moves, but "
            f"in the {len(windows)} training windows of {dataset.path} none does. Use 0."
        )
    print(
        f"windows  {len(moving)} of {len(windows)} with a moving object: {share:.0%} of the draws"
    )
    windows.favour(moving, share)


def start_or_restore(
    store: CheckpointStore, config: Config, data: TrainingData, step: int | None
) -> tuple[nnx.GraphDef, TrainState, Progress]:
    """Take the run's last sound checkpoint, or the initial state where there is none.

    Checkpoints after the restored one, damaged or of an abandoned continuation, are set aside.

    Args:
      store: checkpoints of the run.
      config: of this start.
      data: what this start reads.
      step: the checkpoint to take; None takes the newest sound one.

    Returns:
      Definition of the model, the state to continue from, and where the run stands.

    Raises:
      UserError: there is no such checkpoint, or it belongs to a run of another kind.
    """
    store.clean()
    identity = data.dataset.identity()
    if step is None and not store.steps():
        graphdef, state = create_train_state(config, data.scene)
        require_disk_space(store.path.parent, state)
        return graphdef, state, new_progress(identity)
    step = store.sound_step(step)
    saved_config, _, saved_progress = store.read_origin(step)
    RunFolder(store.path.parent).require_same(
        saved_config,
        config,
        saved_dataset=saved_progress["dataset"],
        dataset=identity,
    )
    graphdef, shapes = describe_train_state(config, data.scene)
    state, step, progress = store.restore(step, shapes)
    for later in store.steps():
        if later > step:
            store.set_aside(later)
    return graphdef, state, progress


def describe_train_state(config: Config, scene: SceneSpec) -> tuple[nnx.GraphDef, TrainState]:
    """Build the train state with shapes for arrays: initialising only to restore costs seconds."""
    graphdefs: list[nnx.GraphDef] = []

    def create() -> TrainState:
        graphdef, state = create_train_state(config, scene)
        graphdefs.append(graphdef)
        return state

    shapes = jax.eval_shape(create)
    return graphdefs[0], shapes


def open_loader(config: Config, data: TrainingData, start_step: int) -> Loader:
    """Start reading the training windows from the batch after `start_step` steps."""
    return Loader(
        data.dataset,
        data.windows,
        config.data,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        start_step=start_step,
    )


def device_batches(loader: Loader, count: int, layout: Layout) -> Iterator[Batch]:
    """Copy the loader's next `count` batches to the devices, each when it is asked for."""
    for _, batch in itertools.islice(loader, count):
        yield layout.place_batch(batch)


def compile_step(
    session: Session, train_step: TrainStep, state: TrainState, batch: Batch | None, key: PRNGKey
) -> TrainStep:
    """Compile the step ahead of its first use, so that the time shows as what it is."""
    if batch is None:
        return train_step
    with session.report.compiling("the training step"):
        return compile_ahead(train_step, state, batch, key)


def compile_ahead(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Compile a jitted function for arguments like these."""
    return cast(jax.stages.Wrapped, function).lower(*arguments).compile()


def make_validator(
    session: Session,
    config: Config,
    graphdef: nnx.GraphDef,
    data: TrainingData,
    stop: StopSignals,
    layout: Layout,
) -> Validate:
    """Make the validation of a run: loss on fixed held-out windows with fixed rays.

    Args:
      session: to tell of compilation.
      config: of the run.
      graphdef: of the model.
      data: holds the windows.
      stop: ends a validation early.
      layout: every device computes all of the validation.

    Returns:
      Function from parameters to mean metrics; None if it was stopped.
    """
    validate = make_validate(graphdef)
    windows, limit = data.held_out, config.train.batch_size
    # The largest equal parts that fit in a training batch: one compilation, no more memory.
    size = max((n for n in range(1, limit + 1) if len(windows) % n == 0), default=1)
    parts = [windows[i : i + size] for i in range(0, len(windows), size)]
    length = data.windows.length
    compiled: list[Callable[..., Metrics]] = []

    def run(params: Params) -> dict[str, float] | None:
        results = []
        for number, part in enumerate(parts):
            if stop.received:
                return None
            read = [read_window(data.dataset, *window, length, config.data) for window in part]
            batch = layout.place_everywhere(stack_windows(read))
            key = jax.random.fold_in(jax.random.key(config.train.seed + 1), number)
            key = layout.place_everywhere(key)
            if not compiled:
                with session.report.compiling("the validation step"):
                    compiled.append(compile_ahead(validate, params, batch, key))
            results.append(jax.device_get(compiled[0](params, batch, key)))
        return average_batches(results)

    return run
