"""What every dynamics model shares: both clouds and the robot as tokens, tokens as a change."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.layers import LayerNorm, Linear, normal
from hdvpd.basics.types import (
    Array,
    Bool,
    Float,
    JaxArray,
    ParticleCloud,
    PRNGKey,
    RobotPoints,
)
from hdvpd.config import ModelConfig, SceneSpec
from hdvpd.dynamics.base import Change, Known
from hdvpd.dynamics.carrying import (
    FAR_M,
    MOTION_SCALE_M,
    carried_motion,
    held_along,
    reached,
    taken_along,
)
from hdvpd.dynamics.contact import ContactTokens
from hdvpd.dynamics.identity import Identity
from hdvpd.dynamics.mlp import Mlp
from hdvpd.dynamics.segments import segments
from hdvpd.dynamics.shadow import Shadow
from hdvpd.dynamics.surroundings import Surroundings, surroundings
from hdvpd.dynamics.things import moved_things
from hdvpd.dynamics.unseen import draw_unseen
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.layers import summed
from hdvpd.kernels.neighbors import Backend

_POINT_EMBEDDING_DIM = 16
# Numbers that the read-out is told of touching, beside a token.
_TOLD = 3


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def fourier_features(x: Float[Array, "t 3"], num_frequencies: int) -> Float[JaxArray, "t d"]:
    """Return x with sin and cos of pi 2^j x, j < num_frequencies: wavelengths 2 m, 1 m, ...."""
    return _by_axis(jnp.asarray(x), num_frequencies).T


@fourier_features.defjvp
def _moved_features(num_frequencies, at, along):
    """Make the derivatives of sines and cosines of each other: neither is computed again."""
    features = _by_axis(jnp.asarray(at[0]), num_frequencies)
    x_dot, split = jnp.asarray(along[0]).T, 3 * (1 + num_frequencies)
    rates = jnp.repeat(jnp.pi * 2.0 ** jnp.arange(num_frequencies), 3)[:, None]
    shifts = rates * jnp.tile(x_dot, (num_frequencies, 1))
    moved = [x_dot, features[split:] * shifts, -features[3:split] * shifts]
    return features.T, jnp.concatenate(moved).T


def _by_axis(x: Float[JaxArray, "t 3"], num_frequencies: int) -> Float[JaxArray, "d t"]:
    # XLA makes no vector code of arrays whose last axis has three.
    x = x.T
    sines, cosines = [jnp.sin(jnp.pi * x)], [jnp.cos(jnp.pi * x)]
    for _ in range(1, num_frequencies):
        # Of twice an angle: as exact as its sine, and without another.
        sine, cosine = sines[-1], cosines[-1]
        sines.append(2.0 * sine * cosine)
        cosines.append((cosine + sine) * (cosine - sine))
    return jnp.concatenate([x, *sines[:num_frequencies], *cosines[:num_frequencies]])


class Tokens(nnx.Module):
    """Turn both clouds and the robot's three poses into tokens (docs/equations.md, Dynamics).

    Order: particles of t - 2, particles of t - 1, kinematic points of t - 2, t - 1 and t. With
    `model.carry`, beyond the papers, a particle's token also holds the motion until t of the
    skeleton at its place; with `model.contact` what `ContactTokens` says.
    """

    def __init__(self, config: ModelConfig, scene: SceneSpec, *, rngs: nnx.Rngs):
        dim = config.latent_dim
        self.particle = Linear(config.feature_dim, dim, rngs=rngs)
        self.point = Linear(_POINT_EMBEDDING_DIM + 4, dim, rngs=rngs)
        self.carried = Linear(4, dim, use_bias=False, rngs=rngs) if config.carry else None
        self.contact = (
            ContactTokens(
                dim,
                config.feature_dim,
                _POINT_EMBEDDING_DIM,
                config.knn,
                config.kernels,
                rngs=rngs,
            )
            if config.contact
            else None
        )
        self.knn: Backend = config.knn
        self.kernels: Kernels = config.kernels
        self.num_frequencies = config.position_frequencies
        size = 3 + 6 * self.num_frequencies
        embed = config.position_embedding
        self.position = Linear(size, dim, use_bias=False, rngs=rngs) if embed else None
        small, unit = normal(0.02), normal(1.0)
        self.time = nnx.Param(small(rngs.params(), (3, dim)))
        self.kind = nnx.Param(small(rngs.params(), (2, dim)))
        shape = (scene.num_robot_points, _POINT_EMBEDDING_DIM)
        self.point_embedding = nnx.Param(unit(rngs.params(), shape))
        self.center = scene.center

    def __call__(
        self, previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints
    ) -> tuple[Float[JaxArray, "t d"], Float[Array, "t 3"], Bool[Array, "t"]]:
        """Return tokens, their positions and which are real."""
        num_points = robot.positions.shape[1]
        time, kind = self.time[...], self.kind[...]
        clouds, tokens = (previous, current), []
        contact: Sequence[Float[JaxArray, "n d"] | None] = None, None
        if self.contact is not None:
            between = [
                held_along(cloud, robot, k, 1 - k, kernels=self.kernels)
                for k, cloud in enumerate(clouds)
            ]
            contact = self.contact(clouds, robot, between, self.point_embedding[...])
        for k, cloud in enumerate(clouds):
            told = [(self.particle, jnp.asarray(cloud.features)), *self._place(cloud.positions)]
            if self.carried is not None:
                motion = carried_motion(cloud, robot, k, self.knn)
                told.append((self.carried, motion / MOTION_SCALE_M))
            tokens.append(summed(told, time[k] + kind[0], contact[k], self.kernels))
        places = robot.positions.reshape(-1, 3)
        told = [(self.point, self._point_features(robot)), *self._place(places)]
        tokens.append(summed(told, kind[1], jnp.repeat(time, num_points, axis=0), self.kernels))
        positions = jnp.concatenate([previous.positions, current.positions, places])
        points_mask = jnp.ones((3 * num_points,), bool)
        mask = jnp.concatenate([previous.mask, current.mask, points_mask])
        return jnp.concatenate(tokens), positions, mask

    def _place(
        self, positions: Float[Array, "n 3"]
    ) -> list[tuple[nnx.Linear, Float[JaxArray, "n w"]]]:
        """Return the layer that tells where rows are with what it is told, if there is one."""
        if self.position is None:
            return []
        from_center = positions - jnp.asarray(self.center)[None]
        return [(self.position, fourier_features(from_center, self.num_frequencies))]

    def _point_features(self, robot: RobotPoints) -> Float[JaxArray, "u d"]:
        """Identity, gripper opening and displacement to the same point at t."""
        displacement = (robot.positions[-1:] - robot.positions) / MOTION_SCALE_M
        identity = jnp.broadcast_to(
            self.point_embedding[...][None],
            (*robot.positions.shape[:2], _POINT_EMBEDDING_DIM),
        )
        point = jnp.concatenate([identity, robot.gripper[..., None], displacement], axis=-1)
        return point.reshape(-1, point.shape[-1])


class ReadOut(nnx.Module):
    """Turn the tokens of the current particles into their bounded change (arXiv 2406.19800)."""

    def __init__(self, config: ModelConfig, scene: SceneSpec, *, rngs: nnx.Rngs):
        dim = config.latent_dim
        self.norm = LayerNorm(dim, rngs=rngs)
        gate = config.carry and not config.contact
        size_out = 3 + config.feature_dim + gate
        self.mlp = Mlp(dim + _TOLD * config.contact, dim, size_out, config.kernels, rngs=rngs)
        # Zero last layer: the untrained model copies the last state.
        self.mlp.out.kernel[...] = jnp.zeros_like(self.mlp.out.kernel[...])
        self.identity = (
            Identity(scene.num_robot_points, config.kernels, colors=config.colors, rngs=rngs)
            if config.contact
            else None
        )
        self.shadow = Shadow(scene, config.kernels) if config.shadow else None
        self.config = config

    def know(self, current: ParticleCloud, robot: RobotPoints, key: PRNGKey) -> Known | None:
        """Say what a rollout knows of its particles; None if the model tells nothing apart.

        Args:
          current: observed particles.
          robot: kinematic points, axes (f p), of which the second are of the same time.
          key: draws what is hidden of things.
        """
        if self.identity is None:
            return None
        around = self._around(current)
        robots = self.identity.is_robot(current, robot, around, self.config.knn)
        if not self.config.stochastic:
            return Known(robots, None)
        others = dataclasses.replace(current, mask=jnp.asarray(current.mask) & ~robots)
        found = segments(others, around, up=self.config.up, kernels=self.config.kernels)
        return Known(robots, draw_unseen(found, current.positions, self.config.hidden_spreads, key))

    def __call__(
        self,
        tokens: Float[JaxArray, "n d"],
        current: ParticleCloud,
        robot: RobotPoints,
        known: Known | None = None,
    ) -> Change:
        """Return the change of `current`; padding does not change.

        Args:
          tokens: of the particles.
          current: particles at t - 1.
          robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
          known: what `know` said, in a rollout.
        """
        tokens = self.norm(tokens)
        if self.identity is None:
            change = self._gated(tokens, current, robot)
        else:
            change = self._touching(self.identity, tokens, current, robot, known)
        return change if self.shadow is None else self._shaded(self.shadow, change, current, robot)

    def _around(self, current: ParticleCloud) -> Surroundings:
        return surroundings(current, colors=self.config.colors, backend=self.config.knn)

    def _gated(
        self, tokens: Float[JaxArray, "n d"], current: ParticleCloud, robot: RobotPoints
    ) -> Change:
        """Return the papers' change; with `model.carry` also how far a particle goes along."""
        raw = self._read(tokens, current)
        moved_m = self._free(raw)
        if self.config.carry:
            # The last output is a gate, which is learned much sooner than the motion itself
            # (docs/lab-book.md).
            moved_m += raw[:, -1:] * carried_motion(current, robot, 1, self.config.knn)[:, :3]
        return self._changed(self._bounded(moved_m), raw)

    def _shaded(
        self, shadow: Shadow, change: Change, current: ParticleCloud, robot: RobotPoints
    ) -> Change:
        shade = shadow(current, robot, change.displacement)
        shade = jnp.where(current.mask[:, None], shade, 0.0)
        features = jnp.asarray(change.features).at[:, :3].add(shade)
        return dataclasses.replace(change, features=features)

    def _read(self, told: Float[JaxArray, "n t"], current: ParticleCloud) -> Float[JaxArray, "n o"]:
        return jnp.where(current.mask[:, None], self.mlp(told), 0.0)

    def _free(self, raw: Float[JaxArray, "n o"]) -> Float[JaxArray, "n 3"]:
        return (self.config.displacement_unit or self.config.max_displacement) * raw[:, :3]

    def _bounded(self, moved_m: Float[JaxArray, "n 3"]) -> Float[JaxArray, "n 3"]:
        bound = self.config.max_displacement
        return bound * jnp.tanh(moved_m / bound)

    def _changed(self, moved_m: Float[JaxArray, "n 3"], raw: Float[JaxArray, "n o"]) -> Change:
        features = raw[:, 3 : 3 + self.config.feature_dim]
        return Change(
            displacement=moved_m,
            features=jnp.zeros_like(features) if self.config.lasting_features else features,
        )

    def _touching(
        self,
        identity: Identity,
        tokens: Float[JaxArray, "n d"],
        current: ParticleCloud,
        robot: RobotPoints,
        known: Known | None,
    ) -> Change:
        """Return the change with `model.contact`: what the robot does, and what is learned beside.

        The robot's particles go along with its skeleton, the others as `moved_things` says.
        """
        up, knn = self.config.up, self.config.knn
        around = self._around(current)
        if known is None:
            known = Known(identity.is_robot(current, robot, around, knn), None)
        robots = known.robots
        carried_m = taken_along(current, robot, 1, 2, backend=knn)
        boxes = identity.body.boxes
        things = moved_things(
            current, robot, ~robots, around, boxes,
            up=up, unseen=known.unseen, backend=knn, kernels=self.config.kernels,
        )  # fmt: skip
        told = [things.share, jnp.tanh(things.gap_m / MOTION_SCALE_M), things.opening]
        raw = self._read(jnp.concatenate([tokens, jnp.stack(told, axis=1)], axis=1), current)
        # What the robot does not reach stays as it is. A change that is the same everywhere is
        # learned first, and the edges of all surfaces ask for one (docs/lab-book.md).
        reach = reached(current, robot, 1, FAR_M, self.config.knn)
        # Of three columns: XLA computes the reach again for every column that it multiplies.
        learned_m = self._bounded(self._free(raw[:, :3] * reach))
        moved_m = jnp.where(robots[:, None], carried_m, things.displacement)
        # What geometry says is not bounded: rigid motions would bend, and fast ones fall behind.
        return self._changed(learned_m + moved_m, raw * reach)
