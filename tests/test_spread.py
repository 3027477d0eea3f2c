"""A scene's particles on several devices: the change and the gradient of one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from hdvpd.basics.errors import UserError
from hdvpd.basics.layers import Keys
from hdvpd.dynamics.interlacer import Interlacer
from hdvpd.dynamics.rollout import rollout
from hdvpd.dynamics.spread import PARTICLES, exchanged_bytes, spread_rollout
from hdvpd.training.parallel import stated_bytes

DEVICES, STEPS = len(jax.devices()), 2
MODEL = scenes.changed(scenes.tiny_config().model, "[dynamics]\nnum_layers = 2")


@functools.cache
def build(model=MODEL):
    make = lambda: model.dynamics.make(model, scenes.SCENE, rngs=Keys(0))  # noqa: E731
    return scenes.random_params(make)


def make_scene():
    """Two clouds, some of whose particles are padding, and a moving robot."""
    clouds = [scenes.random_cloud(seed, 48, MODEL.feature_dim, num_real=41) for seed in (1, 2)]
    return *clouds, scenes.random_robot(3, STEPS + 2)


@pytest.fixture(scope="module")
def scene():
    return make_scene()


def mesh():
    return Mesh(jax.devices(), (PARTICLES,))


def score(clouds):
    """A number that every output moves."""
    rng = np.random.default_rng(0)
    return sum(jnp.sum(x * rng.normal(size=x.shape)) for x in (clouds.positions, clouds.features))


def fetch(x):
    """Return the whole of an array in every process."""
    if x.is_fully_replicated:
        return np.asarray(x.addressable_data(0))
    return multihost_utils.process_allgather(x, tiled=True)


def compare_with_one_device():
    """Roll a scene out on this process's first device, and on all devices of all processes."""
    scene, (graphdef, params) = make_scene(), build()
    params = jax.tree.map(np.asarray, params)  # every process has the same

    def alone(params):
        model: Interlacer = scenes.apply(graphdef, params)
        clouds = rollout(model, *scene, jax.random.key(0))
        return score(clouds), clouds

    def spread(params):
        model: Interlacer = scenes.apply(graphdef, params)
        clouds = spread_rollout(model, mesh())(*scene, jax.random.key(0))
        return score(clouds), clouds

    (_, expected), gradient = jax.jit(jax.value_and_grad(alone, has_aux=True))(params)
    (_, found), ours = jax.jit(jax.value_and_grad(spread, has_aux=True))(params)
    for name in ("positions", "features", "mask"):
        np.testing.assert_allclose(fetch(getattr(found, name)), getattr(expected, name), atol=2e-5)
    assert np.abs(expected.positions - scene[1].positions[None]).max() > 1e-3
    for (path, theirs), mine in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(ours), strict=True
    ):
        scale = max(float(np.abs(theirs).max()), 1e-3)
        np.testing.assert_allclose(
            fetch(mine), theirs, atol=2e-4 * scale, err_msg=jax.tree_util.keystr(path)
        )


def test_particles_on_several_devices_change_as_on_one():
    compare_with_one_device()


def test_what_is_exchanged_is_what_the_formula_says(scene):
    graphdef, params = build()

    @jax.jit
    def spread(params):
        model: Interlacer = scenes.apply(graphdef, params)
        return spread_rollout(model, mesh())(*scene, jax.random.key(0))

    text = spread.lower(params).compile().as_text()
    expected = exchanged_bytes(48, MODEL.dynamics, MODEL.latent_dim, DEVICES)
    # The steps are one loop, whose body is in the program once.
    assert stated_bytes(text) == expected


def test_a_gradient_gathers_twice_sums_thrice_and_adds_the_parameters(scene):
    """As benchmarks/scaling_model.py counts; only masks and single numbers may be more or fewer."""
    graphdef, params = build()

    @jax.jit
    def gradient(params):
        def loss(params):
            model: Interlacer = scenes.apply(graphdef, params)
            return score(spread_rollout(model, mesh(), remat=True)(*scene, jax.random.key(0)))

        return jax.grad(loss)(params)

    stated = stated_bytes(gradient.lower(params).compile().as_text())
    once = exchanged_bytes(48, MODEL.dynamics, MODEL.latent_dim, DEVICES)
    assert abs(stated["all-gather"] - 2 * once["all-gather"]) <= 2 * 48
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    assert abs(stated["all-reduce"] - 3 * once["all-reduce"] - size) <= 16


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[dynamics.local]\nkind = "mp"', "local = none"),
        ('[dynamics.attention]\nfeature_map = "favor"', "feature_map"),
        ('[dynamics.local.mask]\nwalks = "iid"', "exact"),
    ],
)
def test_other_models_are_refused(toml, words):
    graphdef, params = build(scenes.changed(MODEL, toml))
    with pytest.raises(UserError, match=words):
        spread_rollout(scenes.apply(graphdef, params), mesh())


def test_particles_that_cannot_be_divided_are_refused(scene):
    if DEVICES == 1:
        pytest.skip("one device divides everything")
    graphdef, params = build()
    model = scenes.apply(graphdef, params)
    odd = [jax.tree.map(lambda x: x[:47], cloud) for cloud in scene[:2]]
    with pytest.raises(UserError, match="47 particles cannot be spread evenly"):
        spread_rollout(model, mesh())(*odd, scene[2], jax.random.key(0))
