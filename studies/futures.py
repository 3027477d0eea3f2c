"""`python -m studies futures`: do sampled futures cover what objects did?

With `model.stochastic` a rollout is one future of several. Windows in which an object moves are
rolled out as the likeliest future and as several samples; the error is the distance of objects'
particles from their true places, in the mean over particles and steps. Each window's numbers are
kept as soon as they are known, so that a study that was stopped goes on where it was.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.statistics import masked_mean, student_interval
from hdvpd.basics.tables import plus_minus
from hdvpd.basics.types import Bool, Float
from hdvpd.data.object_motion import objects_move
from hdvpd.data.store import Dataset
from hdvpd.data.truth import Objects, read_objects
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex
from hdvpd.evaluation.objects import particle_truth
from hdvpd.world.base import World
from hdvpd.world.loading import load
from studies.model_settings import FutureSettings
from studies.outputs import Row, table, write_csv
from studies.resumable import Entry, Kept

COLUMNS = ("likeliest", "mean of samples", "one sample", "best sample", "about their mean")
"""Errors of the rollout without samples, of the samples' mean place, of a sample by itself, of the
sample with the least error; and how far samples are from their mean, which is no error [m]."""


def main(out: Path, settings: FutureSettings) -> None:
    """Write settings.toml, starts.jsonl, futures.csv and futures.md into `out`.

    Raises:
      UserError: `out` holds a study with other settings; run or data set are missing, the model
        cannot be sampled, or in no window of the data set an object is known to move.
    """
    likeliest, sampled = (load(settings.run, stochastic=choice) for choice in (False, True))
    dataset = Dataset(settings.data or likeliest.config.data.paths[0])
    kept = Kept(out, settings, ("starts", "splits"), sampled)
    shown = []
    for episode, start, objects in moving_windows(dataset, settings):
        key: Entry = {"episode": episode, "start": start}
        if key not in kept:
            scores = score_window(likeliest, sampled, dataset, key, objects, settings)
            kept.add(key | {"task": dataset.episode(episode).task} | scores)
            told = [f"{name} {1e3 * value:.1f}" for name, value in scores.items()]
            print(f"episode {episode}, frame {start} [mm]: {', '.join(told)}", flush=True)
        shown += kept.find(key)
    if not shown:
        raise UserError(
            f"in no window of {dataset.path} an object moves whose pose and shape are known; choose"
            " other --starts or --splits, or a data set with objects (docs/data-format.md)."
        )
    rows = summary(shown)
    write_csv(out / "futures.csv", rows)
    text = table(rows).markdown()
    (out / "futures.md").write_text(text)
    print(text)


def moving_windows(
    dataset: Dataset, settings: FutureSettings
) -> Iterator[tuple[int, int, Objects]]:
    """Find the windows in which an object moves.

    Yields:
      Episode, first frame and objects.

    Raises:
      UserError: a split has no episode that is long enough.
    """
    length = OBSERVED_FRAMES + settings.horizon
    starts = [int(start) for start in settings.starts.split(",")]
    for split in settings.splits.split(","):
        index = WindowIndex(dataset, split, length)
        for episode, start in (index[number] for number in range(len(index))):
            objects = read_objects(dataset, episode, start, length) if start in starts else None
            if objects and objects_move(objects, OBSERVED_FRAMES - 1, length):
                yield episode, start, objects


def score_window(
    likeliest: World,
    sampled: World,
    dataset: Dataset,
    window: Entry,
    objects: Objects,
    settings: FutureSettings,
) -> Entry:
    """Roll out one window, once without and several times with samples.

    Args:
      likeliest: the model.
      sampled: the same with `model.stochastic`.
      dataset: to read from.
      window: its episode and start.
      objects: during the window.
      settings: of the study.

    Returns:
      `COLUMNS`, NaN where no particle lies on an object [m].
    """
    episode, start = window["episode"], window["start"]
    state = likeliest.state_from(dataset, episode, start)
    points = likeliest.recorded_points(dataset, episode, start, settings.horizon)
    truth = particle_truth(state.current, objects, np.asarray(points.positions))

    def places(world: World, seed: int) -> Float[np.ndarray, "s n 3"]:
        return np.asarray(
            world.rollout_points(state, points, features=False, seed=seed).positions, np.float64
        )

    samples = np.stack([places(sampled, settings.seed + n) for n in range(settings.samples)])
    own = truth.moved | truth.untouched
    return scores(places(likeliest, settings.seed), samples, truth.places, own)


def scores(
    likeliest: Float[np.ndarray, "s n 3"],
    samples: Float[np.ndarray, "k s n 3"],
    truth: Float[np.ndarray, "s n 3"],
    own: Bool[np.ndarray, "n"],
) -> Entry:
    """Compare futures with what happened.

    Args:
      likeliest: places of particles without samples [m].
      samples: places in each sample [m].
      truth: where they truly are [m].
      own: which of them are judged.

    Returns:
      `COLUMNS`, NaN without a particle that is judged [m].
    """
    if not own.any():
        return dict.fromkeys(COLUMNS, float("nan"))

    def apart(places: Float[np.ndarray, "*k s n 3"], others: Float[np.ndarray, "s n 3"]) -> Any:
        return np.linalg.norm(places - others, axis=-1)[..., own].mean((-2, -1))

    mean, errors = samples.mean(0), apart(samples, truth)
    values = (
        apart(likeliest, truth), apart(mean, truth), errors.mean(), errors.min(),
        apart(samples, mean).mean(),
    )  # fmt: skip
    return dict(zip(COLUMNS, map(float, values), strict=True))


def summary(entries: Sequence[Entry]) -> list[Row]:
    """Return a row per task, all of them, and all minus the likeliest future [mm].

    An episode's windows count as one; its interval is Student's over episodes.
    """
    rows = []
    for task in [*sorted({entry["task"] for entry in entries}), ""]:
        own = [entry for entry in entries if task in ("", entry["task"])]
        rows.append(_row(task or "all", own, _by_episode(own)))
    values = _by_episode(entries)
    rows.append(_row("all, minus likeliest", entries, values - values[:, :1], sign=True))
    rows[-1]["about their mean"] = ""
    return rows


def _row(
    name: str, entries: Sequence[Entry], values: Float[np.ndarray, "e c"], *, sign: bool = False
) -> Row:
    mean, half = student_interval(1e3 * values)
    digits = 2 if sign else 1
    cells = [plus_minus(m, h, digits, sign=sign) for m, h in zip(mean, half, strict=True)]
    counted = {"[mm]": name, "windows": len(entries), "episodes": len(values)}
    return counted | dict(zip(COLUMNS, cells, strict=True))


def _by_episode(entries: Sequence[Entry]) -> Float[np.ndarray, "e c"]:
    """Return an episode's mean over its windows."""
    episodes = dict.fromkeys(entry["episode"] for entry in entries)
    means = []
    for episode in episodes:
        own = [[e[name] for name in COLUMNS] for e in entries if e["episode"] == episode]
        means.append(masked_mean(np.array(own), 0))
    return np.array(means)
