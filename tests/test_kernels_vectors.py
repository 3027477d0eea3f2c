"""Vectors as values of compiled host code, against numpy."""

import operator

import numba
import numpy as np
import pytest
from numba import njit

from hdvpd.kernels.vector_sums import interleaved, plus_product, repeated, sums_of_runs
from hdvpd.kernels.vectors import (
    at_most,
    before,
    everywhere,
    larger,
    load,
    load_before,
    power_of_two,
    root,
    squared_length,
    store,
    store_before,
    sum_of_lanes,
    where_positive,
    within,
)

WIDTH, NARROW = 32, 16
BOUND = np.float32(1.5)


def rows(number, seed=0):
    return np.random.default_rng(seed).normal(size=(number, WIDTH + 3)).astype(np.float32)


@njit
def copied(array, row, column, result, place, start):
    store(load(array, row, column, WIDTH), result, place, start)


@njit(fastmath=True)
def powers(array, result):
    for row in range(len(array)):
        store(power_of_two(load(array, row, 0, WIDTH)), result, row, 0)


@njit
def several(array, result):
    one, other = load(array, 0, 0, WIDTH), load(array, 1, 0, WIDTH)
    store(everywhere(array[0, 0], WIDTH), result, 0, 0)
    store(larger(one, other), result, 1, 0)
    store(within(one, BOUND), result, 2, 0)
    store(root(one * one), result, 3, 0)
    return sum_of_lanes(one)


@njit
def copied_before(end, array, result):
    row = load_before(end, array, 1, 2, NARROW)
    store_before(end, row + np.float32(1), result, 0, 2)
    store(where_positive(row, row + np.float32(1)), result, 1, 2)
    store(before(end, row + np.float32(1), 2), result, 2, 2)


@pytest.mark.parametrize("count", [0, 1, 7, NARROW, NARROW + 3])
def test_a_part_of_a_row_is_read_and_written_and_nothing_behind_it(count):
    array, result = rows(2), np.full((3, WIDTH), 7.0, np.float32)
    copied_before(2 + count, array, result)
    expected, there = np.full_like(result, 7.0), min(count, NARROW)
    expected[0, 2 : 2 + there] = array[1, 2 : 2 + there] + 1
    row = np.zeros(NARROW, np.float32)
    row[:there] = array[1, 2 : 2 + there]
    expected[1, 2 : 2 + NARROW] = np.where(row > 0, row + 1, 0)
    expected[2, 2 : 2 + NARROW] = np.where(np.arange(NARROW) < count, row + 1, 0)
    np.testing.assert_array_equal(result, expected)


def test_vectors_of_two_widths_do_not_mix():
    @njit
    def mixed(array):
        return sum_of_lanes(load(array, 0, 0, WIDTH) + load(array, 0, 0, NARROW))

    with pytest.raises(numba.TypingError):
        mixed(rows(1))


def test_a_row_is_read_and_written_from_a_column_on_and_nothing_beside_it():
    array, result = rows(4), np.full((3, WIDTH + 5), 7.0, np.float32)
    copied(array, 2, 3, result, 1, 4)
    expected = np.full_like(result, 7.0)
    expected[1, 4 : 4 + WIDTH] = array[2, 3:]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_operators_take_vectors_and_numbers(operation):
    @njit
    def apply(array, number, result):
        one, other = load(array, 0, 0, WIDTH), load(array, 1, 0, WIDTH)
        store(operation(one, other), result, 0, 0)
        store(operation(one, number), result, 1, 0)
        store(operation(number, one), result, 2, 0)

    array, number = rows(2)[:, :WIDTH].copy(), np.float32(0.3)
    result = np.empty((3, WIDTH), np.float32)
    apply(array, number, result)
    pairs = (array[0], array[1]), (array[0], number), (number, array[0])
    np.testing.assert_array_equal(result, [operation(*pair) for pair in pairs])


