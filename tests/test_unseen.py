"""What is hidden of things: drawn alike for all of one, it decides how pushes end."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx
from scipy.spatial.transform import Rotation
from test_things import SIZE, cloud_of, cube, hand, table

from hdvpd.basics.errors import UserError
from hdvpd.dynamics.body import Boxes
from hdvpd.dynamics.segments import Segments, up_axis
from hdvpd.dynamics.surroundings import surroundings
from hdvpd.dynamics.things import moved_things
from hdvpd.dynamics.unseen import Unseen, draw_unseen, unseen_of_things
from hdvpd.model import Model

BLADE_M = np.asarray([0.03, 0.002, 0.01], np.float32)
"""Half the length, width and height of what pushes."""
SPREADS = (0.2, 0.5, 0.003)
"""Of middle, turning and margin."""


def things_of(label):
    label = np.asarray(label, np.int32)
    return Segments(jnp.asarray(label), jnp.zeros(label.shape), jnp.asarray(0.01))


def columns(drawn):
    return np.concatenate([drawn.middle, np.stack([drawn.turning, drawn.margin_m], axis=1)], axis=1)


def test_draws_are_alike_within_a_thing_and_have_the_spreads_over_things():
    """Things of three particles each, and particles of none, for which nothing is hidden."""
    label = np.repeat(3 * np.arange(4000) + 2, 3)
    label[-30:] = len(label)
    drawn = columns(
        jax.jit(draw_unseen, static_argnums=2)(
            things_of(label), np.zeros((len(label), 3), np.float32), SPREADS, jax.random.key(0)
        )
    )
    np.testing.assert_array_equal(drawn[0:-30:3], drawn[1:-30:3])
    np.testing.assert_array_equal(drawn[0:-30:3], drawn[2:-30:3])
    np.testing.assert_array_equal(drawn[-30:], 0)
    np.testing.assert_allclose(drawn[:-30:3].std(axis=0), [0.2, 0.2, 0.2, 0.5, 0.003], rtol=0.05)
    np.testing.assert_allclose(drawn[:-30:3].mean(axis=0) / drawn.std(axis=0), 0, atol=0.06)


def test_things_that_part_keep_what_is_hidden_and_things_that_meet_share_it():
    own = np.asarray([1.0, 1, 1, 4, 4, 9], np.float32)
    rows = np.repeat(own[:, None], 3, axis=1)
    hidden = Unseen(middle=rows, turning=own, margin_m=own, places=rows)
    apart = unseen_of_things(things_of([0, 2, 2, 4, 4, 6]), hidden, rows, up_axis("z"))
    np.testing.assert_allclose(apart.turning, [1, 1, 1, 4, 4, 0])
    together = unseen_of_things(things_of([4, 4, 4, 4, 4, 6]), hidden, rows, up_axis("z"))
    np.testing.assert_allclose(together.middle[:, 0], [2.2] * 5 + [0], rtol=1e-6)


def pushed_cube():
    """A blade that comes along x to the middle of a cube's face, which is at x = 0."""
    cloud = cloud_of(cube(np.asarray([0.025, 0.0, 0.026])), table())
    x = np.asarray([-0.058, -0.038, -0.018])
    return cloud, hand([[place, 0.0, 0.03] for place in x], apart_m=0.0)


@functools.partial(jax.jit, static_argnums=3)
def displaced(current, robot, hidden, up, half_m=BLADE_M):
    around = surroundings(current, colors=True)
    size = jnp.tile(half_m, (robot.positions.shape[1], 1))
    things = np.ones(len(current.mask), bool)
    boxes = Boxes(-size, size)
    return moved_things(current, robot, things, around, boxes, up=up, unseen=hidden).displacement


def hide(middle=(0.0, 0.0, 0.0), turning=0.0, margin_m=0.0, places=None):
    places = pushed_cube()[0].positions if places is None else places
    count = len(places)
    return Unseen(
        middle=np.tile(np.float32(middle), (count, 1)),
        turning=np.full(count, turning, np.float32),
        margin_m=np.full(count, margin_m, np.float32),
        places=places,
    )


