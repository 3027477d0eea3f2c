"""What host code costs around its arithmetic: calls of XLA's, and products of small blocks.

A program on each of some devices calls a function that does next to nothing, between passes over
more memory than a cache holds, as a training step does: from Python, and without. Then products of
a block of rows with a layer's kernel, in one thread and in two at once: by this project and by
oneDNN, which takes memory for each.

Run: python benchmarks/host_calls.py [--calls 200] [--repeats 7]
"""

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
)

import jax
import jax.numpy as jnp
import llvmlite.binding as llvm
import numpy as np
from numba import types
from timing import interleaved

from hdvpd.basics.machine import keep_freed_memory
from hdvpd.kernels import ffi, onednn
from hdvpd.kernels.compiled import fast_njit
from hdvpd.kernels.cores import share_cores
from hdvpd.kernels.small_products import add_transposed_product, product

ROWS = 256
LAYERS = ((64, 64), (64, 192), (64, 256), (256, 64), (16, 16))
NUMBERS = 2**19


@fast_njit()
def natively(rows: np.ndarray, norm: np.ndarray, factor: np.float32, result: np.ndarray) -> None:
    """Fill in the first of some rows."""
    result[0] = factor * rows[0, 0] + norm[0]


@fast_njit()
def from_python(rows: np.ndarray, norm: np.ndarray, factor: np.float32, result: np.ndarray) -> None:
    """Do the same; another function, because the way is chosen once for each."""
    result[0] = factor * rows[0, 0] + norm[0]


def calling(function: Callable[..., None] | None, calls: int) -> Callable[[jax.Array], jax.Array]:
    """Return a program that passes over numbers so often, with a call before each pass."""

    def step(numbers: jax.Array, _: None) -> tuple[jax.Array, None]:
        shift = numbers[:1]
        if function is not None:
            shape = [jax.ShapeDtypeStruct((1,), np.float32)]
            given = numbers[:64].reshape(8, 8), numbers[:8], jnp.float32(1e-3)
            shift = ffi.ffi_call(function, shape, *given)[0]
        return 0.5 * jnp.roll(numbers, 1) + shift, None

    def program(numbers: jax.Array) -> jax.Array:
        return jax.lax.scan(step, numbers, None, calls)[0]

    return jax.jit(program)


def time_calls(calls: int, repeats: int) -> None:
    """Print what a call takes, on one device and on two at once."""
    numbers = [jax.device_put(jnp.ones(NUMBERS), device) for device in jax.local_devices()]
    ways = {"none": calling(None, calls), "native": calling(natively, calls)}
    jax.block_until_ready(ways["native"](numbers[0]))
    ffi._FEW_CORES = 0
    ways["python"] = calling(from_python, calls)
    for count in (1, 2):

        def on_devices(program: Any, count: int = count) -> list[jax.Array]:
            return [program(x) for x in numbers[:count]]

        found = interleaved({name: partial(on_devices, x) for name, x in ways.items()}, repeats)
        each = [1e3 * (found[name] - found["none"]) / calls for name in ("native", "python")]
        told = f"native {each[0]:.1f}, python {each[1]:.1f}"
        print(f"a call, {count} at once: {told} us")


def library() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the two products by oneDNN."""
    llvm.add_symbol("dnnl_sgemm", onednn.address("dnnl_sgemm"))
    word, number, place = types.int64, types.float32, types.voidptr
    arguments = (types.int8, types.int8, word, word, word, number, place, word, place, word, number,
                 place, word)  # fmt: skip
    sgemm = types.ExternalFunction("dnnl_sgemm", types.int32(*arguments))
    plain, turned, one, zero = 78, 84, np.float32(1), np.float32(0)

    @fast_njit(cache=False)
    def product(a: np.ndarray, b: np.ndarray, result: np.ndarray) -> None:
        rows, columns = result.shape
        sgemm(plain, plain, rows, columns, len(b), one, a.ctypes.data, a.shape[1], b.ctypes.data,
              columns, zero, result.ctypes.data, columns)  # fmt: skip

    @fast_njit(cache=False)
    def add_transposed_product(a: np.ndarray, b: np.ndarray, result: np.ndarray) -> None:
        rows, columns = result.shape
        sgemm(turned, plain, rows, columns, len(b), one, a.ctypes.data, rows, b.ctypes.data,
              columns, one, result.ctypes.data, columns)  # fmt: skip

    return product, add_transposed_product


def repeated(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls one so often, without Python between."""

    @fast_njit(cache=False)
    def run(a: np.ndarray, b: np.ndarray, result: np.ndarray, times: int) -> None:
        for _ in range(times):
            function(a, b, result)

    return run


def time_products(repeats: int) -> None:
    """Print what products take, one after another and in two threads."""
    ways: dict[str, Any] = {"ours": (product, add_transposed_product)}
    if onednn.available():
        ways["oneDNN"] = library()
    runs = {name: tuple(map(repeated, pair)) for name, pair in ways.items()}
    rng, times = np.random.default_rng(0), 300
    with ThreadPoolExecutor(2) as pool:
        for threads in (1, 2):
            for inner, outer in LAYERS:
                kernel = rng.normal(size=(inner, outer)).astype(np.float32)
                spaces = [
                    [rng.normal(size=(ROWS, n)).astype(np.float32) for n in (inner, outer)]
                    + [np.zeros_like(kernel)]
                    for _ in range(threads)
                ]

                def work(name: str, spaces: Any = spaces, kernel: np.ndarray = kernel) -> None:
                    forward, gradient = runs[name]

                    def do(x: np.ndarray, y: np.ndarray, bar: np.ndarray) -> None:
                        forward(x, kernel, y, times)
                        bar[:] = 0
                        gradient(x, y, bar, times)

                    list(pool.map(lambda space: do(*space), spaces))

                found = interleaved({name: partial(work, name) for name in runs}, repeats)
                told = ", ".join(f"{name} {1e3 * ms / times:.1f}" for name, ms in found.items())
                print(f"{ROWS} x {inner} x {outer} and its gradient, {threads} at once: {told} us")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    keep_freed_memory()
    share_cores(2)
    time_calls(arguments.calls, arguments.repeats)
    time_products(arguments.repeats)


if __name__ == "__main__":
    main()
