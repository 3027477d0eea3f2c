"""`python -m studies spreads`: learn how far what is hidden of things spreads.

With `model.stochastic` where a thing's weight rests, how it resists turning and when it is touched
are drawn from a prior, `model.hidden_spreads`. Here its spreads are learned from recordings whose
objects are known: windows in which one moves are rolled out with wider draws, and the spreads are
those under which what happened is likeliest (`learn_spreads`). They are judged on other episodes by
the energy score (Gneiting and Raftery, JASA 2007), which is least for the distribution that is
true. Each window's numbers are kept as soon as they are known, so that a study that was stopped
goes on where it was.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.statistics import student_interval
from hdvpd.basics.tables import plus_minus
from hdvpd.basics.types import Array, Float, ParticleCloud, RobotPoints
from hdvpd.data.store import Dataset
from hdvpd.data.truth import Objects
from hdvpd.dynamics.base import Known
from hdvpd.evaluation.objects import particle_truth
from hdvpd.model import Model, abstract_model
from hdvpd.training.step import merge_model
from hdvpd.world.base import World
from hdvpd.world.loading import load
from studies.futures import moving_windows
from studies.model_settings import SpreadSettings
from studies.outputs import Row, table, write_csv
from studies.resumable import Entry, Kept

WIDER = 2.0
"""Draws are so much wider than the run's spreads, and learned spreads are at most as wide."""
_POSE = 3
"""Degrees of freedom of a thing on a plane: with so many, an error of e has the likelihood
exp(-e / s) / s^3, whose tails let a window be that no draw explains."""
_ROUNDS = 200
_LEAST = 0.02
"""Share of the proposal's spread that a learned one has at least: the draws hold none nearer."""


def main(out: Path, settings: SpreadSettings) -> None:
    """Write settings.toml, starts.jsonl, spreads.csv and spreads.md into `out`.

    Raises:
      UserError: `out` holds a study with other settings; run or data set are missing, the model
        cannot be sampled, or in no window of the data set an object is known to move.
    """
    world = _proposing(load(settings.run, stochastic=True), settings.particles)
    dataset = Dataset(settings.data or world.config.data.paths[0])
    kept = Kept(out, settings, ("starts",), world)
    roll = _compiled(world.model)
    found: dict[str, list[Entry]] = {"learn": [], "judge": []}
    for use, splits in (("learn", settings.splits), ("judge", settings.judged)):
        chosen = dataclasses.replace(settings, splits=splits)
        for episode, start, objects in moving_windows(dataset, chosen):
            key: Entry = {"episode": episode, "start": start}
            if key not in kept:
                scores = _score(world, roll, dataset, key, objects, settings)
                kept.add(key | {"task": dataset.episode(episode).task} | scores)
                print(f"{use} episode {episode}, frame {start}", flush=True)
            found[use] += [entry for entry in kept.find(key) if entry["errors"]]
        if not found[use]:
            raise UserError(
                f"in no window of the splits {splits} of {dataset.path} an object moves whose pose "
                "and shape are known; choose other --starts, --splits or --judged, or a data set "
                "with objects (docs/data-format.md)."
            )
    rows = summary(found["learn"], found["judge"], world.config.model.hidden_spreads)
    write_csv(out / "spreads.csv", rows)
    text = table(rows).markdown()
    (out / "spreads.md").write_text(text)
    print(text)


def _proposing(world: World, particles: int) -> World:
    """Return the same model with so many particles and wider draws."""
    wider = tuple(WIDER * spread for spread in world.config.model.hidden_spreads)
    kind = dataclasses.replace(
        world.config.model,
        num_particles=particles or world.config.model.num_particles,
        hidden_spreads=wider,
    )
    config = dataclasses.replace(world.config, model=kind)
    graphdef = nnx.graphdef(abstract_model(config, world.scene))
    model = merge_model(graphdef, nnx.to_pure_dict(nnx.state(world.model)))
    return World(model, config, world.scene, world.step, world.folder, world.setup)


def _compiled(model: Model) -> Any:
    """Compile the rollout of several futures, and what was drawn for each, per particle."""
    graphdef, params = nnx.split(model)

    @jax.jit
    def roll(
        params: Any, previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, keys: Any
    ) -> tuple[Array, Known | None]:
        model = nnx.merge(graphdef, params)

        def one(key: Any) -> tuple[Array, Known | None]:
            known = model.know(current, robot, jax.random.clone(key))
            return model.rollout(previous, current, robot, key, known).positions, known

        return jax.lax.map(one, keys)

    return lambda *arguments: roll(params, *arguments)


def _score(
    world: World,
    roll: Any,
    dataset: Dataset,
    window: Entry,
    objects: Objects,
    settings: SpreadSettings,
) -> Entry:
    """Roll one window out several times.

    Returns:
      What was drawn for the thing that has the most of the particles that move (k, 5), in units of
      the proposal; the mean error of its particles in each future (k,) and how far they are from
      each other's (k, k) [m]; all empty where no particle of a thing lies on an object that moves.
    """
    episode, start = window["episode"], window["start"]
    state = world.state_from(dataset, episode, start)
    points = world.recorded_points(dataset, episode, start, settings.horizon)
    robot = jax.tree.map(lambda seen, planned: np.concatenate([seen, planned]), state.robot, points)
    truth = particle_truth(state.current, objects, np.asarray(points.positions))
    keys = jax.random.split(world.keys(episode, start, settings.seed)[1], settings.samples)
    positions, known = jax.device_get(roll(state.previous, state.current, robot, keys))
    unseen = known.unseen
    drawn = np.concatenate(
        [unseen.middle, unseen.turning[..., None], unseen.margin_m[..., None]], axis=-1
    )
    # Of one thing all particles have the same draw, and those of none have 0.
    values, counts = np.unique(drawn[0, truth.moved, 3], return_counts=True)
    counts = np.where(values == 0, 0, counts)
    if not counts.any():
        return {"draws": [], "errors": [], "apart": []}
    own = truth.moved & (drawn[0, :, 3] == values[counts.argmax()])
    middle, turning, margin_m = world.config.model.hidden_spreads
    draws = drawn[:, own.argmax()] / [middle, middle, middle, turning, margin_m]
    places = np.asarray(positions, np.float64)[:, :, own]
    errors = np.linalg.norm(places - truth.places[:, own], axis=-1).mean((-2, -1))
    apart = [np.linalg.norm(places - other, axis=-1).mean((-2, -1)) for other in places]
    rounded = {"draws": np.round(draws, 4), "errors": np.round(errors, 6)}
    return {k: v.tolist() for k, v in (rounded | {"apart": np.round(apart, 6)}).items()}


