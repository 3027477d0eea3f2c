"""The whole model: encoding, ray sampling, the loss of a static scene, full images, padding."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx
from skimage.metrics import structural_similarity

import hdvpd.model
from hdvpd.basics.geometry import pixel_rays, project, unproject
from hdvpd.basics.layers import Keys
from hdvpd.model import Model
from hdvpd.model.images import render_image
from hdvpd.model.losses import patch_structure, ray_depth_l1
from hdvpd.model.rays import _running_sums, sample_rays

HEIGHT, WIDTH = 12, 16
CONFIG = scenes.tiny_config()


@functools.cache
def model(config=CONFIG):
    return scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))


@functools.cache
def encoder(config=CONFIG):
    graphdef, params = model(config)
    robot = jax.tree.map(lambda x: x[0], scenes.random_robot(0, 1))
    return jax.jit(lambda frames, key: scenes.apply(graphdef, params).encode(frames, robot, key))


@functools.cache
def loss(config):
    """Return the jitted loss of every step, of (parameters, batch, key), and parameters."""
    graphdef, params = model(config)
    return jax.jit(lambda params, *x: scenes.apply(graphdef, params).loss(*x)), params


@pytest.fixture(scope="module")
def batch():
    """Two windows of two observed and two predicted frames."""
    return jax.tree.map(jnp.asarray, scenes.make_batch(2, 4, HEIGHT, WIDTH))


@pytest.fixture(scope="module")
def frames(batch):
    """Both views of one time step."""
    return jax.tree.map(lambda x: x[0, 0], batch.frames)


def as_rows(cloud):
    """Return the real particles as sorted rows of position and features."""
    rows = np.concatenate([cloud.positions, cloud.features], axis=1)[np.asarray(cloud.mask)]
    return rows[np.lexsort(rows.T[::-1])]


EVERYTHING = scenes.tiny_config(model={"num_particles": 2 * HEIGHT * WIDTH})


def test_particles_lie_on_the_surfaces_that_the_cameras_see(frames, key):
    cloud = encoder(EVERYTHING)(frames, key)
    positions = np.asarray(cloud.positions)[np.asarray(cloud.mask)]
    assert len(positions) > 150
    table = np.abs(positions[:, 2])
    ball = np.abs(np.linalg.norm(positions - [[-0.2, 0.0, 0.12]], axis=1) - 0.12)
    assert np.minimum(table, ball).max() < 1e-3
    assert (table < 1e-3).sum() > 50
    assert (ball < 1e-3).sum() > 10


def test_particles_hold_the_features_of_their_pixels(frames, key):
    graphdef, params = model(EVERYTHING)

    def pixels(frames):
        # Colours reach the U-Net in [-1, 1].
        features = scenes.apply(graphdef, params).unet(jnp.float32(frames.rgb) / 127.5 - 1)
        return unproject(frames.depth_m, frames.camera), features

    points, features = jax.jit(pixels)(frames)
    rows = np.concatenate([points, features], axis=-1)[np.asarray(frames.depth_m) > 0]
    low, high = (
        np.array(x)[None] for x in (scenes.SCENE.workspace_min, scenes.SCENE.workspace_max)
    )
    inside = ((rows[:, :3] >= low) & (rows[:, :3] <= high)).all(1)
    from_camera = np.asarray(frames.camera.camera_to_world)[:, None, :3, 3] - rows[None, :, :3]
    assert np.linalg.norm(from_camera, axis=-1).max() < CONFIG.render.far
    expected = rows[inside]
    expected = expected[np.lexsort(expected.T[::-1])]
    np.testing.assert_allclose(as_rows(encoder(EVERYTHING)(frames, key)), expected, atol=1e-5)


def test_permuting_cameras_permutes_the_merged_cloud(frames, key):
    swapped = jax.tree.map(lambda x: x[::-1], frames)
    with jax.debug_key_reuse(False):
        one, other = (encoder(EVERYTHING)(x, key) for x in (frames, swapped))
    np.testing.assert_array_equal(as_rows(one), as_rows(other))


def test_a_camera_sees_the_same_whatever_its_place_in_the_list(frames, key):
    # Features of a view must not depend on the other view's image.
    dark = dataclasses.replace(frames, rgb=frames.rgb.at[1].set(0))
    blind = dataclasses.replace(dark, depth_m=dark.depth_m.at[1].set(0.0))
    seeing = dataclasses.replace(frames, depth_m=frames.depth_m.at[1].set(0.0))
    with jax.debug_key_reuse(False):
        one, other = (encoder(EVERYTHING)(x, key) for x in (blind, seeing))
    np.testing.assert_allclose(as_rows(one), as_rows(other), atol=1e-5)


def test_invalid_depth_of_any_kind_gives_the_same_cloud(frames, key):
    broken = np.random.default_rng(0).random(frames.depth_m.shape) < 0.3
    with jax.debug_key_reuse(False):
        clouds = [
            encoder()(
                dataclasses.replace(frames, depth_m=jnp.where(broken, value, frames.depth_m)), key
            )
            for value in (0.0, jnp.nan, jnp.inf)
        ]
    for other in clouds[1:]:
        for one, two in zip(jax.tree.leaves(clouds[0]), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(one, two)


def test_padding_changes_no_rendered_pixel(batch, frames, key):
    # The same particles with and without room for a hundred more.
    def predict(num_particles):
        config = scenes.tiny_config(model={"num_particles": num_particles})
        graphdef, params = model(config)

        def run(frames, key, robot, rays):
            module = scenes.apply(graphdef, params)
            cloud = module.encode(frames, jax.tree.map(lambda x: x[1], robot), key)
            after = module.rollout(cloud, cloud, robot, jax.random.key(0))
            last = jax.tree.map(lambda x: x[-1], after)
            return cloud.mask.sum(), module.render(last, rays, None)

        camera = jax.tree.map(lambda x: x[0], frames.camera)
        rays = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[::5], pixel_rays(camera, 12, 16))
        robot = jax.tree.map(lambda x: x[0], batch.robot)
        return jax.jit(run)(frames, key, robot, rays)

    few = np.random.default_rng(1).random(frames.depth_m.shape) < 0.1
    frames = dataclasses.replace(frames, depth_m=jnp.where(few, frames.depth_m, 0.0))
    count = int(encoder(EVERYTHING)(frames, jax.random.key(1)).mask.sum())
    assert count > 10
    with jax.debug_key_reuse(False):
        (real, tight), (same, loose) = predict(count), predict(count + 100)
    assert int(real) == int(same) == count
    assert np.std(tight.rgb) > 1e-3
    for one, other in zip(jax.tree.leaves(tight), jax.tree.leaves(loose), strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


def test_what_is_near_the_robot_becomes_particles_more_often(frames, batch, key):
    robot = jax.tree.map(lambda x: x[0, 0], batch.robot)
    robot = dataclasses.replace(robot, positions=jnp.zeros_like(robot.positions))

    def count(num_particles, weight):
        """Count the particles within 15 cm of the origin, and all."""
        config = scenes.tiny_config(
            model={"num_particles": num_particles, "even": True, "near_weight": weight}
        )
        graphdef, params = model(config)
        encode = jax.jit(lambda *x: scenes.apply(graphdef, params).encode(*x))
        cloud = encode(frames, robot, jax.random.clone(key))
        positions = np.asarray(cloud.positions)[np.asarray(cloud.mask)]
        return (np.linalg.norm(positions, axis=1) < 0.15).sum(), len(positions)

    near, total = count(2 * HEIGHT * WIDTH, 1.0)
    assert near > 10
    few, many = (count(48, weight)[0] for weight in (1.0, 3.0))
    assert abs(few - 48 * near / total) <= 2  # in Z order they are several stretches
    assert abs(many - 48 * 3 * near / (3 * near + total - near)) <= 1


def test_white_targets_keep_visible_colours(frames):
    graphdef, params = model()
    targets = np.asarray(scenes.apply(graphdef, params).white_targets(frames))
    seen = np.asarray(frames.depth_m) > 0
    inside = seen & (np.abs(targets - 1).max(-1) > 0)
    np.testing.assert_allclose(targets[inside], np.asarray(frames.rgb)[inside] / 255, atol=1e-6)
    assert (targets[~seen] == 1).all()
    assert inside.sum() > 100


jitted_rays = jax.jit(sample_rays, static_argnums=(3, 4))


def numbered_target(batch):
    """Colours that name window, step and pixel, so that a drawn ray can be looked up."""
    shape = (2, 2, 2, HEIGHT, WIDTH)
    b, s, v, i, j = np.indices(shape)
    return np.stack([100 * b + 10 * s + v, i, j], -1).astype(np.float32)


def test_sampled_rays_run_through_the_pixels_of_their_targets(batch, key):
    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    target = numbered_target(batch)
    # Differing cameras per window and step would show a mixed-up axis.
    shift = np.random.default_rng(0).normal(size=(2, 2, 2)).astype(np.float32)
    pose = future.camera.camera_to_world.at[..., 0, 3].add(shift)
    camera = dataclasses.replace(future.camera, camera_to_world=pose)
    future = dataclasses.replace(future, camera=camera)
    rays, colours = jitted_rays(future, target, target[:, :1], 40, 1.0, jax.random.split(key))
    colours = np.asarray(colours).astype(int)
    every = jax.tree.map(
        np.asarray, jax.vmap(jax.vmap(jax.vmap(lambda c: pixel_rays(c, HEIGHT, WIDTH))))(camera)
    )
    for b, s in np.ndindex(2, 2):
        assert (colours[b, s, :, 0] // 10 == 10 * b + s).all()
        index = (b, s, colours[b, s, :, 0] % 10, colours[b, s, :, 1], colours[b, s, :, 2])
        for name in ("origins", "directions", "z_scale"):
            np.testing.assert_allclose(
                getattr(rays, name)[b, s], getattr(every, name)[index], atol=1e-6
            )


def test_rays_are_uniform_over_all_pixels_of_both_cameras(batch, key):
    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    target, num_rays = numbered_target(batch), 40_000
    _, colours = jitted_rays(future, target, target[:, :1], num_rays, 1.0, jax.random.split(key))
    colours = np.asarray(colours).astype(int)
    cell = (colours[..., 0] % 10) * HEIGHT * WIDTH + colours[..., 1] * WIDTH + colours[..., 2]
    counts = np.stack(
        [np.bincount(row, minlength=2 * HEIGHT * WIDTH) for row in cell.reshape(4, -1)]
    )
    share = 1 / (2 * HEIGHT * WIDTH)
    # Binomial counts, five standard errors over 1,536 cells: once in a thousand keys.
    error = np.sqrt(share * (1 - share) / num_rays)
    np.testing.assert_allclose(counts / num_rays, share, atol=5 * error)
    assert (cell[0, 0] != cell[0, 1]).any()
    assert (cell[0, 0] != cell[1, 0]).any()


def test_moving_pixels_are_drawn_as_much_more_often_as_asked(batch, key):
    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    before = np.zeros((2, 1, 2, HEIGHT, WIDTH, 3), np.float32)
    target = np.zeros((2, 2, 2, HEIGHT, WIDTH, 3), np.float32)
    target[..., :4, :, 1] = 0.11  # a third of the rows moves
    target[..., 4:8, :, 2] = 0.09  # below the threshold
    num_rays = 20_000
    _, colours = jitted_rays(future, target, before, num_rays, 4.0, jax.random.split(key))
    share = (np.asarray(colours)[..., 1] > 0.1).mean(-1)
    expected = 4 / (4 + 2)
    error = np.sqrt(expected * (1 - expected) / num_rays)
    np.testing.assert_allclose(share, expected, atol=5 * error)


def squares_of(batch, key, weight, num_rays=8 * 9, near=None, **kwargs):
    """Return rays and (view, row, column) of squares of three by three, axes (b s squares 9)."""
    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    target = numbered_target(batch)
    target[..., 0] = np.arange(2)[:, None, None]  # nothing moves: what is near alone has weight
    run = functools.partial(sample_rays, patch_size=3, **kwargs)
    draw, keys = jax.jit(run, static_argnums=(3, 4)), jax.random.split(key)
    rays, colours = draw(future, target, target[:, :1], num_rays, weight, keys, near=near)
    numbers = np.asarray(colours).astype(int).reshape(2, 2, -1, 9, 3)
    return future.camera, rays, numbers


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_rays_in_squares_lie_row_by_row_in_one_image(batch, key, weight):
    _, _, numbers = squares_of(batch, key, weight)
    offset = np.stack([np.zeros(9), np.arange(9) // 3, np.arange(9) % 3], axis=-1)
    np.testing.assert_array_equal(numbers, numbers[..., :1, :] + offset.astype(int))
    assert numbers[..., 1].min() >= 0
    assert numbers[..., 1].max() < HEIGHT
    assert numbers[..., 2].max() < WIDTH
    assert len(np.unique(numbers[..., 0, :].reshape(-1, 3), axis=0)) > 20


def test_squares_are_drawn_for_the_pixel_in_their_middle(batch, key):
    near = np.zeros((2, 2, 2, HEIGHT, WIDTH), bool)
    near[:, :, 1, 5, 7] = True
    _, _, numbers = squares_of(batch, key, 1e4, near=near)
    hits = (numbers[..., 4, :] == [1, 5, 7]).all(-1).mean()
    assert hits > 0.9  # 10,000 against 279 others


def test_rays_of_a_pixel_are_a_grid_in_it(batch, key):
    camera, rays, numbers = squares_of(batch, key, 1.0, supersample=2)
    assert rays.origins.shape == (2, 2, 4 * 72, 3)
    place = np.asarray([[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]])
    for b, s in np.ndindex(2, 2):
        pixel = numbers[b, s].reshape(-1, 3)
        expected = (pixel[:, None, :0:-1] + place).reshape(-1, 2)
        for v in range(2):
            of_view = np.repeat(pixel[:, 0] == v, 4)
            points = (rays.origins + rays.directions)[b, s]
            seen, _ = project(points, jax.tree.map(lambda x, at=(b, s, v): x[at], camera))
            np.testing.assert_allclose(np.asarray(seen)[of_view], expected[of_view], atol=1e-3)


def test_an_image_of_several_rays_per_pixel_is_the_mean_of_a_finer_one(frames, key):
    cloud = encoder()(frames, key)
    camera = jax.tree.map(lambda x: np.asarray(x[0]), frames.camera)
    twice = camera.intrinsics * np.array([[2], [2], [1]], np.float32)
    fine, inputs = image_of(
        CONFIG, cloud, dataclasses.replace(camera, intrinsics=twice), 2 * HEIGHT, 2 * WIDTH
    )
    fine = fine(*inputs)
    config = scenes.tiny_config(render={"supersample": 2})
    run, inputs = image_of(config, cloud, camera, HEIGHT, WIDTH)
    image = run(*inputs)
    grouped = np.reshape(fine.rgb, (HEIGHT, 2, WIDTH, 2, 3))
    np.testing.assert_allclose(image.rgb, grouped.mean((1, 3)), atol=1e-5)
    depths = (
        np.reshape(fine.depth_m, (HEIGHT, 2, WIDTH, 2)).swapaxes(1, 2).reshape(HEIGHT, WIDTH, 4)
    )
    np.testing.assert_allclose(image.depth_m, np.sort(depths, -1)[..., 1], atol=1e-5)
    assert np.std(image.rgb) > 1e-3


def test_structure_is_that_of_scikit_image():
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 2, 3, 4, 7, 7, 3)).astype(np.float32)
    y = 0.5 * x + 0.5 * y  # related
    rows = [z.reshape(2, 3, 4 * 49, 3) for z in (x, y)]
    found = jax.jit(patch_structure, static_argnums=2)(*rows, 7)
    expected = [
        1 - np.mean([
            structural_similarity(
                np.float64(x[b, s, i]), np.float64(y[b, s, i]), win_size=7, channel_axis=-1,
                data_range=1, use_sample_covariance=False,
            )
            for b, i in np.ndindex(2, 4)
        ])
        for s in range(3)
    ]  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert 0.1 < found.min() < found.max() < 0.9


def test_structure_of_flat_and_of_equal_squares_has_gradients():
    flat, rows = np.zeros((1, 1, 16, 3), np.float32), np.random.default_rng(0).random((1, 1, 16, 3))
    run = jax.jit(jax.value_and_grad(lambda x, y: patch_structure(x, y, 4).sum()))
    for x, y in ((flat, flat), (np.float32(rows), np.float32(rows))):
        value, gradient = run(x, y)
        assert abs(value) < 1e-6
        assert np.abs(gradient).max() < 1e-4


def freeze(params):
    """Zero the read-out, as at initialisation: the dynamics copies its input."""
    return {**params, "dynamics": scenes.with_last_layer(params["dynamics"])}


def test_static_scene_without_dynamics_has_the_reconstruction_loss_at_every_step(monkeypatch):
    batch = jax.tree.map(jnp.asarray, scenes.make_batch(2, 5, HEIGHT, WIDTH, moving=False))
    graphdef, params = model()
    params = freeze(params)
    drawn = np.random.default_rng(0).integers(HEIGHT * WIDTH, size=16)

    def same_rays(frames, target, *_, near=None, **squares):
        assert near is None
        camera = jax.tree.map(lambda x: x[0, 0, 0], frames.camera)
        rays = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:])[drawn], pixel_rays(camera, HEIGHT, WIDTH)
        )
        steps = target.shape[:2]
        rays = jax.tree.map(lambda x: jnp.broadcast_to(x, (*steps, *x.shape)), rays)
        return rays, target[:, :, 0].reshape(*steps, -1, target.shape[-1])[:, :, drawn]

    monkeypatch.setattr(hdvpd.model, "sample_rays", same_rays)

    def deterministic(graphdef, params):
        module = scenes.apply(graphdef, params)
        render = module.renderer

        class MiddleOfStrata(nnx.Module):
            def __call__(self, clouds, rays, key, spacing=1.0, index=None):
                del key, index
                return render(clouds, rays, None, spacing)

        module.renderer = MiddleOfStrata()
        return module

    def run(batch, key):
        module = deterministic(graphdef, params)
        per_step = module.loss(batch, key)
        # Reconstruction: encode the last observed frame as the loss does and render it.
        encode_key = jax.random.split(key, 4)[0]
        keys = [jax.random.split(jax.random.fold_in(encode_key, b))[1] for b in range(2)]
        errors = []
        for b in range(2):
            frames = jax.tree.map(lambda x, b=b: x[b, 1], batch.frames)
            rays, target = same_rays(
                jax.tree.map(lambda x: x[None, None], frames),
                module.white_targets(frames)[None, None],
            )
            rays = jax.tree.map(lambda x: x[0, 0], rays)
            robot = jax.tree.map(lambda x, b=b: x[b, 1], batch.robot)
            seen = module.render(module.encode(frames, robot, keys[b]), rays, None)
            errors.append(jnp.mean((seen.rgb - target[0, 0]) ** 2))
        return per_step, sum(errors) / 2

    with jax.debug_key_reuse(False):
        per_step, reconstruction = jax.jit(run)(batch, jax.random.key(0))
    assert reconstruction > 1e-3
    np.testing.assert_allclose(per_step, reconstruction, rtol=1e-5)


def image_of(config, cloud, camera, height, width):
    graphdef, params = model(config)

    def run(cloud, camera):
        return render_image(scenes.apply(graphdef, params), cloud, camera, height, width)

    return jax.jit(run), (cloud, camera)


def test_image_in_chunks_equals_the_whole_image(frames, key):
    cloud = encoder()(frames, key)
    camera = jax.tree.map(lambda x: x[0], frames.camera)
    images = []
    for chunk_rays in (50, 5000):
        config = scenes.tiny_config(render={"chunk_rays": chunk_rays})
        run, inputs = image_of(config, cloud, camera, HEIGHT, WIDTH)
        images.append(run(*inputs))
    graphdef, params = model()
    rays = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), pixel_rays(camera, HEIGHT, WIDTH))
    direct = jax.jit(lambda *x: scenes.apply(graphdef, params).render(*x, None))(cloud, rays)
    assert images[0].rgb.shape == (HEIGHT, WIDTH, 3)
    assert images[0].depth_m.shape == images[0].acc.shape == (HEIGHT, WIDTH)
    assert np.std(direct.rgb) > 1e-3
    for image in images:
        for name in ("rgb", "depth_m", "acc"):
            flat = np.asarray(getattr(direct, name)).reshape(getattr(image, name).shape)
            np.testing.assert_allclose(getattr(image, name), flat, atol=1e-6)


def test_memory_of_an_image_does_not_grow_with_its_size(frames, key):
    cloud = encoder()(frames, key)
    camera = jax.tree.map(lambda x: x[0], frames.camera)
    config = scenes.tiny_config(render={"chunk_rays": 256})

    def temporary_bytes(height, width):
        run, inputs = image_of(config, cloud, camera, height, width)
        memory = run.lower(*inputs).compile().memory_analysis()
        return memory.temp_size_in_bytes

    # Beyond the rays themselves and the padded result: 12 floats per added pixel.
    added = temporary_bytes(64, 64) - temporary_bytes(16, 32)
    assert added < 1.5 * 4 * 12 * (64 * 64 - 16 * 32)


def test_frames_of_a_time_step_may_have_any_number_of_views(frames, key):
    one_view = jax.tree.map(lambda x: x[:1], frames)
    cloud = encoder(EVERYTHING)(one_view, key)
    positions = np.asarray(cloud.positions)[np.asarray(cloud.mask)]
    assert 50 < len(positions) <= (np.asarray(one_view.depth_m) > 0).sum()


EXTENDED = {
    "model": {
        "contact": True, "carry": True, "colors": True, "even": True, "unet_channels": (8,),
    },
    "render": {"surface_thickness": 0.01, "surface_bandwidth": 0.03},
}  # fmt: skip


def test_reconstruction_is_one_image_more_and_depth_is_added(batch, key):
    """With every addition to the papers on, and all gradients are finite."""
    train = {"reconstruct": True, "depth_weight": 10.0, "near_ray_distance": 0.15}
    config = scenes.tiny_config(**EXTENDED, train=train)
    graphdef, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))

    def total(params, batch, key):
        per_image = scenes.apply(graphdef, params).loss(batch, key)
        return per_image.sum(), per_image

    (_, per_image), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params, batch, key)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    # Colours are off by at most 1, depth by decimetres in the mean.
    assert per_image.shape == (3,)
    assert (np.asarray(per_image) > 1.0).all()
    scored = functools.partial(scenes.apply(graphdef, params).loss, scored=True)
    assert jax.eval_shape(scored, batch, jax.random.clone(key)).shape == (2,)


def test_structure_is_added_where_squares_are_drawn(batch, key):
    """With several rays per pixel; gradients are finite, and scores draw single pixels."""
    train = {"patch_size": 4, "num_rays": 32, "structure_weight": 10.0}
    config = scenes.tiny_config(train=train, render={"supersample": 2})
    graphdef, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))

    def total(params, batch, key):
        per_image = scenes.apply(graphdef, params).loss(batch, key)
        return per_image.sum(), per_image

    (_, per_image), grads = jax.jit(jax.value_and_grad(total, has_aux=True))(params, batch, key)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    # Squared errors are at most 1; what random parameters see has little structure.
    assert (np.asarray(per_image) > 2.0).all()
    scored = functools.partial(scenes.apply(graphdef, params).loss, scored=True)
    assert jax.eval_shape(scored, batch, jax.random.clone(key)).shape == (2,)


def test_training_may_draw_fewer_particles_than_rollouts(batch, key):
    """The loss is that of a model with so few and wider kernels; frames are encoded with all."""
    config = scenes.tiny_config(train={"cloud_size": 32})
    few = scenes.tiny_config(model={"num_particles": 32})
    wider = math.sqrt(config.model.num_particles / 32)
    render = dataclasses.replace(
        few.render,
        radii=tuple(wider * x for x in few.render.radii),
        bandwidths=tuple(wider * x for x in few.render.bandwidths),
    )
    few = dataclasses.replace(few, render=render)
    losses = []
    for c in (config, few, CONFIG):
        run, params = loss(c)
        losses.append(np.asarray(run(params, batch, jax.random.clone(key))))
    np.testing.assert_array_equal(losses[0], losses[1])
    assert (losses[0] != losses[2]).any()
    observed = jax.tree.map(lambda x: x[0, 0], batch.frames)
    robot = jax.tree.map(lambda x: x[0, 0], batch.robot)
    encode = scenes.apply(*model(config)).encode
    cloud = jax.eval_shape(encode, observed, robot, jax.random.key(0))
    assert cloud.mask.shape == (config.model.num_particles,)


def test_depth_errors_count_where_depth_was_seen():
    predicted = jnp.asarray([[[1.0, 2.0, 5.0]], [[1.0, 1.0, 1.0]]])
    target = jnp.asarray([[[1.5, 2.0, 0.0]], [[2.0, 0.0, 1.0]]])
    np.testing.assert_allclose(ray_depth_l1(predicted, target), [1.5 / 6])


def test_loss_of_bfloat16_products_is_near_that_of_float32(batch, key):
    """Stated tolerance: the loss of every step to 2 %. Not the gradient (docs/lab-book.md)."""

    def value_of(precision):
        run, params = loss(scenes.tiny_config(model={"precision": precision}))
        return run(params, batch, key)

    with jax.debug_key_reuse(False):
        value, rounded = value_of("float32"), value_of("bfloat16")
    assert rounded.dtype == jnp.float32
    assert (rounded != value).any()
    np.testing.assert_allclose(rounded, value, rtol=0.02)


@pytest.mark.parametrize("count", [1, 32, 100, 3000])
def test_running_sums_are_those_of_numpy(count):
    weights = np.random.default_rng(0).choice([1.0, 4.0], size=(2, count)).astype(np.float32)
    # Sums of whole numbers are exact.
    np.testing.assert_array_equal(_running_sums(weights), np.cumsum(np.float64(weights), axis=1))
