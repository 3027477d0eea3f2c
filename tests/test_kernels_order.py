"""The order of integer keys."""

import functools

import jax
import numpy as np
import pytest

from hdvpd.kernels.order import order_of


@pytest.mark.parametrize("kernels", ["host", "xla"])
@pytest.mark.parametrize("most", [4, 2**20, 2**32])
@pytest.mark.parametrize("count", [0, 1, 3000])
def test_equal_keys_keep_the_order_of_their_rows(kernels, most, count):
    keys = np.random.default_rng(0).integers(0, most, count).astype(np.uint32)
    order = jax.jit(functools.partial(order_of, kernels=kernels))(keys)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))


def test_several_are_ordered_one_by_one():
    keys = np.random.default_rng(0).integers(0, 9, (3, 50)).astype(np.uint32)
    order = jax.vmap(functools.partial(order_of, kernels="host"))(keys)
    np.testing.assert_array_equal(order, np.argsort(keys, axis=1, kind="stable"))
