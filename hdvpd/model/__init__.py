"""HD-VPD: encoder, dynamics and renderer together; the only module that knows all three."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.color_features import color_features
from hdvpd.basics.layers import Keys, each, multiply_in_bfloat16
from hdvpd.basics.types import (
    Array,
    Batch,
    Bool,
    Float,
    Int,
    JaxArray,
    Key,
    ParticleCloud,
    PRNGKey,
    Rays,
    Rendering,
    RgbdFrames,
    RobotPoints,
)
from hdvpd.config import Config, SceneSpec
from hdvpd.dynamics.base import AbstractDynamics, Known
from hdvpd.dynamics.matching import match_distance
from hdvpd.dynamics.rollout import rollout
from hdvpd.dynamics.tracking import Tracking
from hdvpd.encoders.particles import (
    near_robot,
    subsample,
    visible_depth,
    visible_points,
    white_targets,
)
from hdvpd.encoders.unet import UNet
from hdvpd.kernels.neighbors import PointIndex
from hdvpd.model.augmentation import augmented
from hdvpd.model.losses import patch_structure, ray_depth_l1, ray_l2
from hdvpd.model.rays import pixels_of, sample_rays
from hdvpd.render.renderer import Renderer

NEAR_ROBOT_M = 0.15
"""What `model.near_weight` takes for near: a hand's reach, and what is about to be touched."""


