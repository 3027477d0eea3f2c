"""From pixels to particles: which pixels count, and that the subsample is uniform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes

from hdvpd.basics.color_features import color_features
from hdvpd.basics.geometry import unproject
from hdvpd.basics.types import Camera
from hdvpd.encoders.particles import (
    near_robot,
    subsample,
    visible_points,
    white_targets,
)

HEIGHT, WIDTH, FAR = 10, 14, 2.0
BOX = (-0.4, -0.4, -0.05), (0.4, 0.4, 0.5)


@pytest.fixture(scope="module")
def views():
    """Depth, colours and cameras of the analytic scene from two sides."""
    camera = scenes.two_cameras(HEIGHT, WIDTH)
    traced = [
        scenes.trace(
            jax.tree.map(lambda x, v=v: x[v], camera), HEIGHT, WIDTH, np.array([0, 0, 0.1])
        )
        for v in range(2)
    ]
    rgb, depth = (np.stack(x) for x in zip(*traced, strict=True))
    return np.float32(rgb) / 255, depth, camera


visible = jax.jit(visible_points, static_argnums=(2, 3, 4))
draw = jax.jit(subsample, static_argnums=3)


def test_pixels_inside_the_box_and_range_are_visible(views):
    _, depth, camera = views
    points, valid = visible(depth, camera, *BOX, FAR)
    expected = np.asarray(unproject(depth, camera))
    low, high = (np.array(corner)[None, None, None] for corner in BOX)
    inside = ((expected >= low) & (expected <= high)).all(-1) & (depth > 0)
    assert 0.2 < inside.mean() < 0.9
    np.testing.assert_array_equal(valid, inside)
    np.testing.assert_allclose(np.asarray(points)[inside], expected[inside], atol=1e-6)


def test_range_is_measured_along_the_ray_and_not_along_the_axis():
    # The corner ray of this camera is sqrt(3) times as long as its planar depth.
    camera = Camera(intrinsics=jnp.eye(3) * jnp.asarray([[0.5], [0.5], [1.0]]),
                    camera_to_world=jnp.eye(4))  # fmt: skip
    depth = jnp.asarray([[1.0]])
    box = (-9.0, -9.0, -9.0), (9.0, 9.0, 9.0)
    for far, expected in ((np.sqrt(3) + 1e-3, True), (np.sqrt(3) - 1e-3, False)):
        assert bool(visible(depth, camera, *box, float(far))[1][0, 0]) is expected


@pytest.mark.parametrize("invalid", [0.0, -1.0, np.nan, np.inf, -np.inf])
def test_invalid_depth_never_yields_a_particle(views, invalid):
    rgb, depth, camera = views
    broken = np.random.default_rng(0).random(depth.shape) < 0.3
    depth = np.where(broken, np.float32(invalid), depth)
    points, valid = visible(depth, camera, *BOX, FAR)
    assert not np.asarray(valid)[broken].any()
    assert np.isfinite(points).all()
    # Which invalid value stands there changes nothing at all.
    again, valid_again = visible(np.where(broken, 0, depth), camera, *BOX, FAR)
    np.testing.assert_array_equal(points, again)
    np.testing.assert_array_equal(valid, valid_again)
    painted = np.asarray(white_targets(rgb, depth, camera, *BOX, FAR))
    assert (painted[broken] == 1).all()


def test_targets_are_white_exactly_where_no_particle_is(views):
    rgb, depth, camera = views
    _, valid = visible(depth, camera, *BOX, FAR)
    painted = np.asarray(white_targets(rgb, depth, camera, *BOX, FAR))
    np.testing.assert_array_equal(painted, np.where(np.asarray(valid)[..., None], rgb, 1.0))


def test_no_valid_depth_at_all_gives_an_empty_cloud(key):
    camera = scenes.two_cameras(HEIGHT, WIDTH)
    points, valid = visible(np.full((2, HEIGHT, WIDTH), np.nan, np.float32), camera, *BOX, FAR)
    cloud = draw(
        points.reshape(-1, 3), jnp.ones((2 * HEIGHT * WIDTH, 4)), valid.reshape(-1), 16, key
    )
    assert not np.asarray(cloud.mask).any()
    assert (np.asarray(cloud.positions) == 0).all()
    assert (np.asarray(cloud.features) == 0).all()


def make_points(num_points, num_valid, seed=0):
    """Points whose only feature is their row, so that the chosen ones can be read off."""
    rng = np.random.default_rng(seed)
    points = jnp.asarray(rng.normal(size=(num_points, 3)), jnp.float32)
    valid = np.zeros(num_points, bool)
    valid[rng.permutation(num_points)[:num_valid]] = True
    return points, jnp.arange(num_points, dtype=jnp.float32)[:, None], jnp.asarray(valid)


def test_subsample_has_exactly_n_different_valid_particles(key):
    points, features, valid = make_points(60, 40)
    cloud = draw(points, features, valid, 24, key)
    chosen = np.asarray(cloud.features)[:, 0].astype(int)
    assert np.asarray(cloud.mask).all()
    assert len(set(chosen.tolist())) == 24
    assert np.asarray(valid)[chosen].all()
    np.testing.assert_array_equal(cloud.positions, np.asarray(points)[chosen])


@pytest.mark.parametrize("num_particles", [24, 100])
def test_fewer_valid_points_are_all_kept_and_padded(key, num_particles):
    points, features, valid = make_points(60, 15)
    cloud = draw(points, features, valid, num_particles, key)
    mask = np.asarray(cloud.mask)
    assert mask.shape == (num_particles,)
    assert mask.sum() == 15
    chosen = np.asarray(cloud.features)[mask, 0].astype(int)
    assert sorted(chosen) == np.flatnonzero(valid).tolist()
    assert (np.asarray(cloud.positions)[~mask] == 0).all()
    assert (np.asarray(cloud.features)[~mask] == 0).all()


def test_every_valid_point_is_chosen_equally_often():
    num_points, num_valid, num_particles, seeds = 30, 20, 8, 4000
    points, features, valid = make_points(num_points, num_valid)
    keys = jax.random.split(jax.random.key(3), seeds)
    clouds = jax.jit(jax.vmap(lambda key: subsample(points, features, valid, num_particles, key)))(
        keys
    )
    chosen = np.asarray(clouds.features)[..., 0].astype(int)
    counts = np.zeros((seeds, num_points))
    np.put_along_axis(counts, chosen, 1, axis=1)
    counts = counts[:, np.asarray(valid)]
    # Binomial frequency; five standard errors over 20 points: once in 90,000 keys.
    share = num_particles / num_valid
    error = np.sqrt(share * (1 - share) / seeds)
    np.testing.assert_allclose(counts.mean(0), share, atol=5 * error)
    # Pairs as without replacement: N (N - 1) / (V (V - 1)), so that choices do not cluster.
    pairs = counts.T @ counts / seeds
    together = share * (num_particles - 1) / (num_valid - 1)
    error = np.sqrt(together * (1 - together) / seeds)
    np.testing.assert_allclose(pairs[~np.eye(num_valid, dtype=bool)], together, atol=5.5 * error)


def test_gradient_reaches_chosen_points_only(key):
    points, features, valid = make_points(30, 12)

    def total(points, features):
        cloud = subsample(points, features, valid, 8, key)
        return (cloud.positions.sum() + cloud.features.sum()), cloud.features[:, 0]

    grads, chosen = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(points, features)
    expected = np.zeros(30)
    expected[np.asarray(chosen).astype(int)] = 1
    np.testing.assert_array_equal(grads[0], np.repeat(expected[:, None], 3, 1))
    np.testing.assert_array_equal(grads[1], expected[:, None])


def test_even_particles_leave_no_holes_and_keep_their_features(key):
    """On a square of points, no cell of three particles' share stays empty."""
    line = np.arange(32) / 32
    points = np.stack([*np.meshgrid(line, line), np.zeros((32, 32))], -1).reshape(-1, 3)
    points = points.astype(np.float32)
    features = np.arange(1024, dtype=np.float32)[:, None]
    valid = np.ones(1024, bool)
    counts = {}
    draw_of = jax.jit(subsample, static_argnums=3, static_argnames="even")
    for even, own_key in zip((False, True), jax.random.split(key), strict=True):
        cloud = draw_of(points, features, valid, 192, own_key, even=even)
        chosen = np.asarray(cloud.features)[:, 0].astype(int)
        np.testing.assert_array_equal(cloud.positions, points[chosen])
        assert len(set(chosen)) == 192
        cells = (points[chosen, :2] * 8).astype(int)
        counts[even] = np.bincount(cells[:, 0] * 8 + cells[:, 1], minlength=64)
    # 16 points and 3 particles per cell of the Z order.
    np.testing.assert_array_equal(counts[True], 3)
    assert counts[False].min() < 2


