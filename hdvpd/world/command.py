"""`hdvpd rollout`: what a model predicts for recorded or other actions, as files."""

import contextlib
import dataclasses
import glob
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, RobotPoints
from hdvpd.data.mixture import open_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.world.actions import read_actions, too_fast
from hdvpd.world.base import World
from hdvpd.world.loading import load
from hdvpd.world.outputs import ROLLOUT_FILE, STATE_FILE, Plan, mean_table, write_index, write_plan
from hdvpd.world.state import State
from hdvpd.world.truth import read_truth, score

RECORDED = "recorded"
_TAKEN = (ROLLOUT_FILE, STATE_FILE, "index.html", ".", "..")
"""What plans' folders cannot be called: the files beside them, and the folder of all."""
_REMEDY = "Free space or permit writing there, and run the same command again."


def roll_out(
    run: Path,
    *,
    episode: int,
    out: Path,
    start: int = 0,
    actions: Sequence[str] = (),
    data: Path | None = None,
    steps: int | None = None,
    checkpoint_step: int | None = None,
) -> None:
    """Roll out recorded actions, or some of the user's own, from two frames of an episode.

    Args:
      run: folder of a run, or its name in `runs/`.
      episode: of the data set; its frames `start` and `start + 1` are observed.
      out: folder of the results; new, or of an earlier rollout, which is replaced.
      start: first observed frame.
      actions: .npy or .csv files of joint targets, or numbers of episodes whose recorded targets
        are taken; none is what the robot did in this episode.
      data: data set; None is that of the training.
      steps: predicted steps; None is all that the actions have, of recorded ones `eval.num_steps`.
      checkpoint_step: which checkpoint; None is the newest sound one.

    Raises:
      UserError: something does not fit; nothing is written then.
    """
    with only_writer(out):
        world = load(run, checkpoint_step)
        dataset = Dataset(data) if data else open_dataset(world.config.data)
        # What may be refused comes before what takes long.
        orders = [
            _order(world, dataset, source, (episode, start), steps)
            for source in actions or (str(episode),)
        ]
        state = world.state_from(dataset, episode, start)
        names = _distinct([order.name for order in orders])
        plans = [
            _plan(world, dataset, state, order, name)
            for order, name in zip(orders, names, strict=True)
        ]
        about = {
            "run": str(world.folder.resolve()),
            "checkpoint": world.step,
            "data": dataset.title,
            "episode": episode,
            "start": start,
            "rate_hz": dataset.rate_hz,
        }
        with replacing(out) as staging:
            for plan in plans:
                write_plan(plan, staging / plan.name, dataset.rate_hz)
            write_index(staging, plans, about)
        for plan in plans:
            if plan.warning:
                print(f"warning: {plan.name}: {plan.warning}")
            if plan.scores:
                mean_table(plan).print()
        print(f"page     {out / 'index.html'}")


@dataclass(frozen=True)
class _Order:
    """What is to be rolled out.

    Attributes:
      name: of the plan.
      source: where it came from, for people.
      targets: joint targets, or None for what the robot did, which needs no robot model.
      points: planned kinematic points, where there are no targets.
    """

    name: str
    source: str
    targets: Float[np.ndarray, "s j"] | None
    points: RobotPoints | None = None


def _order(
    world: World, dataset: Dataset, source: str, window: tuple[int, int], steps: int | None
) -> _Order:
    if not source.isdecimal():
        return _Order(Path(source).stem, source, read_actions(Path(source), world.robot, steps))
    number, (episode, start) = int(source), window
    length = dataset.episode(number).length
    most = min(world.config.eval.num_steps, max(length - start - 2, 1))
    count = most if steps is None else steps
    if number == episode:
        points = world.recorded_points(dataset, number, start, count)
        return _Order(RECORDED, "what the robot did", None, points)
    targets = world.recorded_targets(dataset, number, start, count)
    return _Order(f"episode-{number}", f"targets of episode {number}", targets)


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that are there already, as of files in other folders or of the page."""
    taken: list[str] = []
    for name in names:
        numbered = (f"{name}-{k}" for k in itertools.count(2))
        is_free = name not in (*taken, *_TAKEN)
        free = name if is_free else next(n for n in numbered if n not in (*taken, *names))
        taken.append(free)
    return taken


def _plan(world: World, dataset: Dataset, state: State, order: _Order, name: str) -> Plan:
    """Roll out and score."""
    warning, truth = "", None
    if order.points is not None:
        future = world.rollout_points(state, order.points)
        truth = read_truth(world, dataset, state.episode, state.start, len(future))
        went = jax.tree.map(lambda x: x[OBSERVED_FRAMES:], truth.camera)
        future = dataclasses.replace(future, seen_from=went)
    else:
        assert order.targets is not None
        future = world.rollout(state, order.targets)
        if world.setup is not None and state.joints is not None:
            warning = too_fast(world.setup, state.joints[-1], order.targets)
    images = {camera: future.images(camera) for camera in state.cameras}
    threshold = world.config.eval.moving_threshold
    return Plan(
        name=name,
        source=order.source,
        future=future,
        images=images,
        truth=truth,
        scores=score(truth, list(images.values()), tuple(images), threshold) if truth else (),
        warning=warning,
    )


@contextlib.contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Refuse a folder that holds anything but an earlier rollout, or that another process fills.

    Raises:
      UserError: it does, or the folder cannot be replaced for it has no name of its own.
    """
    if out.name in ("", ".."):
        raise UserError(f"--out {out} is written aside and renamed; give a folder by its name.")
    if out.exists() and not (
        out.is_dir() and ((out / "rollout.json").is_file() or not any(out.iterdir()))
    ):
        raise UserError(
            f"--out {out} exists and is no earlier rollout; choose a new folder, or remove it."
        )
    refusal = (
        f"Another process is writing --out {out}. Wait for it, stop it, or choose another folder."
    )
    with files.locked(out.with_name(f"{files.LOCK}-{out.name}"), refusal, _REMEDY):
        yield


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `out` when the block ends well, and vanishes if not."""
    staging = out.with_name(f".partial-{out.name}-{os.getpid()}")
    with files.explain_write_errors(out, _REMEDY):
        for left in out.parent.glob(f".partial-{glob.escape(out.name)}-*"):  # of killed processes
            if left.name.rpartition("-")[0] == f".partial-{out.name}":  # no other name's beginning
                shutil.rmtree(left, ignore_errors=True)
        try:
            staging.mkdir(parents=True)
            yield staging
            old = out.with_name(f".old-{out.name}-{os.getpid()}")
            if out.exists():
                out.rename(old)
            staging.rename(out)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