def learn_spreads(
    draws: Float[Array, "w k 5"], errors: Float[Array, "w k"]
) -> Float[np.ndarray, "3"]:
    """Return the spreads under which recorded windows are likeliest, by expectation maximisation.

    The likelihood of a window is the mean over its draws z, of a standard normal proposal, of
    N(z; 0, diag(s^2)) / N(z; 0, 1) exp(-e / a) / a^3, whose scale a is learned with the spreads s.
    The three directions of `middle` have one spread.

    Args:
      draws: of every window's futures: `middle`, `turning` and `margin_m`.
      errors: of these futures [m].

    Returns:
      Spreads of `middle`, `turning` and `margin_m`, in units of the proposal's, at most 1.
    """
    draws, errors = np.asarray(draws, np.float64), np.asarray(errors, np.float64)
    spreads, scale = np.full(3, 1 / WIDER), max(float(errors.min(1).mean()), 1e-6)
    for _ in range(_ROUNDS):
        explains = _softmax(_log_ratio(draws, spreads) - errors / scale)
        squares = np.einsum("wk,wkd->d", explains, draws**2) / len(draws)
        squares = np.asarray([squares[:3].mean(), *squares[3:]])
        spreads = np.clip(np.sqrt(squares), _LEAST, 1.0)
        scale = max(float(np.sum(explains * errors)) / (len(draws) * _POSE), 1e-6)
    return spreads


def energy_score(
    draws: Float[Array, "w k 5"],
    errors: Float[Array, "w k"],
    apart: Float[Array, "w k k"],
    spreads: Float[Array, "3"],
) -> tuple[Float[np.ndarray, "w"], Float[np.ndarray, "w"]]:
    """Score futures drawn with some spreads, from those that were drawn with the proposal's.

    Args:
      draws: as of `learn_spreads`.
      errors: mean distance of a future's particles from where they truly are [m].
      apart: mean distance of two futures' particles [m].
      spreads: as of `learn_spreads`.

    Returns:
      Energy scores, E|x - y| - E|x - x'| / 2, and errors of single futures, E|x - y| [m].
    """
    weights = _softmax(_log_ratio(np.asarray(draws, np.float64), np.asarray(spreads)))
    single = np.sum(weights * np.asarray(errors), axis=1)
    pairs = weights[:, :, None] * weights[:, None, :] * (1 - np.eye(weights.shape[1]))
    between = np.sum(pairs * np.asarray(apart), axis=(1, 2)) / np.sum(pairs, axis=(1, 2))
    return single - between / 2, single


def _log_ratio(
    draws: Float[np.ndarray, "w k 5"], spreads: Float[np.ndarray, "3"]
) -> Float[np.ndarray, "w k"]:
    """Return ln N(z; 0, diag(s^2)) - ln N(z; 0, 1)."""
    each = spreads[[0, 0, 0, 1, 2]]
    return np.sum(0.5 * draws**2 * (1 - each**-2.0) - np.log(each), axis=-1)


def _softmax(logarithms: Float[np.ndarray, "w k"]) -> Float[np.ndarray, "w k"]:
    shares = np.exp(logarithms - logarithms.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def summary(
    learning: Sequence[Entry], judged: Sequence[Entry], proposed: tuple[float, float, float]
) -> list[Row]:
    """Return a row for the run's spreads and one for the learned ones, judged on other windows.

    Args:
      learning: windows to learn from.
      judged: others.
      proposed: spreads of the draws.
    """

    def stacked(entries: Sequence[Entry], name: str) -> np.ndarray:
        return np.asarray([entry[name] for entry in entries])

    learned = learn_spreads(stacked(learning, "draws"), stacked(learning, "errors"))
    draws, errors, apart = (stacked(judged, name) for name in ("draws", "errors", "apart"))
    own = np.full(3, 1 / WIDER)
    before = energy_score(draws, errors, apart, own)[0]
    rows = []
    for name, spreads in (("the run's", own), ("learned", learned)):
        energy, single = energy_score(draws, errors, apart, spreads)
        ahead, half = student_interval(1e3 * (energy - before)[:, None])
        middle, turning, margin_m = spreads * proposed
        rows.append(
            {
                "spreads": name,
                "middle [radii]": f"{middle:.3g}",
                "turning [ln]": f"{turning:.3g}",
                "margin [mm]": f"{1e3 * margin_m:.3g}",
                "windows learned from": len(learning),
                "windows judged": len(judged),
                "energy score [mm]": f"{1e3 * energy.mean():.2f}",
                "minus the run's": plus_minus(float(ahead[0]), float(half[0]), 2, sign=True),
                "single future [mm]": f"{1e3 * single.mean():.2f}",
            }
        )
    return rows
