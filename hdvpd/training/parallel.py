"""Data parallelism: the windows of a batch spread over devices, by JAX's own SPMD.

One mesh with one axis. Every device holds some windows of the batch and, while it computes, all
parameters; gradients are averaged over the axis. What a window draws depends on its place in the
whole batch alone (`Model.loss`), so the number of devices, and of parts in which each works off its
windows, changes the rounding of sums and nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hdvpd.config import TrainConfig
from hdvpd.errors import UserError
from hdvpd.types import Array, Batch, Float, Int, PRNGKey

Tree = TypeVar("Tree")
Params = Any
Loss = Callable[
    [Params, Batch, PRNGKey, Int[Array, ""] | int], tuple[Float[Array, ""], Float[Array, "s"]]
]
Gradient = Callable[
    [Params, Batch, PRNGKey], tuple[tuple[Float[Array, ""], Float[Array, "s"]], Params]
]

_WINDOWS = "windows"


@dataclass(frozen=True)
class Layout:
    """Where the arrays of a training lie.

    Attributes:
      mesh: of all devices that take part, with the axis of windows.
      parts: in how many parts, one after another, each device works off its windows.
      shard_state: spread parameters and optimiser over the devices instead of repeating them.
    """

    mesh: Mesh
    parts: int = 1
    shard_state: bool = False

    def place_batch(self, batch: Batch) -> Batch:
        """Copy a batch to the devices, its windows spread over them."""
        return jax.device_put(batch, self._sharding(P(_WINDOWS)))

    def place_everywhere(self, tree: Tree) -> Tree:
        """Copy arrays to every device."""
        return jax.device_put(tree, self._sharding(P()))

    def place_state(self, state: Tree) -> Tree:
        """Copy a train state to where training leaves it."""
        return jax.tree.map(lambda x: jax.device_put(x, self._rest(x.shape)), state)

    def constrain_state(self, state: Tree) -> Tree:
        """Say inside a jitted step where its new train state lies."""
        if self.mesh.size == 1:
            return state
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, self._rest(x.shape)), state
        )

    def _sharding(self, spec: P) -> NamedSharding | None:
        """Return where arrays of this kind lie; None, jax's default, if there is one device."""
        return None if self.mesh.size == 1 else NamedSharding(self.mesh, spec)

    def _rest(self, shape: tuple[int, ...]) -> NamedSharding | None:
        """Return where an array of the train state lies between steps.

        The largest axis that the devices divide is spread; small arrays without one are repeated.
        """
        axes = [axis for axis, size in enumerate(shape) if size and size % self.mesh.size == 0]
        if not self.shard_state or not axes:
            return self._sharding(P())
        axis = max(axes, key=lambda i: shape[i])
        return self._sharding(P(*(None,) * axis, _WINDOWS))


def make_layout(train: TrainConfig) -> Layout:
    """Lay a training out over the devices that it asks for.

    Args:
      train: `num_devices`, `accumulate` and `shard_state` of it.

    Raises:
      UserError: there are fewer devices, or they and the parts do not divide the batch.
    """
    devices = jax.devices()
    count = train.num_devices or len(devices)
    if count > len(devices):
        raise UserError(
            f"train.num_devices is {count}, but jax sees {len(devices)} "
            f"({devices[0].device_kind}). Ask for at most these, or for 0: all there are."
        )
    if train.batch_size % (count * train.accumulate):
        raise UserError(
            f"train.batch_size = {train.batch_size} cannot be divided among {count} devices in "
            f"{train.accumulate} parts each (train.num_devices, train.accumulate). Choose a "
            f"multiple of {count * train.accumulate}."
        )
    mesh = Mesh(devices[:count], (_WINDOWS,))
    return Layout(mesh, parts=train.accumulate, shard_state=train.shard_state)


def make_gradient(loss: Loss, layout: Layout) -> Gradient:
    """Make the gradient of a loss over a batch that lies as the layout says.

    Args:
      loss: (parameters, some windows, key, place of the first in the batch) -> mean over these
        windows, and the same per predicted step.
      layout: of the training.

    Returns:
      (parameters, batch, key) -> (loss over the batch, gradient), the same on every device.
    """
    gradient = jax.value_and_grad(loss, has_aux=True)

    def of_windows(params: Params, batch: Batch, key: PRNGKey, first: Int[Array, ""] | int) -> Any:
        size = batch.start.shape[0] // layout.parts
        if layout.parts == 1:
            return gradient(params, batch, key, first)

        def add_part(total: Any, offset: Int[Array, ""]) -> tuple[Any, None]:
            part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, offset, size), batch)
            computed = gradient(params, part, key, first + offset)
            return jax.tree.map(jnp.add, total, computed), None

        shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[:size], batch), key, 0)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        total, _ = jax.lax.scan(add_part, zeros, jnp.arange(layout.parts) * size)
        return jax.tree.map(lambda x: x / layout.parts, total)

    if layout.mesh.size == 1:
        return lambda params, batch, key: of_windows(params, batch, key, 0)

    def of_device(params: Params, batch: Batch, key: PRNGKey) -> Any:
        first = jax.lax.axis_index(_WINDOWS) * batch.start.shape[0]
        return jax.lax.pmean(of_windows(params, batch, key, first), _WINDOWS)

    # check_vma: the compiled host kernels do not say over which axes their results vary.
    return jax.shard_map(
        of_device,
        mesh=layout.mesh,
        in_specs=(P(), P(_WINDOWS), P()),
        out_specs=P(),
        check_vma=False,
    )
