"""Convolutions, norms, dense layers and linear attention: host code against XLA, in one run.

Modules of the project in both forms: the U-Net, and of a block of the Interlacer the global
attention and the MLP, each with its norm and residual. Forward, and forward and backward. Sizes
below which the project leaves the work to XLA are ignored here, to show where that is right.

Run: python benchmarks/dense.py [paper] [--tokens N] [--repeats 5]
"""

import argparse
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from timing import interleaved

from hdvpd.basics.layers import Keys
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.commands.flags import read_flags
from hdvpd.config import Config
from hdvpd.config.experiments import load_config
from hdvpd.dynamics.interlacer import Block, InterlacerSettings
from hdvpd.encoders import unet
from hdvpd.encoders.unet import UNet
from hdvpd.kernels import convolution, dense

IMAGES = 4
"""Two frames of two cameras."""

Part = tuple[nnx.Module, Callable[[Any, jax.Array], jax.Array], jax.Array]


def parts(config: Config, num_tokens: int) -> dict[str, Part]:
    """Return modules, how each is called and its input."""
    model, data = config.model, config.data
    assert isinstance(model.dynamics, InterlacerSettings)
    key = jax.random.key(0)
    images = jax.random.uniform(key, (IMAGES, data.height, data.width, 3), minval=-1.0)
    tokens, mask = (
        jax.random.normal(key, (num_tokens, model.latent_dim)),
        jnp.ones(num_tokens, bool),
    )
    network = UNet(model.unet_channels, model.feature_dim, kernels=model.kernels, rngs=Keys(0))
    block = Block(model.dynamics, model, seed=0, rngs=Keys(0))
    return {
        "U-Net": (network, lambda unet, x: unet(x), images),
        "global attention": (block, lambda block, x: block.attended(x, mask), tokens),
        "MLP": (block, lambda block, x: block.fed_forward(x), tokens),
    }


def calls(part: Part) -> dict[str, Callable[[], Any]]:
    """Return the forward pass, and both passes, of a part."""
    module, apply, x = part
    graphdef, params = nnx.split(module)

    def run(params: Any, x: jax.Array) -> jax.Array:
        return apply(nnx.merge(graphdef, params), x)

    forward = jax.jit(run)
    bar = jnp.ones_like(forward(params, x))

    @jax.jit
    def both(params: Any, x: jax.Array) -> Any:
        out, back = jax.vjp(run, params, x)
        return out, back(bar)

    return {
        "forward": functools.partial(forward, params, x),
        "forward and backward": functools.partial(both, params, x),
    }


def main() -> None:
    """Print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--tokens", type=int, help="those of a training step by default")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    keep_freed_memory()
    dense.LEAST_ROWS = convolution.LEAST_PRODUCTS = unet.LEAST_NORMED = 1
    forms = {
        kernels: load_config(arguments.experiment, read_flags(["--model.kernels", kernels]))
        for kernels in ("host", "xla")
    }
    config = forms["host"]
    tokens = arguments.tokens or 2 * (config.train.cloud_size or config.model.num_particles)
    both = {kernels: parts(config, tokens) for kernels, config in forms.items()}
    rows = []
    print(
        f"| {tokens} tokens | passes | host [ms] | XLA [ms] | XLA / host |\n|---|---|---|---|---|"
    )
    for name in both["host"]:
        timed = {kernels: calls(found[name]) for kernels, found in both.items()}
        for passes in ("forward", "forward and backward"):
            times = interleaved(
                {kernels: form[passes] for kernels, form in timed.items()}, arguments.repeats
            )
            ratio = times["xla"] / times["host"]
            rows.append({"part": name, "passes": passes, **times, "ratio": ratio})
            print(f"| {name} | {passes} | {times['host']:.1f} | {times['xla']:.1f} | {ratio:.2f} |",
                  flush=True)  # fmt: skip
    print(json.dumps({"tokens": tokens, "rows": rows}))


if __name__ == "__main__":
    main()
