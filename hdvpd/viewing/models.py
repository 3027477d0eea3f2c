"""Recordings that a model makes: what runs and rollouts, which hold one, have in common."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Camera, Float, ParticleCloud, UInt8
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.evaluation.metrics import score_frame
from hdvpd.evaluation.videos import to_uint8
from hdvpd.model import Model
from hdvpd.viewing.recording import PREDICTION, Layer, Particles, Recording
from hdvpd.viewing.sources import AbstractSource
from hdvpd.world.base import World
from hdvpd.world.future import Future, RenderCloud


class ModelSource(AbstractSource):
    """Scenes that a model rolls out.

    Attributes:
      world: the model, or None before the first checkpoint of a run.
    """

    def __init__(self) -> None:
        """Know no model yet."""
        self.world: World | None = None
        self._paint: Callable[..., Any] | None = None
        self._draw: RenderCloud | None = None

    @property
    def trained(self) -> World:
        """The model.

        Raises:
          UserError: there is none yet.
        """
        if self.world is None:
            raise UserError(f"{self.name} has no checkpoint yet; wait for the first one.")
        return self.world

    def predicted(self, future: Future, camera: Camera) -> Layer:
        """Render a future as a layer; `camera` has the axes (t v)."""
        model, self._draw = self.trained.model, future.render_cloud
        self._paint = self._paint or make_painter(model)
        return predicted_layer(future, camera, functools.partial(self._paint, nnx.state(model)))

    def render(
        self, recording: Recording, time: int, camera_to_world: Float[np.ndarray, "4 4"], fov: float
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Render the prediction from a new place, at the size of the model's images."""
        if PREDICTION not in recording.layers:
            raise UserError(f"{self.name} has no prediction yet; wait for the first checkpoint.")
        particles, (height, width) = recording.layers[PREDICTION].particles, self.trained.size
        focal = height / 2 / np.tan(fov / 2)
        lens = [[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]]
        camera = Camera(np.asarray(lens, np.float32), np.asarray(camera_to_world, np.float32))
        assert particles.features is not None
        cloud = ParticleCloud(
            particles.positions[time], particles.features[time], particles.mask[time]
        )
        assert self._draw is not None
        return self._draw(cloud, camera, (height, width)).rgb


def cameras_of(future: Future) -> Camera:
    """Return the cameras of every time, axes (t v): those of the observed times stand still."""
    steps = []
    for name, camera in future.start.cameras.items():
        steps.append([camera] * OBSERVED_FRAMES + future.cameras_over_time(name, len(future)))
    times = [jax.tree.map(lambda *x: np.stack(x), *views) for views in zip(*steps, strict=True)]
    return jax.tree.map(lambda *x: np.stack(x), *times)


def predicted_layer(
    future: Future, camera: Camera, paint: Callable[[ParticleCloud], Float[Array, "n 3"]]
) -> Layer:
    """Render a future, and the observed times before it as the model sees them.

    Args:
      future: of one plan.
      camera: axes (t v).
      paint: colours of a cloud's particles, in [0, 1].

    Returns:
      Particles and images of every time.
    """
    start, number = future.start, range(len(future))
    steps = [jax.tree.map(lambda x, s=s: np.asarray(x)[s], future.clouds) for s in number]
    clouds = [start.previous, start.current, *steps]
    times, views = camera.intrinsics.shape[:2]
    images = [
        [
            future.render_cloud(
                clouds[t], jax.tree.map(lambda x, t=t, v=v: x[t, v], camera), start.size
            )
            for v in range(views)
        ]
        for t in range(times)
    ]
    particles = Particles(
        positions=np.stack([np.asarray(cloud.positions) for cloud in clouds]),
        colors=np.stack([to_uint8(paint(cloud)) for cloud in clouds]),
        features=np.stack([np.asarray(cloud.features) for cloud in clouds]),
        mask=np.stack([np.asarray(cloud.mask) for cloud in clouds]),
        age=np.maximum(np.arange(len(clouds)) - 1, 0).astype(np.int32),
        tracked=True,
    )
    return Layer(
        particles,
        np.stack([np.stack([image.rgb for image in row]) for row in images]),
        np.stack([np.stack([image.depth_m for image in row]) for row in images]),
    )


def make_painter(example: Model) -> Callable[..., Float[Array, "n 3"]]:
    """Compile what gives particles the colours of the model's radiance field.

    Args:
      example: one of the models that share it; parameters are arguments.

    Returns:
      From parameters and cloud to colours in [0, 1].
    """
    graphdef = nnx.graphdef(example)

    @jax.jit
    def paint(params: Any, cloud: ParticleCloud) -> Float[Array, "n 3"]:
        return nnx.merge(graphdef, params).renderer.particle_colors(cloud)

    return paint


def scores(
    images: UInt8[np.ndarray, "t v h w 3"], truth: UInt8[np.ndarray, "t v h w 3"]
) -> Float[np.ndarray, "t v"]:
    """Compute the SSIM of every image."""
    nothing = np.zeros(images.shape[2:4], bool)  # which pixels move is not asked here
    pairs = zip(images / 255.0, truth / 255.0, strict=True)
    return np.asarray(
        [[score_frame(a, b, nothing).ssim for a, b in zip(*pair, strict=True)] for pair in pairs]
    )
