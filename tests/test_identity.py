"""Which particles are the robot's: what is there again and again in the axes of its links."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

from hdvpd.basics.types import ParticleCloud
from hdvpd.config.experiments import apply_overrides
from hdvpd.data.store import Dataset
from hdvpd.dynamics.body import NEAR_M, Boxes
from hdvpd.dynamics.identity import Identity, NearRobot, contrast, point_nearness
from hdvpd.dynamics.surroundings import surroundings
from hdvpd.model import Model
from hdvpd.training.identity import Seen, fit, learn_identity

GREY, WHITE = [0.4, 0.45, 0.5], [0.9, 0.9, 0.9]
ARM = np.asarray([[0.0, 0.0, 0.05 * i] for i in range(5)])


def turned(rng):
    """A random rotation."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q *= np.sign(np.diag(r))
    return q * np.linalg.det(q)


def moment(rng):
    """A moment of a recording of an arm: a grey tube of 3 cm radius about its points, turned.

    In half of the moments it holds something of 3 cm beyond its last point, each of another
    colour than the arm's; a white table passes by at another distance each time.

    Returns:
      Positions [m], colours, kinematic points [m], and what each particle is: 0 the robot, 1 held,
      2 the table.
    """
    angle, height = rng.uniform(0, 2 * np.pi, 150), rng.uniform(-0.02, 0.22, 150)
    tube = np.stack([0.03 * np.cos(angle), 0.03 * np.sin(angle), height], axis=1)
    held = (
        rng.uniform(-0.03, 0.03, (20, 3)) + [0, 0, 0.27] if rng.random() < 0.5 else np.zeros((0, 3))
    )
    way = rng.normal(size=3)
    flat = np.linalg.svd(way[None] / np.linalg.norm(way))[2][1:]
    table = rng.uniform(-0.3, 0.3, (150, 2)) @ flat
    table += ARM.mean(0) + rng.uniform(0.05, 0.15) * way / np.linalg.norm(way)
    kind = np.repeat([0, 1, 2], [len(tube), len(held), len(table)])
    drawn = rng.uniform(0, 1, (100, 3))
    other = drawn[np.linalg.norm(drawn - GREY, axis=1) > 0.35][0]
    colors = np.asarray([GREY, other, WHITE])[kind]
    colors = np.clip(colors + rng.normal(scale=0.03, size=colors.shape), 0.01, 0.99)
    turn, shift = turned(rng), rng.uniform(-0.5, 0.5, 3)
    places = np.concatenate([tube, held, table]) @ turn.T + shift
    return np.float32(places), np.float32(colors), np.float32(ARM @ turn.T + shift), kind


def cloud_of(positions, colors):
    return ParticleCloud(
        positions=positions,
        features=np.log(colors / (1 - colors)),
        mask=np.ones(len(positions), bool),
    )