class Model(nnx.Module):
    """The world model: encode two frames, predict along the robot's plan, render what is seen."""

    def __init__(self, config: Config, scene: SceneSpec, *, rngs: nnx.Rngs):
        model = config.model
        learned = model.feature_dim - 3 * model.colors
        self.unet = UNet(model.unet_channels, learned, kernels=model.kernels, rngs=rngs)
        self.dynamics: AbstractDynamics = model.dynamics.make(model, scene, rngs=rngs)
        self.tracking = Tracking(scene.num_robot_points) if model.tracking else None
        self.renderer = Renderer(
            config.render,
            model.feature_dim,
            colors=model.colors,
            knn_backend=model.knn,
            kernels=model.kernels,
            rngs=rngs,
        )
        if model.precision == "bfloat16":
            multiply_in_bfloat16(self)
        self.config = config
        self.scene = scene

    @property
    def _visible(self) -> tuple:
        return (self.scene.workspace_min, self.scene.workspace_max, self.config.render.far)

    @property
    def _spacing(self) -> float:
        """How much farther apart particles are in training than in rollouts."""
        size = self.config.train.cloud_size
        return math.sqrt(self.config.model.num_particles / size) if size else 1.0

    def encode(
        self,
        frames: RgbdFrames,
        robot: RobotPoints,
        key: PRNGKey,
        num_particles: int | None = None,
    ) -> ParticleCloud:
        """Turn the views of one time step into particles (docs/equations.md, Encoder).

        Args:
          frames: axes (v): all cameras at one time.
          robot: measured points of the same time, without axes; `model.near_weight` looks at them.
          key: draws the subsample.
          num_particles: how many; by default `model.num_particles`.
        """
        with jax.named_scope("encode"):
            model = self.config.model
            features = self.unet(jnp.asarray(frames.rgb, jnp.float32) / 127.5 - 1.0)
            if model.colors:
                colors = color_features(jnp.asarray(frames.rgb, jnp.float32) / 255.0)
                features = jnp.concatenate([colors, features], axis=-1)
            points, valid = visible_points(frames.depth_m, frames.camera, *self._visible)
            favoured = None
            if model.near_weight != 1:
                favoured = near_robot(points, valid, robot.positions, NEAR_ROBOT_M).reshape(-1)
            return subsample(
                points.reshape(-1, 3),
                features.reshape(-1, features.shape[-1]),
                valid.reshape(-1),
                num_particles or model.num_particles,
                key,
                even=model.even,
                favoured=favoured,
                weight=model.near_weight,
                kernels=model.kernels,
            )

    def know(self, current: ParticleCloud, robot: RobotPoints, key: PRNGKey) -> Known | None:
        """Say what a rollout of the same key knows of its particles; None if it knows nothing.

        Args:
          current: observed particles at step -1, axes (n).
          robot: axes (2) or more, of which the second are of the same time.
          key: that of the rollout.
        """
        begins, _ = jax.random.split(key)
        return self.dynamics.know(current, self.expected(robot), begins)

    def rollout(
        self,
        previous: ParticleCloud,
        current: ParticleCloud,
        robot: RobotPoints,
        key: PRNGKey,
        known: Known | None = None,
    ) -> ParticleCloud:
        """Predict the clouds of every planned step (docs/equations.md, Dynamics).

        Args:
          previous: observed particles at step -2.
          current: observed particles at step -1.
          robot: axes (2 + s): measured points of steps -2 and -1, planned ones after.
          key: draws what the dynamics draws.
          known: of the particles of `current`, from the rollout that predicted them; by default
            what `know` says of them.

        Returns:
          Clouds of steps 0..s-1, axes (s).
        """
        with jax.named_scope("rollout"):
            return self._roll_out(previous, current, robot, key, known)

    def expected(self, robot: RobotPoints) -> RobotPoints:
        """Return where the robot is expected to be at its commands; axes as in `rollout`."""
        return robot if self.tracking is None else self.tracking(robot)

    def _roll_out(
        self,
        previous: ParticleCloud,
        current: ParticleCloud,
        robot: RobotPoints,
        key: PRNGKey,
        known: Known | None = None,
        *,
        unroll: bool = False,
    ) -> ParticleCloud:
        expected = self.expected(robot)
        begins, key = jax.random.split(key)
        if known is None:
            known = self.dynamics.know(current, expected, begins)
        step = self.dynamics.begin(known)
        remat = self.config.train.remat
        return rollout(step, previous, current, expected, key, remat=remat, unroll=unroll)

    def render(
        self,
        cloud: ParticleCloud,
        rays: Rays,
        key: PRNGKey | None,
        index: PointIndex | None = None,
    ) -> Rendering:
        """Render rays, axes (r), of one cloud; no key means deterministic evaluation samples.

        The cloud's index is made here, or is what `index` returned.
        """
        with jax.named_scope("render"):
            clouds, groups, index = jax.tree.map(lambda x: x[None], (cloud, rays, index))
            keys = None if key is None else key[None]
            rendering = self.renderer(clouds, groups, keys, index=index)
            return jax.tree.map(lambda x: x[0], rendering)

    def index(self, clouds: ParticleCloud) -> PointIndex:
        """Prepare clouds, axes (g), each for being rendered several times."""
        return self.renderer.index(clouds)

    def white_targets(self, frames: RgbdFrames) -> Float[Array, "*batch h w 3"]:
        """Return the frames' colours in [0, 1], white wherever nothing can be rendered."""
        rgb = jnp.asarray(frames.rgb, jnp.float32) / 255.0
        return white_targets(rgb, frames.depth_m, frames.camera, *self._visible)

    def loss(
        self,
        batch: Batch,
        key: PRNGKey,
        *,
        scored: bool = False,
        first_window: int | Int[Array, ""] = 0,
    ) -> Float[Array, "i"]:
        """Return the ray loss of every image of a batch (docs/equations.md, Training).

        Args:
          batch: windows.
          key: draws particles, rays and samples along them.
          scored: of the predicted colours only, with uniform rays, so that models trained with
            other losses can be compared.
          first_window: place of the first window in a larger batch of which this is a part. What a
            window draws is a function of the key and its place, so that a batch may be computed in
            parts, on one device or several, with the same draws.

        Returns:
          One number per predicted step; then, with `train.reconstruct`, that of the last observed
          frame, rendered from its own particles.
        """
        size = batch.start.shape[0]
        train = self.config.train
        reconstruct = train.reconstruct and not scored
        places = first_window + jnp.arange(size)
        encode_keys, ray_keys, sample_keys, rollout_keys, match_keys, augment_keys = (
            jax.vmap(jax.random.fold_in, (None, 0))(kind, places)
            for kind in jax.random.split(key, 6)
        )
        if not scored:
            batch = augmented(batch, train.augment, self.scene, augment_keys)

        clouds, current = each(self._predict, batch.frames, batch.robot, encode_keys, rollout_keys)
        clouds = _followed_by(clouds, current) if reconstruct else clouds
        last_observed = self.white_targets(jax.tree.map(lambda x: x[:, 1:2], batch.frames))
        # Predicted frames, then the last observed one.
        order = (slice(2, None), slice(1, 2))[: 1 + reconstruct]
        frames, robot = jax.tree.map(
            lambda x: jnp.concatenate([x[:, part] for part in order], axis=1),
            (batch.frames, batch.robot),
        )
        depth_m = visible_depth(frames.depth_m, frames.camera, *self._visible)
        rays, target = sample_rays(
            frames,
            jnp.concatenate([self.white_targets(frames), depth_m[..., None]], axis=-1),
            last_observed,
            train.num_rays,
            1.0 if scored else train.moving_ray_weight,
            ray_keys,
            near=None if scored else self._near_robot(frames, robot),
            patch_size=1 if scored else train.patch_size,
            supersample=self.config.render.supersample,
        )
        loss = self._image_loss(self._render_images(clouds, rays, sample_keys), target, scored)
        if train.match_weight and not scored:
            loss += train.match_weight * self._match(frames, clouds, current, match_keys)
        return loss

    def _image_loss(
        self, seen: Rendering, target: Float[Array, "b i p 4"], scored: bool
    ) -> Float[Array, "i"]:
        """Compare pixels, axes (b i p), with the colour and depth that they should have."""
        train = self.config.train
        loss = ray_l2(seen.rgb, target[..., :3])
        if scored:
            return loss
        if train.structure_weight:
            structure = patch_structure(seen.rgb, target[..., :3], train.patch_size)
            loss += train.structure_weight * structure
        if train.depth_weight:
            loss += train.depth_weight * ray_depth_l1(seen.depth_m, target[..., 3])
        return loss

    def _match(
        self,
        frames: RgbdFrames,
        clouds: ParticleCloud,
        current: ParticleCloud,
        keys: Key[JaxArray, "b"],
    ) -> Float[Array, "i"]:
        """Return how far particles, axes (b i), are from the points of frames, axes (b i v) [m].

        They are told apart by the colours of the last observed cloud, axes (b).
        """

        def match(
            frames: RgbdFrames, cloud: ParticleCloud, colors: Float[Array, "n 3"], key: PRNGKey
        ) -> Float[Array, ""]:
            measured = self.measure(frames, cloud.mask.shape[0], key)
            return match_distance(
                cloud.positions, colors, cloud.mask,
                measured.positions, jax.nn.sigmoid(measured.features), measured.mask,
                self.config.model.kernels,
            )  # fmt: skip

        def match_window(
            frames: RgbdFrames, clouds: ParticleCloud, current: ParticleCloud, key: PRNGKey
        ) -> Float[Array, "i"]:
            colors = jax.nn.sigmoid(current.features[:, :3])
            keys = jax.random.split(key, clouds.mask.shape[0])
            return jax.vmap(match, (0, 0, None, 0))(frames, clouds, colors, keys)

        return jnp.asarray(each(match_window, frames, clouds, current, keys)).mean(axis=0)

    def measure(self, frames: RgbdFrames, num_points: int, key: PRNGKey) -> ParticleCloud:
        """Draw points of the views, axes (v), of one time step; their features are the colours'."""
        colors = color_features(jnp.asarray(frames.rgb, jnp.float32) / 255.0)
        points, valid = visible_points(frames.depth_m, frames.camera, *self._visible)
        return subsample(
            points.reshape(-1, 3), colors.reshape(-1, 3), valid.reshape(-1),
            num_points, key, even=self.config.model.even, kernels=self.config.model.kernels,
        )  # fmt: skip

    def _render_images(
        self, clouds: ParticleCloud, rays: Rays, keys: Key[JaxArray, "b"]
    ) -> Rendering:
        """Render pixels, axes (b i p), of clouds, axes (b i), with one key per window.

        Rays, axes (b i r), are those of a pixel one after another.
        """
        size, images = rays.z_scale.shape[:2]
        keys = jax.vmap(lambda key: jax.random.split(key, images))(keys)
        with jax.named_scope("render"):
            clouds, rays = jax.tree.map(
                lambda x: x.reshape(size * images, *x.shape[2:]), (clouds, rays)
            )
            rendering = self.renderer(clouds, rays, keys.reshape(-1), self._spacing)
        seen = jax.tree.map(lambda x: x.reshape(size, images, *x.shape[1:]), rendering)
        return pixels_of(seen, self.config.render.supersample)

    def _predict(
        self,
        frames: RgbdFrames,
        robot: RobotPoints,
        encode_key: PRNGKey,
        rollout_key: PRNGKey,
    ) -> tuple[ParticleCloud, ParticleCloud]:
        """Return the predicted clouds of one window, and the last observed one."""
        observed, measured = jax.tree.map(lambda x: x[:2], (frames, robot))
        encode = functools.partial(self.encode, num_particles=self.config.train.cloud_size)
        clouds = jax.vmap(encode)(observed, measured, jax.random.split(encode_key))
        previous, current = (jax.tree.map(lambda x, i=i: x[i], clouds) for i in range(2))
        # A GPU's compiler, which tries forms of every product, takes minutes for what is unrolled.
        unroll = jax.default_backend() == "cpu"
        with jax.named_scope("rollout"):
            clouds = self._roll_out(previous, current, robot, rollout_key, unroll=unroll)
        return clouds, current

    def _near_robot(
        self, frames: RgbdFrames, robot: RobotPoints
    ) -> Bool[Array, "b s v h w"] | None:
        """Find the pixels within `train.near_ray_distance` of a kinematic point of their frame."""
        distance_m = self.config.train.near_ray_distance
        if not distance_m:
            return None
        seen, valid = visible_points(frames.depth_m, frames.camera, *self._visible)
        return near_robot(seen, valid, robot.positions, distance_m)


def _followed_by(clouds: ParticleCloud, last: ParticleCloud) -> ParticleCloud:
    """Append one cloud, axes (b), to clouds, axes (b i)."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y[:, None]], axis=1), clouds, last)


def abstract_model(config: Config, scene: SceneSpec) -> Model:
    """Build a model of shapes alone: to draw parameters only to replace them costs seconds."""
    return nnx.eval_shape(lambda: Model(config, scene, rngs=Keys(0)))