def test_powers_of_two_also_where_sums_may_be_in_any_order():
    array = np.linspace(-126, 126, 64 * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    result = np.empty_like(array)
    powers(array, result)
    np.testing.assert_allclose(result, np.exp2(np.float64(array)), rtol=2e-7)


def test_what_is_no_number_stays_so_within_bounds_and_as_a_power():
    array = np.full((2, WIDTH), np.nan, np.float32)
    result = np.zeros((4, WIDTH), np.float32)
    several(array, result)
    assert np.isnan(result[2]).all()
    powers(array, result)
    assert np.isnan(result[:2]).all()


def test_numbers_are_compared_and_summed():
    array, result = rows(2)[:, :WIDTH].copy(), np.empty((4, WIDTH), np.float32)
    found = several(array, result)
    expected = [np.full(WIDTH, array[0, 0]), array.max(0), array[0].clip(-BOUND, BOUND)]
    np.testing.assert_array_equal(result[:3], expected)
    np.testing.assert_allclose(result[3], np.abs(array[0]), rtol=1e-6)
    np.testing.assert_allclose(found, np.float64(array[0]).sum(), rtol=1e-5)


@pytest.mark.parametrize("width", [NARROW, WIDTH])
@pytest.mark.parametrize("bound", [-np.inf, -1.0, 0.0, 0.5, np.inf])
def test_bits_say_which_numbers_are_at_most_a_bound(bound, width):
    @njit
    def bits_of(array, bound):
        return at_most(load(array, 0, 0, width), bound)

    array = rows(1)
    array[0, [3, 7, 9, 11]] = np.nan, np.inf, -np.inf, 0.5
    bits = int(bits_of(array, np.float32(bound)))
    assert [bool(bits >> lane & 1) for lane in range(32)] == [
        lane < width and bool(x <= bound) for lane, x in enumerate(array[0, :32])
    ]


def test_each_step_of_a_squared_length_is_rounded():
    @njit
    def squares(array, result):
        x, y, z = load(array, 0, 0, WIDTH), load(array, 1, 0, WIDTH), load(array, 2, 0, WIDTH)
        store(squared_length(x, y, z), result, 0, 0)

    array, result = rows(3)[:, :WIDTH].copy(), np.empty((1, WIDTH), np.float32)
    squares(array, result)
    x, y, z = array * array
    np.testing.assert_array_equal(result[0], x + y + z)


@njit
def sums(array, result):
    vectors = (
        load(array, 0, 0, WIDTH), load(array, 1, 0, WIDTH), load(array, 2, 0, WIDTH),
        load(array, 3, 0, WIDTH),
    )  # fmt: skip
    store(sums_of_runs(vectors, 4), result, 0, 0)
    store(sums_of_runs(vectors, WIDTH), result, 1, 0)
    store(sums_of_runs((vectors[2],), 8), result, 2, 0)
    return sum_of_lanes(vectors[0]), sum_of_lanes(vectors[3])


def test_sums_of_runs_are_those_of_their_numbers():
    array, result = rows(4), np.zeros((3, WIDTH), np.float32)
    ends = sums(array, result)
    whole = np.float64(array[:, :WIDTH])
    np.testing.assert_allclose(result[0], whole.reshape(-1, 4).sum(1), atol=1e-6)
    np.testing.assert_allclose(result[1, :4], whole.sum(1), atol=1e-5)
    np.testing.assert_allclose(result[2, :4], whole[2].reshape(-1, 8).sum(1), atol=1e-5)
    assert (result[1, 0], result[1, 3]) == ends


@njit
def made(array, result):
    one, other = load(array, 0, 0, NARROW), load(array, 1, 0, NARROW)
    store(interleaved(one, other), result, 0, 0)
    store(repeated(load(array, 0, 0, 8), 4), result, 1, 0)
    store(plus_product(one, other, other), result, 2, 0)
    store(plus_product(one, array[0, 1], other), result, 2, NARROW)


def test_vectors_made_of_others():
    array, result = rows(2), np.zeros((3, WIDTH), np.float32)
    made(array, result)
    one, other = array[:, :NARROW]
    np.testing.assert_array_equal(result[0], np.stack([one, other], axis=1).reshape(-1))
    np.testing.assert_array_equal(result[1], np.repeat(one[:8], 4))
    # Of products that are not rounded before the sum.
    exact = [np.float32(np.float64(one) + np.float64(x) * other) for x in (other, one[1])]
    np.testing.assert_array_equal(result[2], np.concatenate(exact))
