"""Which form of an operation runs: `model.kernels`, or what a graph carries.

"auto" is host code on CPU, "pallas" on NVIDIA's GPUs and plain JAX elsewhere; "pallas" is plain JAX
wherever an operation has no GPU kernel.
"""

import jax

from hdvpd.config import Kernels


def use_host_kernels(kernels: Kernels) -> bool:
    """Whether an operation runs compiled host code."""
    if kernels == "auto":
        return jax.default_backend() == "cpu"
    return kernels == "host"


def use_gpu_kernels(kernels: Kernels) -> bool:
    """Whether an operation that has a form in Pallas runs it."""
    if kernels == "auto":
        # AMD's GPUs, which are "gpu" too, have not been tried.
        return jax.default_backend() == "gpu" and "NVIDIA" in jax.devices()[0].device_kind
    return kernels == "pallas"
