"""Sample placement: strata, and proposals by inverse transform."""

import jax
import jax.numpy as jnp
import numpy as np
import references

from hdvpd.render.rays import in_order, proposal_density, propose, stratified

NEAR, FAR = 0.1, 2.0


def test_no_key_gives_the_middle_of_every_stratum():
    tdist = stratified(3, 4, 0.0, 2.0, None)
    np.testing.assert_allclose(tdist, np.tile([0.25, 0.75, 1.25, 1.75], (3, 1)))


def test_jittered_samples_are_uniform_in_their_own_stratum(key):
    num_rays, num_samples = 4000, 8
    tdist = np.asarray(stratified(num_rays, num_samples, NEAR, FAR, key), np.float64)
    place = (tdist - NEAR) / (FAR - NEAR) * num_samples - np.arange(num_samples)
    assert place.min() > -1e-5
    assert place.max() < 1 + 1e-5
    # Mean and variance of uniform numbers: five standard errors of 4,000 draws.
    np.testing.assert_allclose(place.mean(0), 0.5, atol=5 * np.sqrt(1 / 12 / num_rays))
    np.testing.assert_allclose(place.var(0), 1 / 12, atol=5 * np.sqrt(1 / 180 / num_rays))
    correlation = np.corrcoef(place.T)[~np.eye(num_samples, dtype=bool)]
    assert np.abs(correlation).max() < 5 / np.sqrt(num_rays)


def test_proposal_density_is_one_at_a_particle_and_the_floor_in_empty_space():
    density = proposal_density(jnp.asarray([0.0, 0.03, jnp.inf]))
    np.testing.assert_allclose(density, [1.001, np.exp(-1) + 1e-3, 1e-3], rtol=1e-5)


def test_proposals_invert_the_distribution():
    rng = np.random.default_rng(0)
    density = (rng.uniform(size=(6, 10)) ** 4 + 1e-3).astype(np.float32)
    tdist = propose(jnp.asarray(density), 7, NEAR, FAR, None)
    quantiles = (np.arange(7) + 0.5) / 7
    for r in range(6):
        expected = references.inverse_transform(np.float64(density[r]), quantiles, NEAR, FAR)
        np.testing.assert_allclose(tdist[r], expected, atol=2e-5)


def test_uniform_density_proposes_the_strata():
    tdist = propose(jnp.full((2, 12), 1e-3), 5, NEAR, FAR, None)
    np.testing.assert_allclose(tdist, stratified(2, 5, NEAR, FAR, None), atol=1e-6)


def test_proposals_are_sorted_and_distributed_like_the_density(key):
    num_rays, num_proposals = 3000, 4
    density = jnp.asarray([1e-3, 0.2, 1.001, 0.5, 1e-3], jnp.float32)
    tdist = propose(jnp.tile(density[None], (num_rays, 1)), num_proposals, 0.0, 5.0, key)
    tdist = np.asarray(tdist)
    assert (np.diff(tdist, axis=1) >= 0).all()
    share = np.asarray(density / density.sum(), np.float64)
    counts = np.bincount(np.clip(tdist.astype(int), 0, 4).ravel(), minlength=5)
    # Stratified quantiles vary less than independent ones, whose error bounds them.
    error = np.sqrt(share * (1 - share) / tdist.size)
    np.testing.assert_allclose(counts / tdist.size, share, atol=5 * error.max())


def test_proposals_gather_around_a_particle():
    distance = jnp.abs(jnp.linspace(NEAR, FAR, 65)[:-1] + 0.95 / 64 - 1.0)
    tdist = propose(proposal_density(distance)[None], 32, NEAR, FAR, None)
    assert (np.abs(tdist - 1.0) < 0.1).mean() > 0.9


def test_proposals_are_sorted_however_steep_the_density():
    rng = np.random.default_rng(0)
    density = rng.uniform(0, 1, (400, 12)) ** 20 + 1e-6
    tdist = propose(jnp.asarray(density, jnp.float32), 200, NEAR, FAR, jax.random.key(0))
    assert (np.diff(tdist, axis=1) >= 0).all()


def test_what_is_known_of_strata_is_known_of_them_among_the_proposals():
    rng = np.random.default_rng(0)
    strata = np.sort(rng.uniform(0, 1, (7, 9)), axis=1).astype(np.float32)
    proposals = np.sort(rng.uniform(0, 1, (7, 5)), axis=1).astype(np.float32)
    proposals[0, :2] = strata[0, [2, 8]]  # equal ones
    proposals.sort(axis=1)
    empty = rng.random((7, 9)) < 0.5
    tdist, known = (np.asarray(x) for x in jax.jit(in_order)(strata, proposals, empty))
    np.testing.assert_array_equal(tdist, np.sort(np.concatenate([strata, proposals], 1), 1))
    for row in range(7):
        np.testing.assert_array_equal(tdist[row, known[row]], strata[row, empty[row]])


def test_different_keys_and_rays_differ_and_equal_keys_repeat():
    first, second = jax.random.split(jax.random.key(0))
    one, other = stratified(2, 4, NEAR, FAR, first), stratified(2, 4, NEAR, FAR, second)
    assert (np.asarray(one) != np.asarray(other)).all()
    assert (np.asarray(one[0]) != np.asarray(one[1])).all()
    with jax.debug_key_reuse(False):
        np.testing.assert_array_equal(one, stratified(2, 4, NEAR, FAR, first))
