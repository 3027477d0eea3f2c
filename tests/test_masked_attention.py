"""Linear attention under a mask against the dense form, in chunks and at its edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mask_contract import attend, check_attention, densify, multiply

from hdvpd.attention import masked
from hdvpd.attention.graphs import transition_graph
from hdvpd.attention.masks.rwgnk import rwgnk_mask
from hdvpd.attention.masks.walks import SparseMask, WalkMask, walk_rows
from hdvpd.kernels.walks import exact_walks
from studies.attention.causal import causal_attention
from studies.attention.graphs import matrix_graph
from studies.attention.masks.compose import ClassTokenMask, KroneckerMask, ScaledMask, SumMask
from studies.attention.masks.diffusion import diffusion_mask
from studies.attention.masks.forests import edge_forest
from studies.attention.masks.hypercube import hypercube_mask
from studies.attention.masks.low_rank import LowRankMask
from studies.attention.masks.sequences import CausalMask, PaddingMask, SegmentMask
from studies.attention.masks.series import PowerSeriesMask
from studies.attention.masks.toeplitz import ToeplitzMask
from studies.attention.masks.trees import ExponentialForestMask, TreeMask, tree_mask
from studies.example_masks import KINDS


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_attention_equals_the_dense_form_whatever_the_chunk(monkeypatch, chunk):
    monkeypatch.setattr(masked, "_CHUNK_SIZE", chunk * 6 * 4)
    monkeypatch.setattr(masked, "_COLUMNS", 1)
    check_attention(PaddingMask(np.ones(6, bool)), np.ones((6, 6)))


def test_a_mask_that_removes_everything_gives_zero_with_finite_gradients():
    features = np.ones((3, 2), np.float32)
    out, pull = jax.vjp(
        lambda *x: masked.masked_linear_attention(*x, PaddingMask(np.zeros(3, bool))),
        features, features, features,
    )  # fmt: skip
    np.testing.assert_array_equal(out, 0)
    assert all(np.isfinite(x).all() for x in pull(out))


def long_path():
    """Return a tree mask whose blocks go by Fourier transforms."""
    forest = edge_forest(130, np.stack([np.arange(1, 130), np.arange(129)], axis=1))
    return tree_mask(forest, np.exp(-np.arange(130, dtype=np.float32) / 9))


# Every kind, small; and one with Fourier transforms of its own, which refuse half precision.
HALF = {
    **{name: lambda kind=kind: kind.make(16, np.random.default_rng(0)).mask
       for name, kind in KINDS.items()},
    "long path": long_path,
}  # fmt: skip


@pytest.mark.parametrize("name", HALF)
def test_half_precision_inputs_are_summed_in_float32(name):
    mask = HALF[name]()
    rng = np.random.default_rng(3)
    inputs = rng.uniform(0.1, 1, (3, mask.num_tokens, 2))
    half = [jnp.asarray(x, jnp.bfloat16) for x in inputs]
    whole = [x.astype(jnp.float32) for x in half]
    attentions = [lambda *x: masked.masked_linear_attention(*x, mask)]
    if isinstance(mask, CausalMask):
        attentions.append(causal_attention)
    for attention in attentions:
        out = jax.jit(attention)(*half)
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, jax.jit(attention)(*whole), rtol=1e-5)


ALONE = edge_forest(1, np.zeros((0, 2), int))
LONELY, LOOP = (matrix_graph(np.full((1, 1), weight), kernels="xla") for weight in (0.0, 0.5))
TWO, LOG_TWO = np.float32([2.0]), float(np.log(2.0))
GRID = ToeplitzMask(TWO[:, None, None])


def loop_rows():
    return walk_rows(exact_walks(LOOP, 1), np.float32([1.0, 2.0]))


# Masks over one token, and their only entry.
ONE_TOKEN = {
    "padding": (lambda: PaddingMask(np.ones(1, bool)), 1),
    "causal": (lambda: CausalMask(1), 1),
    "segments": (lambda: SegmentMask(np.zeros(1, np.int32)), 1),
    "low rank": (lambda: LowRankMask(TWO[:, None], np.ones((1, 1), np.float32)), 2),
    "grid": (lambda: GRID, 2),
    "exponential": (lambda: ExponentialForestMask(ALONE, -0.7, LOG_TWO), 2),
    "tree by levels": (lambda: TreeMask(ALONE, TWO), 2),
    "tree by blocks": (lambda: tree_mask(ALONE, TWO), 2),
    "hypercube": (lambda: hypercube_mask(1, 0.5), 1),
    "laplacian": (lambda: diffusion_mask(LOOP, 0.7, "laplacian"), 1),
    "walk": (lambda: diffusion_mask(LOOP, 0.7), 1),
    "adjacency": (lambda: diffusion_mask(LOOP, 2 * LOG_TWO, "adjacency"), 2),
    "power series": (lambda: PowerSeriesMask(LOOP, np.float32([1.0, 2.0])), 2),
    "one-sided walks": (lambda: SparseMask(loop_rows()), 2),
    "walks": (lambda: WalkMask(loop_rows(), loop_rows()), 4),
    "RWGNK": (lambda: rwgnk_mask(exact_walks(transition_graph(LONELY), 2), 0.5), 1),
    "sum": (lambda: SumMask(GRID, GRID), 4),
    "scaled": (lambda: ScaledMask(TWO, GRID, TWO), 8),
    "Kronecker": (lambda: KroneckerMask(GRID, GRID), 4),
}


@pytest.mark.parametrize("name", ONE_TOKEN)
def test_a_token_alone_attends_to_itself(name):
    make, entry = ONE_TOKEN[name]
    mask = make()
    np.testing.assert_allclose(densify(mask), [[entry]], rtol=2e-6)
    x = np.float32([[3.0, -1.0]])
    np.testing.assert_allclose(multiply(mask, x), entry * x, rtol=2e-6)
    features = np.float32([[0.4, 0.3]])
    out = attend(features, features, x, mask)
    np.testing.assert_allclose(out, x, rtol=1e-6)


def test_a_class_token_and_one_other_see_each_other():
    mask = ClassTokenMask(ToeplitzMask(np.float32([2.0])))
    product = multiply(mask, np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(product, [[1, 1], [1, 2]], rtol=1e-6)
