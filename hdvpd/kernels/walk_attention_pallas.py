"""Attention along walks as fused GPU kernels (Pallas, lowered to Triton).

Every program holds the rows of a few tokens and
reads, entry by entry, the rows of the tokens that their walks reach; no gathered [t, e, c] array
exists. Cotangents of keys and values go the other way along the walks: every program then holds the
rows of a few nodes and reads the entries that end there, in the order that `Walks.incoming` lists
them. So nothing is added atomically, and results do not depend on the order of execution.

Status: values and gradients are tested by interpretation on CPU and, on an H100, by
`tests/test_gpu.py`; docs/results.md has its speed there. The block size is not tuned.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from hdvpd.basics.types import Array, Float
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.walks import Walks

# Tokens per program: 16 rows of 128 floats are 16 registers per thread of four warps.
_BLOCK = 16


def attend(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    mask: Float[Array, "t e"],
    walks: Walks,
    interpret: bool | None = None,
) -> Float[Array, "t c"]:
    """Attend along walks: out_i = sum_e w_e v_e / sum_e w_e, w_e = M_ie (q_i . k_e).

    Args:
      query: positive feature map of the queries.
      key: positive feature map of the keys.
      value: values.
      mask: M_ie = sum_l f_l W^l_ie of every entry.
      walks: entries of every token, with the transpose (`incoming`).
      interpret: run as plain JAX operations; by default where the default device is a CPU.
    """
    interpret = jax.default_backend() == "cpu" if interpret is None else interpret
    channels = value.shape[1]
    query, key, value = (_with_power_of_two_columns(x) for x in (query, key, value))
    out = jnp.asarray(_attend(interpret, (query, key, value, mask), walks))
    return out[:, :channels]


def _with_power_of_two_columns(rows: Float[Array, "t c"]) -> Float[Array, "t d"]:
    """Append zero columns: Triton's tensors have powers of two as sizes."""
    return jnp.pad(rows, ((0, 0), (0, pl.next_power_of_2(rows.shape[1]) - rows.shape[1])))


def _launch(kernel: Any, num_rows: int, results: Any, interpret: bool, *arguments: Any) -> Any:
    """Run a kernel over blocks of rows; the last block ends at the last row, overlapping."""
    block = min(_BLOCK, pl.next_power_of_2(num_rows + 1) // 2)
    return pl.pallas_call(
        functools.partial(kernel, block),
        out_shape=results,
        grid=(pl.cdiv(num_rows, block),),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )(*arguments)


def _rows(block: int, num_rows: int) -> jax.Array:
    start = jnp.minimum(pl.program_id(0) * block, num_rows - block)
    return start + jnp.arange(block, dtype=jnp.int32)


def _forward_kernel(
    block, query_ref, key_ref, value_ref, mask_ref, nodes_ref, used_ref, out_ref, total_ref
):
    rows = _rows(block, query_ref.shape[0])
    query = query_ref[rows, :]

    def add_entry(entry, carry):
        out, total = carry
        node = nodes_ref[rows, entry]
        weight = mask_ref[rows, entry] * (query * key_ref[node, :]).sum(1)
        return out + weight[:, None] * value_ref[node, :], total + weight

    zeros = (jnp.zeros((block, value_ref.shape[1])), jnp.zeros((block,)))
    out, total = jax.lax.fori_loop(0, used_ref[rows].max(), add_entry, zeros)
    out_ref[rows, :] = out / total[:, None]
    total_ref[rows] = total


def _rows_kernel(
    block, query_ref, key_ref, value_ref, mask_ref, nodes_ref, used_ref, out_ref, total_ref,
    out_bar_ref, query_bar_ref, mask_bar_ref, score_bar_ref, weight_ref,
):  # fmt: skip
    rows = _rows(block, query_ref.shape[0])
    query, out_bar, scale = query_ref[rows, :], out_bar_ref[rows, :], 1.0 / total_ref[rows]
    shift = (out_bar * out_ref[rows, :]).sum(1)

    def add_entry(entry, query_bar):
        node = nodes_ref[rows, entry]
        key, mask = key_ref[node, :], mask_ref[rows, entry]
        score = (query * key).sum(1)
        weight_bar = ((out_bar * value_ref[node, :]).sum(1) - shift) * scale
        mask_bar_ref[rows, entry] = weight_bar * score
        score_bar_ref[rows, entry] = weight_bar * mask
        weight_ref[rows, entry] = mask * score * scale
        return query_bar + (weight_bar * mask)[:, None] * key

    query_bar_ref[rows, :] = jax.lax.fori_loop(
        0, used_ref[rows].max(), add_entry, jnp.zeros_like(query)
    )


def _columns_kernel(
    block, query_ref, out_bar_ref, score_bar_ref, weight_ref, incoming_ref, offsets_ref,
    key_bar_ref, value_bar_ref,
):  # fmt: skip
    rows = _rows(block, query_ref.shape[0])
    width = weight_ref.shape[0] // query_ref.shape[0]
    start = offsets_ref[rows]
    count = offsets_ref[rows + 1] - start

    def add_entry(position, carry):
        key_bar, value_bar = carry
        active = position < count
        entry = incoming_ref[jnp.where(active, start + position, 0)]
        token = jax.lax.div(entry, width)
        score_bar = jnp.where(active, score_bar_ref[entry], 0.0)
        weight = jnp.where(active, weight_ref[entry], 0.0)
        return (
            key_bar + score_bar[:, None] * query_ref[token, :],
            value_bar + weight[:, None] * out_bar_ref[token, :],
        )

    zeros = (jnp.zeros((block, query_ref.shape[1])), jnp.zeros((block, out_bar_ref.shape[1])))
    key_bar, value_bar = jax.lax.fori_loop(0, count.max(), add_entry, zeros)
    key_bar_ref[rows, :] = key_bar
    value_bar_ref[rows, :] = value_bar


def _forward(interpret, moving, walks):
    value = moving[2]
    results = [_like(value), jax.ShapeDtypeStruct(walks.num_entries.shape, jnp.float32)]
    arguments = (*moving, walks.nodes, walks.num_entries)
    out, total = _launch(_forward_kernel, len(value), results, interpret, *arguments)
    return out, (out, total)


def _backward(interpret, moving, walks, saved, out_bar):
    query, key, value, mask = moving
    results = [_like(x) for x in (query, mask, mask, mask)]
    query_bar, mask_bar, score_bar, weight = _launch(
        _rows_kernel, len(query), results, interpret,
        *moving, walks.nodes, walks.num_entries, *saved, out_bar,
    )  # fmt: skip
    order = (walks.incoming.entries, walks.incoming.offsets)
    key_bar, value_bar = _launch(
        _columns_kernel, len(query), [_like(key), _like(value)], interpret,
        query, out_bar, score_bar.ravel(), weight.ravel(), *order,
    )  # fmt: skip
    # The kernel does not write unused entries.
    used = jnp.arange(mask.shape[1])[None] < walks.num_entries[:, None]
    return query_bar, key_bar, value_bar, jnp.where(used, mask_bar, 0.0)


def _like(array: Float[Array, "..."]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, jnp.float32)


_attend = differentiable(_forward, _backward)