@pytest.fixture(scope="module")
def learned():
    """What 100 moments teach, in 300 steps."""
    rng = np.random.default_rng(0)
    moments = [moment(rng) for _ in range(100)]
    frame = np.repeat(np.arange(100), [len(x) for x, *_ in moments])
    positions, colors = (np.concatenate([m[i] for m in moments]) for i in range(2))
    points = np.stack([m[2] for m in moments])
    near = np.asarray(point_nearness(positions, points[frame])[1])
    seen = Seen(
        positions=positions[near],
        colors=colors[near],
        frame=np.int32(frame[near]),
        points=points,
        axes=np.tile(np.eye(3, dtype=np.float32), (*points.shape[:2], 1, 1)),
        far_colors=colors[~near],
    )
    identity = Identity(len(ARM), colors=True, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(identity)
    return nnx.merge(graphdef, fit(graphdef, state, seen, jax.random.key(0), 300))


def judge(identity):
    """Compile `is_robot` of a cloud and kinematic points."""
    graphdef, state = nnx.split(identity)

    @jax.jit
    def is_robot(state, cloud, robot):
        around = surroundings(cloud, colors=True)
        return nnx.merge(graphdef, state).is_robot(cloud, robot, around)

    return lambda cloud, points: is_robot(state, cloud, scenes.unturned([points] * 3))


def test_the_robot_is_told_from_the_table_and_from_what_it_holds(learned):
    """In poses that were never seen, with colours that were never seen."""
    rng = np.random.default_rng(1)
    shares, is_robot = {0: [], 1: [], 2: []}, judge(learned)
    for _ in range(10):
        places, colors, points, kind = moment(rng)
        robot = np.asarray(is_robot(cloud_of(places, colors), points))
        for part in set(kind):
            shares[part].append(robot[kind == part].mean())
    assert np.mean(shares[0]) > 0.95
    assert np.mean(shares[1]) < 0.2
    assert np.mean(shares[2]) < 0.05


def test_until_it_has_learned_all_that_is_near_is_the_robot():
    identity = Identity(len(ARM), colors=True, rngs=nnx.Rngs(0))
    beside = ARM[:1] + [[NEAR_M - 0.001, 0, 0], [NEAR_M + 0.001, 0, 0]]
    cloud = cloud_of(np.float32(np.concatenate([beside, beside])), np.full((4, 3), 0.5))
    cloud = dataclasses.replace(cloud, mask=np.asarray([True, True, False, False]))
    robot = judge(identity)(cloud, np.float32(ARM))
    np.testing.assert_array_equal(robot, [True, False, False, False])


def test_what_is_not_on_the_body_is_the_robot_only_among_what_is(learned):
    """A particle 2 cm off a box: beside what is 3 mm off it, and with as much that is as far."""
    identity = nnx.clone(learned)
    size = np.full((len(ARM), 3), 0.02, np.float32)
    identity.body.learn(Boxes(-size, size))
    identity.mlp.out.kernel[...] *= 0.0
    rng = np.random.default_rng(0)
    surface = rng.uniform(-0.02, 0.02, (12, 3)) * [0, 1, 1] + [[0.023, 0, 0]]
    held = rng.uniform(-0.02, 0.02, (24, 3)) * [0, 1, 1] + [[0.04, 0, 0]]
    for off, logit, expected in ((held[:1], 2.0, True), (held, 2.0, False), (held[:1], 1.0, False)):
        bias = identity.mlp.out.bias
        assert bias is not None
        bias[...] = jnp.zeros_like(bias[...])
        nothing = np.zeros((1, len(ARM)), np.float32), np.zeros((1, 3), np.float32)
        bias[...] = logit - identity(*nothing)
        places = np.float32(ARM[:1] + np.concatenate([surface, off]))
        cloud = cloud_of(places, np.full((len(places), 3), 0.5))
        robot = judge(identity)(cloud, np.float32(ARM[:1].repeat(len(ARM), axis=0)))
        np.testing.assert_array_equal(robot[:12], logit > 1.8)
        np.testing.assert_array_equal(robot[12:], expected)


def test_what_is_on_the_surface_is_the_robot_whatever_its_colour(learned):
    """Within a millimetre; 2 mm off, and as unlike the robot, it is not."""
    identity = nnx.clone(learned)
    size = np.full((len(ARM), 3), 0.02, np.float32)
    identity.body.learn(Boxes(-size, size))
    places = np.float32(ARM[:1] + [[0.0205, 0, 0], [-0.0195, 0, 0], [0.022, 0.01, 0]])
    cloud = cloud_of(places, np.tile([[0.01, 0.9, 0.01]], (3, 1)))
    robot = judge(identity)(cloud, np.float32(ARM[:1].repeat(len(ARM), axis=0)))
    np.testing.assert_array_equal(robot, [True, True, False])


def test_nearness_is_that_of_distances_in_float64():
    rng = np.random.default_rng(0)
    places, points = rng.uniform(-0.2, 0.2, (2, 7, 3))
    apart = np.linalg.norm(places[:, None] - points, axis=-1)
    nearness, near = point_nearness(np.float32(places), np.float32(points)[None])
    np.testing.assert_allclose(nearness, np.exp(-((apart / 0.06) ** 2)), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(near, apart.min(1) < NEAR_M)


def test_a_model_without_colors_does_not_look_at_them(learned):
    identity = Identity(len(ARM), colors=False, rngs=nnx.Rngs(0))
    identity.mlp.out.kernel[...] = jnp.ones_like(identity.mlp.out.kernel[...])
    nearness = np.random.default_rng(0).uniform(size=(6, len(ARM))).astype(np.float32)
    black, white = np.zeros((6, 3), np.float32), np.ones((6, 3), np.float32)
    np.testing.assert_array_equal(identity(nearness, black), identity(nearness, white))
    assert np.ptp(identity(nearness, black)) > 0
    seen = np.asarray(learned(nearness, black)), np.asarray(learned(nearness, white))
    assert np.abs(seen[0] - seen[1]).min() > 0.1


def test_the_loss_has_its_closed_form_before_anything_is_learned(key):
    """One number for all: the robot's particles cost softplus(-x), those by chance softplus(x)."""
    identity = Identity(len(ARM), colors=True, rngs=nnx.Rngs(0))
    number = float(identity(np.zeros((1, len(ARM)), np.float32), np.zeros((1, 3), np.float32))[0])
    # On the points themselves distances are zero, and nothing divides by them.
    points = np.float32(np.broadcast_to(ARM, (5, *ARM.shape)))
    seen = NearRobot(
        positions=np.float32(ARM), colors=np.full((5, 3), 0.5, np.float32), points=points
    )
    graphdef, state = nnx.split(identity)

    def loss(state):
        return contrast(nnx.merge(graphdef, state), seen, jnp.zeros((1, 3)), key)

    value, gradient = jax.jit(jax.value_and_grad(loss))(state)
    expected = np.log1p(np.exp(-number)) + np.log1p(np.exp(number))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_a_training_begins_with_what_its_recordings_teach(synthetic_dataset, capsys):
    """The same for the same seed; nothing else of the model changes."""
    dataset = Dataset(synthetic_dataset)

    model = {"carry": True, "contact": True, "colors": True}
    config = scenes.tiny_config(model=model, data={"path": str(synthetic_dataset)})
    untaught_model = Model(config, dataset.scene_spec(config.data), rngs=nnx.Rngs(0))

    def teach(**train):
        created = nnx.clone(untaught_model)
        learn_identity(created, apply_overrides(config, {"train": train}), dataset)
        return nnx.to_pure_dict(nnx.state(created))

    untaught, first, again = (teach(identity_steps=steps) for steps in (0, 3, 3))
    assert "points near it in" in capsys.readouterr().out
    jax.tree.map(np.testing.assert_array_equal, first, again)
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), untaught, first)
    assert all(jax.tree.leaves(changed["dynamics"]["read_out"].pop("identity")))
    assert not any(jax.tree.leaves(changed))


def test_models_without_contact_have_nothing_to_learn_beforehand(synthetic_dataset, capsys):
    config = scenes.tiny_config()
    model = Model(config, scenes.SCENE, rngs=nnx.Rngs(0))
    learn_identity(model, config, Dataset(synthetic_dataset))
    assert not capsys.readouterr().out
