"""Global linear attention head by head and as batched products, in one run.

Both with a projection to queries, keys and values before and one after: the batched form cuts one
product in three and contracts with the heads in the middle (the form of flax and of the papers'
formula), ours multiplies plain matrices. Forward, and with the gradients of weights and tokens.

Run: python benchmarks/linear_attention.py [--tokens 4129] [--width 64] [--heads 4] [--repeats 10]
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved, interleaved_cpu

from hdvpd.attention.linear import linear_attention
from hdvpd.basics.machine import keep_freed_memory

Attend = Callable[..., Any]


def batched(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Return what `linear_attention` does, all heads in one product."""
    key = key * (mask / jnp.maximum(mask.sum(), 1))[:, None, None]
    summary = jnp.einsum("tam,tac->amc", key, value)
    normalizer = jnp.einsum("tam,am->ta", query, key.sum(0))
    normalizer = jnp.where(normalizer > 0, normalizer, 1.0)
    return jnp.einsum("tam,amc->tac", query, summary) / normalizer[..., None]


def layer(attend: Attend, heads: int, inputs: tuple[jax.Array, ...], mask: jax.Array) -> jax.Array:
    """Return the layer's update, split as the form of attention wants it."""
    before, after, tokens = inputs
    shape = (len(tokens), heads, tokens.shape[1] // heads)
    if attend is batched:
        whole = (tokens @ before).reshape(len(tokens), 3, *shape[1:])
        query, key, value = (whole[:, i] for i in range(3))
    else:
        parts = jnp.split(before, 3, axis=1)
        query, key, value = ((tokens @ part).reshape(shape) for part in parts)
    attended = attend(jax.nn.relu(query) + 1e-6, jax.nn.relu(key) + 1e-6, value, mask)
    return attended.reshape(tokens.shape) @ after


def main() -> None:
    """Print best times [ms] and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4129)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    keep_freed_memory()
    rng = np.random.default_rng(0)
    width, mask = arguments.width, jnp.ones((arguments.tokens,), bool)
    shapes = ((width, 3 * width), (width, width), (arguments.tokens, width))
    inputs = tuple(jnp.asarray(rng.normal(size=s) / np.sqrt(width), jnp.float32) for s in shapes)

    def call(attend: Attend, gradient: bool) -> Callable[[], object]:
        function = functools.partial(layer, attend, arguments.heads, mask=mask)
        if not gradient:
            return functools.partial(jax.jit(function), inputs)
        return functools.partial(
            jax.jit(lambda x, out_bar: jax.vjp(function, x)[1](out_bar)), inputs, inputs[2]
        )

    forms: dict[str, Attend] = {"batched": batched, "by heads": linear_attention}
    for gradient in (False, True):
        calls = {name: call(form, gradient) for name, form in forms.items()}
        for measure, label in ((interleaved, "clock"), (interleaved_cpu, "CPU")):
            for _ in range(3):
                times = measure(calls, arguments.repeats)
                row = "  ".join(f"{name} {time:.2f} ms" for name, time in times.items())
                ratio = times["batched"] / times["by heads"]
                print(
                    f"{'f+b' if gradient else 'fwd'} {label:5} {row}  ratio {ratio:.2f}", flush=True
                )


if __name__ == "__main__":
    main()
