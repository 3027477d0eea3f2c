"""What every predictor says about a held-out window, and how it scores.

The predictors (`curves.PREDICTORS`), all scored on the same whitened frames:

- model: the particles encoded from the two observed frames, moved by the planned actions;
- static_render: the same particles of the last observed frame, rendered without moving them;
- copy_last_frame: the whitened last observed frame itself;
- kinematics_only: the particles of the last observed frame, carried along with the planned robot;
- zero_actions: the model, told that the robot stays where it was last observed;
- shuffled_actions: the model with the plan of another episode.

Everything is compiled once per kind of model and called for every window, step and camera;
observed frames are encoded once per window, the static particles rendered once per camera that
stands still, and a plan equal to the window's own is not rolled out again. Random is only the
choice of particles, a function of seed, episode and start frame.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.encoders.particles import visible_points
from hdvpd.errors import UserError
from hdvpd.evaluation.controls import carry_particles, hold_still, replace_plan
from hdvpd.evaluation.metrics import depth_errors, moving_pixels, score_frame
from hdvpd.model import Model, render_image
from hdvpd.types import (
    Array,
    Batch,
    Bool,
    Camera,
    Float,
    ParticleCloud,
    PRNGKey,
    Rendering,
    RgbdFrames,
    RobotPoints,
)

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class CompiledModel:
    """The jitted parts of a model.

    Attributes:
      encode: (frames of one time with axes (v), key) -> cloud.
      rollout: (cloud at -2, cloud at -1, robot with axes (2 + s), key) -> clouds with axes (s).
      render: (cloud, camera) -> image of the configured size.
      whiten: frames -> whitened colours and the mask of pixels that are not painted white.
    """

    encode: Callable[[RgbdFrames, PRNGKey], ParticleCloud]
    rollout: Callable[[ParticleCloud, ParticleCloud, RobotPoints, PRNGKey], ParticleCloud]
    render: Callable[[ParticleCloud, Camera], Rendering]
    whiten: Callable[[RgbdFrames], tuple[Array, Array]]


CompileModel = Callable[[Model], CompiledModel]


@dataclass(frozen=True)
class WindowResult:
    """Scores and pictures of one window.

    Attributes:
      scores: `METRICS` of the model, then of every control.
      depth: `DEPTH_METRICS` of the model.
      truth: whitened frames, the two observed ones first.
      prediction: the model's frames.
      clouds: particles of every frame, encoded for the observed ones; axes (f).
    """

    scores: Float[np.ndarray, "predictors v s 4"]
    depth: Float[np.ndarray, "v s 2"]
    truth: Float[np.ndarray, "f v h w 3"]
    prediction: Float[np.ndarray, "s v h w 3"]
    clouds: ParticleCloud


def compile_model(model: Model) -> CompiledModel:
    """Wrap a model's parts so that each is compiled at its first call and never again.

    Args:
      model: the world model.

    Returns:
      Functions of arrays.
    """
    return make_compiler(model)(model)


def make_compiler(example: Model) -> CompileModel:
    """Make a `compile_model` whose models share their compiled parts.

    Args:
      example: one of the models; the others may differ from it in their parameters only, which are
        passed as arguments, not baked in.

    Returns:
      Function from a model to its functions of arrays.
    """
    graphdef = nnx.graphdef(example)
    scene, config = example.scene, example.config
    size = config.data.height, config.data.width

    @jax.jit
    def encode(state: Any, frames: RgbdFrames, key: PRNGKey) -> ParticleCloud:
        return nnx.merge(graphdef, state).encode(frames, key)

    @jax.jit
    def rollout(
        state: Any,
        previous: ParticleCloud,
        current: ParticleCloud,
        robot: RobotPoints,
        key: PRNGKey,
    ) -> ParticleCloud:
        return nnx.merge(graphdef, state).rollout(previous, current, robot, key)

    @jax.jit
    def render(state: Any, cloud: ParticleCloud, camera: Camera) -> Rendering:
        return render_image(nnx.merge(graphdef, state), cloud, camera, *size)

    @jax.jit
    def whiten(frames: RgbdFrames) -> tuple[Array, Array]:
        box = scene.workspace_min, scene.workspace_max
        _, visible = visible_points(frames.depth_m, frames.camera, *box, config.render.far)
        return example.white_targets(frames), visible

    def bind(model: Model) -> CompiledModel:
        state = nnx.state(model)
        return CompiledModel(
            encode=functools.partial(encode, state),
            rollout=functools.partial(rollout, state),
            render=functools.partial(render, state),
            whiten=whiten,
        )

    return bind


def _at(tree: Tree, index: int | tuple[int, int]) -> Tree:
    return jax.tree.map(lambda x: x[index], tree)


def window_keys(seed: int, batch: Batch) -> tuple[PRNGKey, PRNGKey]:
    """Return the keys of a window's particles and rollout, functions of seed, episode and start."""
    key = jax.random.fold_in(jax.random.key(seed), int(batch.episode))
    encode_key, rollout_key = jax.random.split(jax.random.fold_in(key, int(batch.start)))
    return encode_key, rollout_key


def encode_observed(
    compiled: CompiledModel, batch: Batch, key: PRNGKey
) -> tuple[ParticleCloud, ParticleCloud]:
    """Encode the two observed frames of a window.

    Args:
      compiled: the model.
      batch: a window without a batch axis.
      key: draws the particles.

    Returns:
      The clouds at -2 and -1.
    """
    keys = jax.random.split(key, OBSERVED_FRAMES)
    previous, current = (
        compiled.encode(_at(batch.frames, frame), keys[frame]) for frame in range(OBSERVED_FRAMES)
    )
    return previous, current


