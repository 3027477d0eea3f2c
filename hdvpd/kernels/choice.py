"""Which form of an operation runs."""

from typing import Literal

import jax

Kernels = Literal["auto", "host", "xla", "pallas"]
"""Setting `model.kernels`: auto is host code on CPU and plain JAX elsewhere. pallas is plain JAX
wherever an operation has no such form."""


def use_host_kernels(kernels: Kernels) -> bool:
    """Whether an operation runs compiled host code."""
    if kernels == "auto":
        return jax.default_backend() == "cpu"
    return kernels == "host"
