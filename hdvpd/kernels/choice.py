"""Which form of an operation runs: `model.kernels`, or what a graph carries.

"auto" is host code on CPU and plain JAX elsewhere; "pallas" is plain JAX wherever an operation has
no such form.
"""

import jax

from hdvpd.config import Kernels


def use_host_kernels(kernels: Kernels) -> bool:
    """Whether an operation runs compiled host code."""
    if kernels == "auto":
        return jax.default_backend() == "cpu"
    return kernels == "host"
