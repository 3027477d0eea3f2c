"""What every predictor says about a held-out window.

The predictors (`curves.PREDICTORS`), all scored on the same whitened frames:

- model: the particles encoded from the two observed frames, moved by the planned actions;
- static_render: the same particles of the last observed frame, rendered without moving them;
- copy_last_frame: the whitened last observed frame itself;
- kinematics_only: the particles of the last observed frame, carried along with the planned robot;
- zero_actions: the model, told that the robot stays where it was last observed;
- shuffled_actions: the model with the plan of another episode.

Each part is compiled once per kind of model, all of them beside each other. Observed frames are
encoded once per window, each plan is rolled out in one call, and one more renders all clouds of all
predictors from all cameras; what does not move is rendered once per camera that stands still.
Random is only the choice of particles, a function of seed, episode and start frame.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import (
    Array,
    Batch,
    Camera,
    Float,
    ParticleCloud,
    PRNGKey,
    RobotPoints,
)
from hdvpd.data.truth import Objects
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.evaluation.controls import carry_particles, hold_still, replace_plan
from hdvpd.evaluation.scoring import WindowScores, score_window
from hdvpd.kernels.together import compiling_beside
from hdvpd.model.compiled import CompiledModel, lower

Tree = TypeVar("Tree")

RECONSTRUCTION = "reconstruction"
"""The last observed frame, rendered from its own particles."""


Images = dict[str, np.ndarray]
"""Pictures by predictor, axes (s v h w) or (s v h w 3)."""


@dataclass(frozen=True)
class WindowResult:
    """Scores and pictures of one window.

    Attributes:
      scores: of all predictors.
      truth: whitened frames, the two observed ones first.
      prediction: the model's frames.
      clouds: particles of every frame, encoded for the observed ones; axes (f).
    """

    scores: WindowScores
    truth: Float[np.ndarray, "f v h w 3"]
    prediction: Float[np.ndarray, "s v h w 3"]
    clouds: ParticleCloud


def _at(tree: Tree, index: int) -> Tree:
    return jax.tree.map(lambda x: x[index], tree)


def window_keys(seed: int, batch: Batch) -> tuple[PRNGKey, PRNGKey]:
    """Return the keys of a window's particles and rollout, functions of seed, episode and start."""
    key = jax.random.fold_in(jax.random.key(seed), int(batch.episode))
    encode_key, rollout_key = jax.random.split(jax.random.fold_in(key, int(batch.start)))
    return encode_key, rollout_key


def predict_clouds(
    compiled: CompiledModel,
    observed: ParticleCloud,
    robot: RobotPoints,
    lent: RobotPoints | None,
    *,
    controls: Sequence[str],
    key: PRNGKey,
) -> dict[str, ParticleCloud]:
    """Predict the particles of the model and of every control that moves them.

    Args:
      compiled: the model.
      observed: clouds at -2 and -1, axes (2).
      robot: of the window, axes (2 + s).
      lent: the robot of the window that lends its plan, if `shuffled_actions` is asked for.
      controls: what is asked for.
      key: draws what the dynamics draws, alike for every plan, so that only the actions differ.

    Returns:
      Clouds by predictor, axes (s).
    """

    def roll_out(plan: RobotPoints) -> ParticleCloud:
        return compiled.rollout(observed, plan, jax.random.clone(key))

    clouds = {"model": roll_out(robot)}
    for control in controls:
        match control:
            case "kinematics_only":
                clouds[control] = carry_particles(_at(observed, 0), _at(observed, 1), robot)
            case "zero_actions":
                clouds[control] = roll_out(hold_still(robot))
            case "shuffled_actions":
                if lent is None:
                    raise ValueError(f"{control} needs a plan.")
                clouds[control] = roll_out(replace_plan(robot, lent))
    return clouds


def render_clouds(
    compiled: CompiledModel,
    moving: Mapping[str, ParticleCloud],
    resting: Mapping[str, ParticleCloud],
    camera: Camera,
    seen: tuple[ParticleCloud, Camera] | None = None,
) -> tuple[Images, Images]:
    """Render the clouds of all predictors from every camera, in one call.

    Args:
      compiled: the model.
      moving: clouds by predictor, axes (s).
      resting: one cloud by predictor, shown at every step; rendered once if all cameras rest too.
      camera: axes (s v).
      seen: particles of an observed frame and its cameras, axes (v): called `RECONSTRUCTION`. Not
        rendered again where they are a resting cloud and the cameras rest, too.

    Returns:
      Colours by predictor, axes (s v h w 3), and planar depth [m], axes (s v h w).
    """
    steps = camera.intrinsics.shape[0]
    shown = 1 if _stands_still(camera) else steps
    some = jax.tree.map(lambda x: x[:shown], camera)
    repeated = [_repeated(cloud, shown) for cloud in resting.values()]
    twin = _twin(resting, some, seen)
    observed = [] if seen is None or twin else [_repeated(seen)]
    rendering = compiled.render(
        _concatenate([*moving.values(), *repeated, *(cloud for cloud, _ in observed)]),
        _concatenate([camera] * len(moving) + [some] * len(resting) + [c for _, c in observed]),
    )
    counts = [steps] * len(moving) + [shown] * len(resting) + [1] * len(observed)
    names, ends = [*moving, *resting, *[RECONSTRUCTION] * len(observed)], np.cumsum(counts)[:-1]

    def by_predictor(images: Array) -> Images:
        parts = np.split(np.asarray(images), ends)
        every_step = [np.broadcast_to(x, (steps, *x.shape[1:])) for x in parts]
        found = dict(zip(names, every_step, strict=True))
        return {**found, RECONSTRUCTION: found[twin]} if twin else found

    return by_predictor(rendering.rgb), by_predictor(rendering.depth_m)