def test_even_particles_of_few_points_are_all_of_them(key):
    points, features, valid = make_points(60, 15)
    cloud = jax.jit(subsample, static_argnums=3, static_argnames="even")(
        points, features, valid, 24, key, even=True
    )
    mask = np.asarray(cloud.mask)
    chosen = np.asarray(cloud.features)[mask, 0].astype(int)
    assert sorted(chosen) == np.flatnonzero(valid).tolist()
    assert (np.asarray(cloud.positions)[~mask] == 0).all()


def test_color_features_are_logits_of_colours():
    rgb = np.linspace(0, 1, 11, dtype=np.float32)[:, None].repeat(3, 1)
    seen = jax.nn.sigmoid(jax.jit(color_features)(rgb))
    np.testing.assert_allclose(seen, np.clip(rgb, 0.02, 0.98), atol=1e-6)


def test_pixels_near_the_robot_are_those_of_a_slow_search(views):
    _, depth, camera = views
    points, valid = visible(depth, camera, *BOX, FAR)
    robot = np.random.default_rng(0).uniform(-0.3, 0.3, (9, 3)).astype(np.float32)
    near = jax.jit(near_robot, static_argnums=3)(points, valid, robot, 0.3)
    apart = np.linalg.norm(np.asarray(points)[..., None, :] - robot[::4], axis=-1).min(-1)
    expected = np.asarray(valid) & (apart < 0.3)
    assert 10 < expected.sum() < 0.8 * valid.sum()
    np.testing.assert_array_equal(near, expected)