def turn_of(cloud, moved):
    """Angle of the rigid motion of the cube about the vertical axis."""
    before = cloud.positions[:SIZE]
    after = before + moved[:SIZE]
    fit, _ = Rotation.align_vectors(after - after.mean(0), before - before.mean(0))
    return fit.as_rotvec()[2]


@pytest.mark.parametrize("up", ["z", "none"])
def test_nothing_hidden_is_what_is_likeliest(up):
    cloud, robot = pushed_cube()
    with_none = np.asarray(displaced(cloud, robot, None, up))
    np.testing.assert_array_equal(displaced(cloud, robot, hide(), up), with_none)
    assert with_none[:SIZE, 0].min() > 0.005


def test_a_thing_that_is_touched_earlier_is_pushed_as_much_farther():
    cloud, robot = pushed_cube()
    moved = [displaced(cloud, robot, hide(margin_m=m), "z")[:SIZE] for m in (0.0, 0.002)]
    np.testing.assert_allclose(np.asarray(moved[1]) - moved[0], [[0.002, 0, 0]] * SIZE, atol=1e-5)
    np.testing.assert_allclose(displaced(cloud, robot, hide(margin_m=0.002), "z")[SIZE:], 0)


def test_a_weight_beside_the_middle_turns_the_thing_to_its_side_as_sliding_says():
    """A cube's top has the radius of gyration r; the contact is at x = -a - b r from the weight."""
    cloud, robot = pushed_cube()
    way = float(np.mean(displaced(cloud, robot, hide(), "z")[:SIZE, 0]))
    top = cube(np.zeros(3))
    top = top[top[:, 2] > 0.012, :2]
    radius2 = np.mean(np.sum(top**2, axis=1))
    beside = 0.6 * np.sqrt(radius2)
    for turning in (0.0, 1.0):
        moved = displaced(cloud, robot, hide((0.0, 0.6, 0.0), turning), "z")
        # The particles that touch are up to 5 mm beside the blade's middle, contact 3 mm farther.
        y, x = -(beside - 0.008), -0.025
        angle = -y * way / (1.3 * np.exp(turning) * radius2 + x**2 + y**2)
        assert turn_of(cloud, np.asarray(moved)) == pytest.approx(angle, rel=0.05)
        mirrored = displaced(cloud, robot, hide((0.0, -0.6, 0.0), turning), "z")
        assert turn_of(cloud, np.asarray(mirrored)) == pytest.approx(-angle, rel=0.05)
    # A weight above or below the middle turns nothing about the vertical.
    moved = displaced(cloud, robot, hide((0.0, 0.0, 0.5)), "z")
    np.testing.assert_allclose(moved, displaced(cloud, robot, hide(), "z"), atol=1e-6)


@pytest.mark.parametrize("degrees", [-90, 30, 180])
def test_a_hidden_weight_turns_with_its_thing(degrees):
    """And goes with it: where it rests is said of the thing, not of the world."""
    cloud, robot = pushed_cube()
    turn = Rotation.from_euler("z", degrees, degrees=True)
    positions = np.array(cloud.positions)
    middle = np.asarray([0.025, 0.0, 0.026])
    positions[:SIZE] = turn.apply(positions[:SIZE] - middle) + middle
    turned = dataclasses.replace(cloud, positions=positions)
    drawn = (0.3, 0.6, 0.2)
    before = hide(drawn)
    before = dataclasses.replace(before, places=before.places + np.float32([0.1, -0.2, 0.0]))
    now = hide(turn.apply(drawn), places=positions)
    expected = displaced(turned, robot, now, "z")
    moved = displaced(turned, robot, before, "z")
    np.testing.assert_allclose(moved, expected, atol=1e-5)
    assert np.abs(moved - displaced(turned, robot, hide(drawn, places=positions), "z")).max() > 1e-4