def _twin(
    resting: Mapping[str, ParticleCloud], shown: Camera, seen: tuple[ParticleCloud, Camera] | None
) -> str | None:
    """Return whose pictures are those of what was seen: the same cloud before the same cameras."""
    if seen is None or not _stands_still(_concatenate([shown, _repeated(seen[1])])):
        return None
    return next((name for name, cloud in resting.items() if cloud is seen[0]), None)


def _repeated(tree: Tree, times: int = 1) -> Tree:
    return jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (times, *x.shape)), tree)


def _concatenate(trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *trees)


def _stands_still(camera: Camera) -> bool:
    return all(bool(np.all(leaf == leaf[:1])) for leaf in jax.tree.leaves(camera))


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a window.

    Attributes:
      observed: encoded clouds, axes (2).
      clouds: by predictor that moves them, axes (s).
      rgb: pictures by predictor, and of the last observed frame.
      depth_m: likewise, planar.
    """

    observed: ParticleCloud
    clouds: dict[str, ParticleCloud]
    rgb: Images
    depth_m: Images


def predict_window(
    compiled: CompiledModel,
    batch: Batch,
    lent: RobotPoints | None,
    *,
    controls: Sequence[str],
    seed: int,
) -> Prediction:
    """Let the model and its controls predict one window; arguments as of `evaluate_window`."""
    encode_key, rollout_key = window_keys(seed, batch)
    frames, robot = _until((batch.frames, batch.robot), OBSERVED_FRAMES)
    observed = compiled.encode(frames, robot, encode_key)
    clouds = predict_clouds(
        compiled, observed, batch.robot, lent, controls=controls, key=rollout_key
    )
    now = OBSERVED_FRAMES - 1
    seen = _at(observed, now), _at(batch.frames.camera, now)
    resting = {"static_render": seen[0]} if "static_render" in controls else {}
    camera = _from(batch.frames.camera, OBSERVED_FRAMES)
    return Prediction(observed, clouds, *render_clouds(compiled, clouds, resting, camera, seen))


def compile_window(
    compiled: CompiledModel,
    batch: Batch,
    lent: RobotPoints | None,
    *,
    controls: Sequence[str],
    seed: int,
) -> None:
    """Compile what `predict_window` calls, each part beside the tracing of those after it.

    The window is gone through with the shapes of what each part returns; nothing is computed but
    the carried control.
    """
    shapes: dict[str, Any] = {}
    with compiling_beside() as compile_:

        def rehearsed(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                if name not in shapes:
                    program = lower(part, *given)
                    compile_(program)
                    shapes[name] = program.out_info
                return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes[name])

            return call

        names = [part.name for part in dataclasses.fields(compiled)]
        parts = {name: rehearsed(name, getattr(compiled, name)) for name in names}
        predict_window(CompiledModel(**parts), batch, lent, controls=controls, seed=seed)


def evaluate_window(
    compiled: CompiledModel,
    batch: Batch,
    lent: RobotPoints | None,
    *,
    controls: Sequence[str],
    seed: int,
    moving_threshold: float,
    objects: Objects | None = None,
) -> WindowResult:
    """Let the model and its controls predict one window, and score them.

    Args:
      compiled: the model.
      batch: a window without a batch axis, numpy arrays.
      lent: the robot of the window that lends its plan to the shuffled-action control, if that is
        among the controls.
      controls: what the model is compared with.
      seed: seed of the choice of particles.
      moving_threshold: see `metrics.moving_pixels`.
      objects: during the window, where they are known.

    Returns:
      Scores and pictures.

    Raises:
      UserError: the model predicts something that is not a number.
    """
    truth, visible = (np.asarray(x) for x in compiled.whiten(batch.frames))
    last, future = truth[OBSERVED_FRAMES - 1], truth[OBSERVED_FRAMES:]
    predicted = predict_window(compiled, batch, lent, controls=controls, seed=seed)
    rgb, depth_m = predicted.rgb, predicted.depth_m
    rgb["copy_last_frame"] = np.broadcast_to(last, future.shape)
    images = {name: rgb[name] for name in ("model", *controls)}
    _require_finite(images, batch)
    return WindowResult(
        scores=score_window(
            images,
            depth_m["model"],
            (rgb[RECONSTRUCTION][0], depth_m[RECONSTRUCTION][0]),
            batch,
            (truth, visible),
            moving_threshold=moving_threshold,
            objects=objects,
        ),
        truth=truth,
        prediction=images["model"],
        clouds=_concatenate([predicted.observed, predicted.clouds["model"]]),
    )


def _until(tree: Tree, end: int) -> Tree:
    return jax.tree.map(lambda x: x[:end], tree)


def _from(tree: Tree, start: int) -> Tree:
    return jax.tree.map(lambda x: x[start:], tree)


def _require_finite(images: dict[str, Float[np.ndarray, "s v h w 3"]], batch: Batch) -> None:
    # A score of NaN means "nothing to score" further on, so it must not come from the model.
    for predictor, image in images.items():
        bad = ~np.isfinite(image).all(axis=(1, 2, 3, 4))
        if bad.any():
            raise UserError(
                f"{predictor}: the image of rollout step {int(np.argmax(bad))} in episode "
                f"{int(batch.episode)} from frame {int(batch.start)} is not finite; this "
                "checkpoint is unusable. Choose an earlier one with --step, or train again."
            )
