"""Projection, unprojection and rays against closed forms and the numpy reference."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import references
import scenes

from hdvpd.basics import geometry
from hdvpd.basics.types import Camera

HEIGHT, WIDTH = 24, 32

project = jax.jit(geometry.project)
unproject = jax.jit(geometry.unproject)
unproject_pixels = jax.jit(geometry.unproject_pixels)
rays_through = jax.jit(geometry.rays_through)
pixel_rays = jax.jit(geometry.pixel_rays, static_argnums=(1, 2))


def first(tree):
    return jax.tree.map(lambda x: np.asarray(x)[0], tree)


def random_cameras(count, seed=0):
    rng = np.random.default_rng(seed)
    matrices, poses = [], []
    for _ in range(count):
        matrix = scenes.intrinsics(240, 320, rng.uniform(0.7, 1.5))
        matrix[:2, 2] += rng.uniform(-20, 20, size=2)
        matrices.append(matrix)
        poses.append(scenes.look_at(rng.normal(size=3) + [0, 0, 1], rng.normal(size=3) * 0.2))
    return Camera(
        intrinsics=np.asarray(matrices, np.float32),
        camera_to_world=np.asarray(poses, np.float32),
    )


def test_project_inverts_unproject_within_a_thousandth_of_a_pixel():
    camera = random_cameras(20)
    rng = np.random.default_rng(1)
    columns, rows = rng.integers(320, size=(20, 50)), rng.integers(240, size=(20, 50))
    pixels = jnp.asarray(np.stack([columns, rows], -1) + 0.5, jnp.float32)
    depth = jnp.asarray(rng.uniform(0.1, 2.5, size=(20, 50)), jnp.float32)
    found, found_depth = project(unproject_pixels(pixels, depth, camera), camera)
    assert np.abs(found - pixels).max() < 1e-3
    np.testing.assert_allclose(found_depth, depth, rtol=1e-5)


def test_agrees_with_the_numpy_reference():
    camera = random_cameras(4, seed=2)
    depth = np.random.default_rng(3).uniform(0.3, 2.0, size=(4, 3, 4)).astype(np.float32)
    points = unproject(depth, camera)
    pixels, z = project(points.reshape(4, 12, 3), camera)
    expected = {"points": [], "pixels": [], "z": []}
    for v, i, j in np.ndindex(depth.shape):
        matrix, pose = (np.asarray(x[v], np.float64) for x in jax.tree.leaves(camera))
        point = references.unproject(j + 0.5, i + 0.5, depth[v, i, j], matrix, pose)
        pixel, planar = references.project(point, matrix, pose)
        for name, value in (("points", point), ("pixels", pixel), ("z", planar)):
            expected[name].append(value)
    np.testing.assert_allclose(points.reshape(-1, 3), expected["points"], atol=2e-6)
    np.testing.assert_allclose(pixels.reshape(-1, 2), expected["pixels"], atol=1e-3)
    np.testing.assert_allclose(z.reshape(-1), expected["z"], rtol=1e-5)


def test_identity_camera_has_pixel_centres_at_a_half():
    camera = Camera(intrinsics=jnp.eye(3), camera_to_world=jnp.eye(4))
    points = unproject(jnp.full((2, 3), 2.0), camera)
    np.testing.assert_array_equal(points[1, 2], [5.0, 3.0, 2.0])
    rays = pixel_rays(camera, 2, 3)
    np.testing.assert_allclose(rays.z_scale[0, 0], 1 / np.sqrt(1.5), rtol=1e-6)
    np.testing.assert_allclose(rays.directions[0, 0], np.array([0.5, 0.5, 1]) / np.sqrt(1.5))


def test_rays_are_unit_and_meet_the_unprojected_points():
    camera = first(random_cameras(1, seed=4))
    depth = np.random.default_rng(5).uniform(0.2, 2.0, size=(HEIGHT, WIDTH)).astype(np.float32)
    rays = pixel_rays(camera, HEIGHT, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(rays.directions, axis=-1), 1.0, atol=1e-6)
    reached = rays.origins + (depth / rays.z_scale)[..., None] * rays.directions
    np.testing.assert_allclose(reached, unproject(jnp.asarray(depth), camera), atol=2e-6)


def test_plane_seen_by_two_cameras_is_one_plane():
    camera = scenes.two_cameras(HEIGHT, WIDTH, focal=2.0)
    far_away = np.array([9.0, 9.0, 9.0])
    views = [jax.tree.map(lambda x, v=v: x[v], camera) for v in range(2)]
    depth = np.stack([scenes.trace(view, HEIGHT, WIDTH, far_away)[1] for view in views])
    assert (depth > 0).mean() > 0.5
    points = np.asarray(unproject(jnp.asarray(depth), camera))
    assert np.abs(points[depth > 0][:, 2]).max() < 1e-3


def test_image_of_half_the_size_has_rays_through_the_middle_of_its_blocks():
    camera = first(random_cameras(1, seed=6))
    scale = jnp.asarray([[0.5, 1, 0.5], [1, 0.5, 0.5], [1, 1, 1]], jnp.float32)
    small = Camera(intrinsics=camera.intrinsics * scale, camera_to_world=camera.camera_to_world)
    corners = jnp.asarray([[2.0, 2.0], [30.0, 18.0]])
    half = rays_through(corners / 2, small)
    full = rays_through(corners, camera)
    np.testing.assert_allclose(half.directions, full.directions, atol=1e-6)


def test_points_behind_the_camera_have_no_positive_depth_and_stay_finite():
    camera = Camera(intrinsics=jnp.eye(3), camera_to_world=jnp.eye(4))
    points = jnp.asarray([[0.1, 0.2, -1.0], [0.1, 0.2, 0.0], [0.1, 0.2, 1.0]])
    pixels, depth = project(points, camera)
    np.testing.assert_array_equal(depth > 0, [False, False, True])
    assert np.isfinite(pixels).all()
    grads = jax.grad(lambda p: project(p, camera)[0].sum())(points)
    assert np.isfinite(grads).all()


def test_leading_axes_equal_a_loop():
    camera = random_cameras(6, seed=7)
    grouped = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), camera)
    depth = jnp.asarray(np.random.default_rng(8).uniform(0.5, 1, size=(2, 3, 4, 5)), jnp.float32)
    points = unproject(depth, grouped)
    for i, j in np.ndindex(2, 3):
        single = jax.tree.map(lambda x, i=i, j=j: x[i, j], grouped)
        np.testing.assert_array_equal(points[i, j], unproject(depth[i, j], single))


def test_gradients_equal_finite_differences():
    with jax.enable_x64(True):
        camera = jax.tree.map(lambda x: x.astype(np.float64), first(random_cameras(1, seed=9)))
        rng = np.random.default_rng(10)
        pixels, depth = rng.uniform(0, 300, (3, 2)), rng.uniform(1, 2, 3)
        arguments = (pixels, depth, camera)
        jax.test_util.check_grads(unproject_pixels, arguments, order=1, modes=["rev"])
        points = unproject_pixels(*arguments)
        jax.test_util.check_grads(project, (points, camera), order=1, modes=["rev"])