def render_clouds(
    compiled: CompiledModel, clouds: list[ParticleCloud], camera: Camera
) -> tuple[Float[np.ndarray, "s v h w 3"], Float[np.ndarray, "s v h w"]]:
    """Render a cloud per step from every camera.

    An image is made anew only if the cloud or the camera is another than the step before.

    Args:
      compiled: the model.
      clouds: one per step; the same object where nothing moves.
      camera: axes (s v).

    Returns:
      Colours in [0, 1] and planar depth [m].
    """
    num_views = camera.intrinsics.shape[1]
    rgb: list[list[np.ndarray]] = []
    depth_m: list[list[np.ndarray]] = []
    for step, cloud in enumerate(clouds):
        rgb.append([])
        depth_m.append([])
        for view in range(num_views):
            if step > 0 and cloud is clouds[step - 1] and _stands_still(camera, step, view):
                rgb[step].append(rgb[step - 1][view])
                depth_m[step].append(depth_m[step - 1][view])
                continue
            rendering = compiled.render(cloud, _at(camera, (step, view)))
            rgb[step].append(np.asarray(rendering.rgb))
            depth_m[step].append(np.asarray(rendering.depth_m))
    return np.stack([np.stack(row) for row in rgb]), np.stack([np.stack(row) for row in depth_m])


def _stands_still(camera: Camera, step: int, view: int) -> bool:
    now, before = _at(camera, (step, view)), _at(camera, (step - 1, view))
    pairs = zip(jax.tree.leaves(now), jax.tree.leaves(before), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def evaluate_window(
    compiled: CompiledModel,
    batch: Batch,
    lent: RobotPoints | None,
    *,
    controls: Sequence[str],
    seed: int,
    moving_threshold: float,
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

    Returns:
      Scores and pictures.

    Raises:
      UserError: the model predicts something that is not a number.
    """
    truth, visible = (np.asarray(x) for x in compiled.whiten(batch.frames))
    observed = encode_observed(compiled, batch, window_keys(seed, batch)[0])
    future = jax.tree.map(lambda x: x[OBSERVED_FRAMES:], batch.frames)
    steps, last = len(truth) - OBSERVED_FRAMES, truth[OBSERVED_FRAMES - 1]

    def roll_out(robot: RobotPoints) -> ParticleCloud:
        # Every plan with the same walkers, so that only the actions differ.
        return compiled.rollout(*observed, robot, window_keys(seed, batch)[1])

    def render(clouds: ParticleCloud) -> tuple[np.ndarray, np.ndarray]:
        each = [_at(clouds, step) for step in range(steps)]
        return render_clouds(compiled, each, future.camera)

    def render_plan(robot: RobotPoints) -> np.ndarray:
        own = np.array_equal(robot.positions, batch.robot.positions)
        if own and np.array_equal(robot.gripper, batch.robot.gripper):
            return prediction
        return render(roll_out(robot))[0]

    def predict(control: str) -> np.ndarray:
        match control:
            case "static_render":
                return render_clouds(compiled, [observed[1]] * steps, future.camera)[0]
            case "copy_last_frame":
                return np.broadcast_to(last, prediction.shape)
            case "kinematics_only":
                return render(carry_particles(*observed, batch.robot))[0]
            case "zero_actions":
                return render_plan(hold_still(batch.robot))
            case "shuffled_actions" if lent is not None:
                return render_plan(replace_plan(batch.robot, lent))
        raise ValueError(control)

    clouds = roll_out(batch.robot)
    prediction, depth_m = render(clouds)
    images = {"model": prediction} | {control: predict(control) for control in controls}
    _require_finite(images, batch)
    return WindowResult(
        scores=score_images(images, truth[OBSERVED_FRAMES:], last, moving_threshold),
        depth=score_depth(depth_m, np.asarray(future.depth_m), visible[OBSERVED_FRAMES:]),
        truth=truth,
        prediction=prediction,
        clouds=jax.tree.map(
            lambda a, b, c: np.asarray(jnp.concatenate([a[None], b[None], c])), *observed, clouds
        ),
    )


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


def score_images(
    images: dict[str, Float[np.ndarray, "s v h w 3"]],
    truth: Float[np.ndarray, "s v h w 3"],
    last_observed: Float[np.ndarray, "v h w 3"],
    moving_threshold: float,
) -> Float[np.ndarray, "predictors v s 4"]:
    """Score predictors' images.

    Args:
      images: frames by predictor.
      truth: the whitened frames they predict.
      last_observed: the whitened last observed frame.
      moving_threshold: see `metrics.moving_pixels`.

    Returns:
      `METRICS` in the order of `images`.
    """
    steps, views = truth.shape[:2]
    scores = np.empty((len(images), views, steps, 4))
    for step, view in np.ndindex(steps, views):
        moving = moving_pixels(truth[step, view], last_observed[view], moving_threshold)
        for i, image in enumerate(images.values()):
            scores[i, view, step] = score_frame(image[step, view], truth[step, view], moving)
    return scores


def score_depth(
    depth_m: Float[np.ndarray, "s v h w"],
    truth_m: Float[np.ndarray, "s v h w"],
    visible: Bool[np.ndarray, "s v h w"],
) -> Float[np.ndarray, "v s 2"]:
    """Score the model's depth where depth was measured and can be rendered.

    Args:
      depth_m: rendered planar depth [m].
      truth_m: measured planar depth [m].
      visible: pixels that are not painted white.

    Returns:
      `DEPTH_METRICS`.
    """
    steps, views = depth_m.shape[:2]
    scores = np.empty((views, steps, 2))
    for step, view in np.ndindex(steps, views):
        errors = depth_errors(depth_m[step, view], truth_m[step, view], visible[step, view])
        scores[view, step] = errors
    return scores
