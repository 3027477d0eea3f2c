"""Uniform subsets: distinct, real, of the right number whatever the padding, equally likely."""

import jax
import numpy as np
import pytest

from hdvpd.basics.sampling import (
    marked_first,
    systematic_subset,
    uniform_fraction,
    uniform_subset,
)

subset = jax.jit(uniform_subset, static_argnums=1)
fraction = jax.jit(uniform_fraction, static_argnums=1)
systematic = jax.jit(systematic_subset, static_argnums=2)


@pytest.mark.parametrize("num_real", [40, 8, 3, 0])
def test_draws_different_real_elements_as_far_as_there_are(key, num_real):
    mask = np.zeros(40, bool)
    mask[np.random.default_rng(0).permutation(40)[:num_real]] = True
    indices, drawn = subset(mask, 8, key)
    chosen = np.asarray(indices)[np.asarray(drawn)]
    assert len(chosen) == min(8, num_real)
    assert len(set(chosen.tolist())) == len(chosen)
    assert mask[chosen].all()


def test_more_slots_than_elements_are_left_empty(key):
    indices, drawn = subset(np.ones(5, bool), 9, key)
    assert sorted(np.asarray(indices)[:5]) == list(range(5))
    np.testing.assert_array_equal(drawn, np.arange(9) < 5)


@pytest.mark.parametrize(
    ("num_real", "share", "expected"),
    [(40, 0.125, 5), (41, 0.125, 6), (16, 0.125, 2), (10, 0.1, 1), (30, 0.1, 3), (1, 0.01, 1),
     (0, 0.125, 0), (7, 1.0, 7)],
)  # fmt: skip
def test_a_fraction_is_of_the_real_elements_and_rounds_up(num_real, share, expected):
    for size in (41, 80):  # padding does not count
        _, drawn = fraction(np.arange(size) < num_real, share, jax.random.key(0))
        assert int(drawn.sum()) == expected


def test_every_element_is_drawn_equally_often():
    seeds, mask = 2000, np.arange(30) < 24
    draw = jax.jit(jax.vmap(lambda key: uniform_fraction(mask, 0.25, key)))
    indices, drawn = map(np.asarray, draw(jax.random.split(jax.random.key(1), seeds)))
    counts = np.bincount(indices[drawn], minlength=30)
    assert (counts[24:] == 0).all()
    # Binomial frequency of 6 in 24; five standard errors.
    error = np.sqrt(0.25 * 0.75 / seeds)
    np.testing.assert_allclose(counts[:24] / seeds, 0.25, atol=5 * error)


def shuffled_order(num_real, size):
    """An order of elements with the real ones first, and which these are."""
    order = np.random.default_rng(0).permutation(size)
    mask = np.zeros(size, bool)
    mask[order[:num_real]] = True
    return order, mask


@pytest.mark.parametrize("num_real", [40, 24, 9, 8, 3, 0])
def test_systematic_draws_take_one_of_every_stretch(num_real):
    order, mask = shuffled_order(num_real, 40)
    for key in jax.random.split(jax.random.key(0), 20):
        indices, drawn = systematic(order, mask, 8, key)
        rank = np.argsort(order)[np.asarray(indices)[np.asarray(drawn)]]
        assert len(rank) == min(8, num_real)
        assert (rank < num_real).all()
        assert (np.diff(rank) > 0).all()
        if num_real > 8:  # equal stretches, up to whole ranks
            assert np.abs(rank - (np.arange(8) + 0.5) * num_real / 8).max() <= num_real / 16 + 1


def test_systematic_draws_are_equally_likely():
    seeds = 4000
    order, mask = shuffled_order(21, 30)
    draw = jax.jit(jax.vmap(lambda key: systematic_subset(order, mask, 8, key)))
    indices, drawn = map(np.asarray, draw(jax.random.split(jax.random.key(1), seeds)))
    counts = np.bincount(indices[drawn], minlength=30)
    assert (counts[~mask] == 0).all()
    # Binomial frequency of 8 in 21; five standard errors.
    share = 8 / 21
    error = np.sqrt(share * (1 - share) / seeds)
    np.testing.assert_allclose(counts[mask] / seeds, share, atol=5 * error)


def test_systematic_draws_of_many_elements_are_exact():
    size, num_real = 40_000, 60_001
    indices, drawn = systematic(np.arange(70_000), np.arange(70_000) < num_real, size,
                                jax.random.key(3))  # fmt: skip
    rank = np.asarray(indices)
    assert np.asarray(drawn).all()
    assert (np.diff(rank) > 0).all()
    assert np.abs(rank - np.arange(size) * num_real / size).max() <= 3


favouring = jax.jit(systematic_subset, static_argnums=(2, 5))


@pytest.mark.parametrize(
    ("num_real", "num_favoured", "weight", "expected"),
    [
        (400, 40, 4.0, 25),  # 80 * 4 * 40 / (4 * 40 + 360)
        (400, 40, 1.0, 8),
        (400, 40, 1e6, 40),  # there are no more
        (400, 390, 1e-6, 70),  # the other 10 are all
        (100, 10, 0.1, 1),
        (60, 20, 3.0, 20),  # fewer than slots: all of them
        (400, 0, 4.0, 0),
        (400, 400, 4.0, 80),
        (0, 0, 4.0, 0),
    ],
)
def test_favoured_elements_are_as_much_likelier_as_asked(num_real, num_favoured, weight, expected):
    order, mask = shuffled_order(num_real, 500)
    favoured = np.zeros(500, bool)
    favoured[np.random.default_rng(1).permutation(order[:num_real])[:num_favoured]] = True
    favoured |= ~mask  # what may not be drawn is favoured in vain
    for key in jax.random.split(jax.random.key(0), 5):
        indices, drawn = favouring(order, mask, 80, key, favoured, weight)
        chosen = np.asarray(indices)[np.asarray(drawn)]
        assert len(chosen) == min(80, num_real)
        assert mask[chosen].all()
        assert (np.diff(np.argsort(order)[chosen]) > 0).all()  # in order, and none twice
        assert favoured[chosen].sum() == expected


def test_favoured_elements_are_drawn_at_even_distances():
    order, mask = shuffled_order(400, 500)
    favoured = np.zeros(500, bool)
    favoured[order[:400:10]] = True
    indices, _ = favouring(order, mask, 80, jax.random.key(0), favoured, 4.0)
    for group, count in ((favoured, 25), (mask & ~favoured, 55)):
        among = np.cumsum(group[order]) - 1  # ranks in the group
        rank = among[np.argsort(order)[np.asarray(indices)]][group[np.asarray(indices)]]
        stretch = group.sum() / count
        assert np.abs(rank - (np.arange(count) + 0.5) * stretch).max() <= stretch / 2 + 1


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_marked_elements_come_first_in_their_order(share):
    marked = np.random.default_rng(0).uniform(size=50) < share
    order, place = marked_first(marked)
    np.testing.assert_array_equal(order, np.argsort(~marked, kind="stable"))
    np.testing.assert_array_equal(place, np.argsort(order))
