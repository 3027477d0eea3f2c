"""Train a model: `main` takes a finished configuration and fills a run folder.

Exactness: parameters, optimiser, data order and ray choice are functions of the seed and the step
count, and a checkpoint carries the step count, the position in the data and the metrics not yet
logged. So a run that was stopped and resumed ends, on a CPU, with the same bytes in its parameters
and in `metrics.jsonl` as one that was not.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import jax
import jax.numpy as jnp
import jax.stages
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import keep_freed_memory, settle_memory
from hdvpd.basics.types import Batch, PRNGKey
from hdvpd.config import Config, SceneSpec
from hdvpd.data.loader import Loader
from hdvpd.data.mixture import open_dataset
from hdvpd.data.object_motion import moving_windows
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_window
from hdvpd.kernels.kept_programs import keep_programs
from hdvpd.kernels.together import Lower, compile_together
from hdvpd.model.compiled import compile_model
from hdvpd.training.first_look import require_something
from hdvpd.training.interrupts import StopSignals
from hdvpd.training.parallel import Layout, make_layout, offer_cores
from hdvpd.training.preflight import wants_preflight
from hdvpd.training.processes import Team
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import Session
from hdvpd.training.starting import start_or_restore
from hdvpd.training.step import (
    Params,
    TrainState,
    TrainStep,
    make_train_step,
    merge_model,
)
from hdvpd.training.validation import Validation

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
    offer_cores(config.train)
    team = Team.here()
    run = team.together(lambda: RunFolder.find_to_train(Path(run_dir), resume, step))
    data, layout = team.together(lambda: (open_data(config), make_layout(config.train)))
    with StopSignals() as stop, contextlib.ExitStack() as opened:
        team.together(lambda: opened.enter_context(run.lock()) if team.primary else None)
        store = run.checkpoints(config.train.keep_checkpoints)
        graphdef, state, progress = start_or_restore(
            store, config, data.dataset, step, team, layout
        )
        # What the other processes would write into the run's folder is the primary's to write.
        aside = contextlib.nullcontext(run.path) if team.primary else TemporaryDirectory()
        path = Path(opened.enter_context(aside))
        session = team.together(
            lambda: Session(
                path, config, data.scene, store, progress, team, spread=layout.spans_processes
            )
        )
        opened.callback(session.close)
        part = layout.slice_of(team.number, config.train.batch_size)
        loader = open_loader(config, data, session.step, part, stop)
        opened.callback(loader.close)
        step_of = (make_step or make_train_step)(config, graphdef)
        run_steps(
            session,
            config,
            data,
            layout,
            loader,
            stop,
            (graphdef, layout.place_state(state), step_of),
        )
        interrupted = team.any(stop.received is not None)
    if interrupted:
        raise SystemExit(stop.exit_status or 143)


def run_steps(
    session: Session,
    config: Config,
    data: TrainingData,
    layout: Layout,
    loader: Loader,
    stop: StopSignals,
    model: tuple[nnx.GraphDef, TrainState, TrainStep],
) -> None:
    """Take the steps that are left, and do what is due after each."""
    graphdef, state, train_step = model
    batches = device_batches(loader, config.train.num_steps - session.step, layout)
    batch = next(batches, None)
    key = layout.place_everywhere(jax.random.key(config.train.seed))
    held_out = data.dataset, data.held_out
    validate = Validation(session, config, graphdef, *held_out, stop, layout)
    if batch is not None and session.step == 0:
        read = data.dataset, data.windows, data.scene
        require_something(layout.local(batch), *read, config, session.team)
    if batch is not None:
        due = validate if data.held_out else None
        train_step = compile_ahead(session, train_step, (state, batch, key), due)
    session.begin(data.dataset, None if batch is None else layout.local(batch))
    stopping = session.team.any(stop.received is not None)
    if batch is not None and not stopping and wants_preflight(config.train, session.step):
        first = batch
        parts: dict[str, Callable[[], Any]] = {
            "training step": lambda: train_step(jax.tree.map(jnp.copy, state), first, key)
        }
        if data.held_out:
            parts["validation"] = lambda: validate(state.params)
        params = layout.gather(state.params)
        parts["rollout with an image"] = lambda: roll_out(config, graphdef, params, data)
        session.preflight(parts, state)
    session.do_due(state, validate)
    # All ask, also one whose data no longer come: the others would wait for its answer.
    while not session.team.any(stop.received is not None) and batch is not None:
        begin, waited = time.perf_counter(), loader.data_wait_s
        with jax.transfer_guard("disallow"):
            state, metrics = train_step(state, batch, key)
        batch = next(batches, None)  # read and copied while the device computes
        metrics = jax.device_get(metrics)
        seconds, data_wait_s = time.perf_counter() - begin, loader.data_wait_s - waited
        drawn = data.windows.sample(config.train.seed, session.step, config.train.batch_size)
        windows = [data.dataset.window_id(*window) for window in drawn]
        session.count(metrics, windows=windows, seconds=seconds, data_wait_s=data_wait_s)
        session.do_due(state, validate)
    interrupted = session.team.any(stop.received is not None)
    session.finish(state, validate, interrupted=interrupted)


def roll_out(config: Config, graphdef: nnx.GraphDef, params: Params, data: TrainingData) -> Any:
    """Roll the first window out and render one image of it, as evaluation does.

    Returns:
      The image, axes (g v h w).
    """
    model = merge_model(graphdef, jax.device_get(params))
    compiled = compile_model(model)
    window = read_window(data.dataset, *data.windows[0], data.windows.length, config.data)
    frames, robot = jax.tree.map(lambda x: x[:OBSERVED_FRAMES], (window.frames, window.robot))
    camera = jax.tree.map(lambda x: x[-1:, :1], window.frames.camera)
    clouds = compiled.encode(frames, robot, jax.random.key(0))
    clouds = compiled.rollout(clouds, window.robot, jax.random.key(1))
    return compiled.render(jax.tree.map(lambda x: x[-1:], clouds), camera)


def open_data(config: Config) -> TrainingData:
    """Open the data set and list the windows of training and validation.

    Raises:
      UserError: the data set is missing or damaged, a split is empty, or episodes are too short.
    """
    dataset = open_dataset(config.data)
    length = OBSERVED_FRAMES + config.train.horizon
    held_out: list[tuple[int, int]] = []
    if config.train.validate_every:
        index = WindowIndex(dataset, "validation", length)
        count = min(config.train.validation_windows, len(index))
        held_out = index.sample(config.train.seed, 0, count)
    windows = WindowIndex(dataset, "train", length, config.data.weights)
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
            f"in the {len(windows)} training windows of {dataset.title} none does. Use 0."
        )
    print(
        f"windows  {len(moving)} of {len(windows)} with a moving object: {share:.0%} of the draws"
    )
    windows.favour(moving, share)


def open_loader(
    config: Config, data: TrainingData, start_step: int, part: slice, stop: StopSignals
) -> Loader:
    """Start reading this process's part of each batch, from that after `start_step` steps on.

    A signal ends the wait for data that do not come: what is to be saved is there.
    """
    return Loader(
        data.dataset,
        data.windows,
        config.data,
        batch_size=config.train.batch_size,
        seed=config.train.seed,
        start_step=start_step,
        part=part,
        stopped=lambda: stop.received is not None,
    )


def device_batches(loader: Loader, count: int, layout: Layout) -> Iterator[Batch]:
    """Copy the loader's next `count` batches to the devices, each when it is asked for."""
    for _, batch in itertools.islice(loader, count):
        yield layout.place_batch(batch)


def compile_ahead(
    session: Session,
    train_step: TrainStep,
    arguments: tuple[TrainState, Batch, PRNGKey],
    validation: Validation | None,
) -> TrainStep:
    """Compile step and validation ahead of their first use, so that the time shows as what it is.

    Args:
      session: tells the user.
      train_step: the jitted step.
      arguments: of its first call.
      validation: is told what was compiled for it; None if the run never validates.

    Returns:
      The compiled step.
    """
    lower: list[Lower] = [lambda: cast(jax.stages.Wrapped, train_step).lower(*arguments)]
    what = "the training step"
    if validation is not None:
        lower.append(functools.partial(validation.lower, arguments[0].params))
        what += " and the validation"
    with session.report.compiling(what):
        compiled: list[Any] = compile_together(lower)
    settle_memory()
    if validation is not None:
        validation.compiled = compiled[1]
    return compiled[0]
