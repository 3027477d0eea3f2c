"""From RGB-D pixels to particles: validity, targets and the uniform subsample (HD-VPD)."""

import jax
import jax.numpy as jnp

from hdvpd.basics.geometry import unproject
from hdvpd.basics.sampling import systematic_subset, uniform_subset
from hdvpd.basics.types import (
    Array,
    Bool,
    Camera,
    Float,
    ParticleCloud,
    PRNGKey,
)
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.z_order import z_order


def visible_points(
    depth_m: Float[Array, "*batch h w"],
    camera: Camera,
    workspace_min: tuple[float, float, float],
    workspace_max: tuple[float, float, float],
    far: float,
) -> tuple[Float[Array, "*batch h w 3"], Bool[Array, "*batch h w"]]:
    """Unproject depth and say which pixels become particles.

    Args:
      depth_m: planar depth [m]; 0, negative, NaN and inf are invalid.
      camera: cameras of the images.
      workspace_min: lower corner of the box that is kept [m].
      workspace_max: upper corner of the box that is kept [m].
      far: pixels farther than this along their ray are dropped [m].

    Returns:
      World points [m] (finite everywhere) and the mask of valid pixels inside the box and range.
    """
    depth_m = jnp.asarray(depth_m)
    valid = jnp.isfinite(depth_m) & (depth_m > 0)
    depth_m = jnp.where(valid, depth_m, 0.0)
    points = unproject(depth_m, camera)
    low, high = (
        jnp.asarray(corner, jnp.float32).reshape((1,) * depth_m.ndim + (3,))
        for corner in (workspace_min, workspace_max)
    )
    inside = ((points >= low) & (points <= high)).all(-1)
    from_camera = points - camera.camera_to_world[..., None, None, :3, 3]
    in_range = jnp.sum(from_camera**2, axis=-1) <= far**2
    return points, valid & inside & in_range


def white_targets(
    rgb: Float[Array, "*batch h w 3"],
    depth_m: Float[Array, "*batch h w"],
    camera: Camera,
    workspace_min: tuple[float, float, float],
    workspace_max: tuple[float, float, float],
    far: float,
) -> Float[Array, "*batch h w 3"]:
    """Paint the pixels that give no particle white, like the rendered background.

    Colours are in [0, 1]; everything else as in `visible_points`.
    """
    _, visible = visible_points(depth_m, camera, workspace_min, workspace_max, far)
    return jnp.where(visible[..., None], rgb, 1.0)


def visible_depth(
    depth_m: Float[Array, "*batch h w"],
    camera: Camera,
    workspace_min: tuple[float, float, float],
    workspace_max: tuple[float, float, float],
    far: float,
) -> Float[Array, "*batch h w"]:
    """Return the planar depth [m] of the pixels that become particles, and 0 of the others.

    Arguments as in `visible_points`.
    """
    _, visible = visible_points(depth_m, camera, workspace_min, workspace_max, far)
    return jnp.where(visible, depth_m, 0.0)


def near_robot(
    points: Float[Array, "*batch v h w 3"],
    valid: Bool[Array, "*batch v h w"],
    robot: Float[Array, "*batch p 3"],
    distance_m: float,
) -> Bool[Array, "*batch v h w"]:
    """Find the pixels whose points lie near the robot.

    Args:
      points: of the pixels [m].
      valid: which of them are points.
      robot: kinematic points of the same time; every fourth is looked at, for neighbours are a few
        centimetres apart [m].
      distance_m: that is near.
    """
    # Axis by axis: of an axis of three, XLA makes no vector code.
    places = [points[..., k] for k in range(3)]

    def closer(nearest: Array, point: Array) -> tuple[Array, None]:
        offsets = [x - point[..., k, None, None, None] for k, x in enumerate(places)]
        return jnp.minimum(nearest, sum(x**2 for x in offsets)), None

    start = jnp.full(valid.shape, jnp.inf)
    nearest, _ = jax.lax.scan(closer, start, jnp.moveaxis(robot[..., ::4, :], -2, 0))
    return valid & (nearest < distance_m**2)


def subsample(
    points: Float[Array, "a 3"],
    features: Float[Array, "a c"],
    valid: Bool[Array, "a"],
    num_particles: int,
    key: PRNGKey,
    *,
    even: bool = False,
    favoured: Bool[Array, "a"] | None = None,
    weight: float = 1.0,
    kernels: Kernels = "auto",
) -> ParticleCloud:
    """Draw exactly num_particles valid points, each with the same probability, and none twice.

    With fewer valid points all are kept and the rest is padding: position 0, features 0, mask
    False. Particles are in Z order: layers that gather neighbours then find them in the cache.

    Args:
      points: [m].
      features: of the points.
      valid: which of them may be drawn.
      num_particles: to draw.
      key: draws.
      even: draw systematically along the Z order, one point from each of num_particles stretches
        of equal length, so that there are no holes; otherwise independently.
      favoured: points that are drawn `weight` times as often as others; with `even` only.
      weight: see there.
      kernels: form in which points are sorted.
    """
    if even:
        order = z_order(points, valid, kernels)
        chosen, mask = systematic_subset(order, valid, num_particles, key, favoured, weight)
    else:
        chosen, mask = uniform_subset(valid, num_particles, key)
        order = z_order(points[chosen], mask, kernels)
        chosen, mask = chosen[order], mask[order]
    return ParticleCloud(
        positions=jnp.where(mask[:, None], points[chosen], 0.0),
        features=jnp.where(mask[:, None], features[chosen], 0.0),
        mask=mask,
    )