def test_a_face_that_the_blade_has_passed_by_the_end_of_the_step_turns_as_well():
    """A blade of 4 mm ends 8 mm behind the face; one of 6 cm whose edge is there too does not."""
    cloud, robot = pushed_cube()
    hidden = hide((0.0, 0.6, 0.0))
    expected = np.asarray(displaced(cloud, robot, hidden, "z"))
    short = dataclasses.replace(robot, positions=robot.positions + np.float32([0.028, 0, 0]))
    half_m = np.asarray([0.002, *BLADE_M[1:]], np.float32)
    moved = np.asarray(displaced(cloud, short, hidden, "z", half_m))
    assert abs(turn_of(cloud, moved)) > 0.05
    np.testing.assert_allclose(moved, expected, atol=1e-5)


def test_samples_part_where_the_outcome_is_bistable_and_agree_where_it_is_not():
    """Pushed at the middle of a face the cube slips off to the one side or the other.

    What is likeliest, that the weight is in the middle, goes straight, and so does the mean of the
    samples: it is a future that does not happen. Where the blade misses the cube, all agree.
    """

    @jax.jit
    def future(cloud, passing_m, key):
        label = np.where(np.arange(len(cloud.mask)) < SIZE, SIZE - 1, len(cloud.mask))
        hidden = draw_unseen(things_of(label), cloud.positions, SPREADS, key)
        hidden = dataclasses.replace(hidden, middle=4 * hidden.middle)
        places = cloud.positions
        for step in range(6):
            x = -0.038 + 0.012 * np.arange(step - 1, step + 2)
            way = jnp.stack([x, jnp.full(3, 0.0) + passing_m, jnp.full(3, 0.03)], axis=1)
            robot = scenes.unturned(np.zeros((3, 1, 3)), np.full((3, 1), 0.1))
            robot = dataclasses.replace(robot, positions=way[:, None])
            now = dataclasses.replace(cloud, positions=places)
            places = places + displaced(now, robot, hidden, "z")
        return places

    cloud, _ = pushed_cube()
    keys = jax.random.split(jax.random.key(1), 24)
    samples = np.stack([future(cloud, 0.0, key) for key in keys])
    turns = np.asarray([turn_of(cloud, sample - cloud.positions) for sample in samples])
    assert (turns > 0.1).sum() >= 4
    assert (turns < -0.1).sum() >= 4
    assert np.mean(np.abs(turns)) > 3 * np.abs(np.mean(turns))
    missed = np.stack([future(cloud, 0.05, key) for key in keys[:4]])
    np.testing.assert_array_equal(missed, np.repeat(cloud.positions[None], 4, axis=0))


STOCHASTIC = {
    "carry": True,
    "contact": True,
    "colors": True,
    "lasting_features": True,
    "stochastic": True,
    "up": "z",
}


def test_a_rollout_is_a_function_of_its_key_and_another_key_is_another_future():
    config = scenes.tiny_config(model=STOCHASTIC)
    model = Model(config, scenes.SCENE, rngs=nnx.Rngs(0))
    half = np.full((scenes.SCENE.num_robot_points, 3), 0.01, np.float32)
    model.dynamics.read_out.identity.body.learn(Boxes(-half, half))
    cloud = cloud_of(cube(np.asarray([0.025, 0.0, 0.026])), table())
    wide = np.pad(cloud.features, ((0, 0), (0, config.model.feature_dim - 3)))
    cloud = dataclasses.replace(cloud, features=wide)
    x = -0.04 + 0.015 * np.arange(5)
    places = np.full((5, scenes.SCENE.num_robot_points, 3), 1.0)
    places[:, 0] = np.stack([x, np.full(5, 0.01), np.full(5, 0.03)], axis=1)
    robot = scenes.unturned(places, np.full(places.shape[:2], 0.1))
    roll = jax.jit(lambda seed: model.rollout(cloud, cloud, robot, jax.random.key(seed)).positions)
    first, again, other = (np.asarray(roll(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other)[-1, :SIZE].max() > 1e-3


def test_settings_without_things_are_refused():
    with pytest.raises(UserError, match="stochastic"):
        scenes.tiny_config(model=STOCHASTIC | {"contact": False}).check()
