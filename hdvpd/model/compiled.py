"""The parts of a model that whoever uses it calls, each compiled once."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
from flax import nnx
from jax.stages import Lowered, Wrapped

from hdvpd.basics.types import (
    Array,
    Camera,
    ParticleCloud,
    PRNGKey,
    Rendering,
    RgbdFrames,
    RobotPoints,
)
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.encoders.particles import visible_points
from hdvpd.model import Model
from hdvpd.model.images import render_images


@dataclass(frozen=True)
class CompiledModel:
    """The jitted parts of a model.

    Attributes:
      encode: (observed frames with axes (2 v), measured robot with axes (2), key) ->
        clouds with axes (2).
      rollout: (observed clouds with axes (2), robot with axes (2 + s), key) -> clouds, axes (s).
      render: (clouds with axes (g), cameras with axes (g v)) -> images, axes (g v h w).
      whiten: frames -> whitened colours and the mask of pixels that are not painted white.
    """

    encode: Callable[[RgbdFrames, RobotPoints, PRNGKey], ParticleCloud]
    rollout: Callable[[ParticleCloud, RobotPoints, PRNGKey], ParticleCloud]
    render: Callable[[ParticleCloud, Camera], Rendering]
    whiten: Callable[[RgbdFrames], tuple[Array, Array]]


CompileModel = Callable[[Model], CompiledModel]


def compile_model(model: Model) -> CompiledModel:
    """Wrap a model's parts so that each is compiled at its first call and never again.

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
    def encode(state: Any, frames: RgbdFrames, robot: RobotPoints, key: PRNGKey) -> ParticleCloud:
        keys = jax.random.split(key, OBSERVED_FRAMES)
        return jax.vmap(nnx.merge(graphdef, state).encode)(frames, robot, keys)

    @jax.jit
    def rollout(
        state: Any, observed: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> ParticleCloud:
        previous, current = (jax.tree.map(lambda x, i=i: x[i], observed) for i in range(2))
        return nnx.merge(graphdef, state).rollout(previous, current, robot, key)

    @jax.jit
    def render(state: Any, clouds: ParticleCloud, camera: Camera) -> Rendering:
        return render_images(nnx.merge(graphdef, state), clouds, camera, *size)

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


def lower(part: Callable[..., Any], *given: Any) -> Lowered:
    """Trace a part of a compiled model that has parameters, for arguments like these.

    A call with such arguments, after the program has been compiled, is neither traced nor compiled.
    """
    bound = cast(functools.partial[Any], part)
    return cast(Wrapped, bound.func).lower(*bound.args, *given)
