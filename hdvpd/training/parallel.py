"""Data parallelism: the windows of a batch spread over devices, by JAX's own SPMD.

One mesh with one axis, over the devices of one process or of several. Every device holds some
windows of the batch and, while it computes, all parameters; gradients are averaged over the axis.
What a window draws depends on its place in the whole batch alone (`Model.loss`), so the number of
devices, and of parts in which each works off its windows, changes the rounding of sums and nothing
else.
"""

import contextlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import usable_cores
from hdvpd.basics.types import Array, Batch, Float, Int, PRNGKey
from hdvpd.config import TrainConfig
from hdvpd.kernels.cores import share_cores

Tree = TypeVar("Tree")
Params = Any
Loss = Callable[
    [Params, Batch, PRNGKey, Int[Array, ""] | int], tuple[Float[Array, ""], Float[Array, "s"]]
]
Gradient = Callable[
    [Params, Batch, PRNGKey], tuple[tuple[Float[Array, ""], Float[Array, "s"]], Any]
]

_WINDOWS = "windows"
_CPU_DEVICES = "xla_force_host_platform_device_count"
_PATIENCE = "xla_cpu_collective_call_terminate_timeout_seconds"
_CONCURRENT = "xla_cpu_enable_concurrency_optimized_scheduler"


@dataclass(frozen=True)
class Layout:
    """Where the arrays of a training lie.

    Attributes:
      mesh: of all devices that take part, with the axis of windows.
      parts: in how many parts, one after another, each device works off its windows, at least.
      shard_state: spread parameters and optimiser over the devices instead of repeating them.
    """

    mesh: Mesh
    parts: int = 1
    shard_state: bool = False

    @property
    def _single(self) -> bool:
        """Whether one device does everything, and jax's defaults are right."""
        return self.mesh.size == 1

    def slice_of(self, process: int, windows: int) -> slice:
        """Return the places in a batch that a process reads: those that its devices work off.

        Args:
          process: its number.
          windows: of the whole batch.
        """
        mine = [i for i, d in enumerate(self.mesh.devices.flat) if d.process_index == process]
        size = windows // self.mesh.size
        return slice(mine[0] * size, (mine[-1] + 1) * size)

    def place_batch(self, batch: Batch) -> Batch:
        """Copy the windows that this process has read to its devices, as a part of the batch."""
        return self._place(batch, P(_WINDOWS))

    def place_everywhere(self, tree: Tree) -> Tree:
        """Copy arrays to every device; all processes have the same."""
        return self._place(tree, P())

    def place_state(self, state: Tree) -> Tree:
        """Copy a train state to where training leaves it, if it is not there.

        Args:
          state: the same in all processes, or restored as `spread_shapes` says.
        """
        if jax.process_count() == 1:
            return jax.tree.map(lambda x: jax.device_put(x, self._rest(x.shape)), state)

        def place(x: Array) -> Array:
            if isinstance(x, jax.Array) and not x.is_fully_addressable:
                return x
            whole, sharding = np.asarray(x), self._rest(x.shape)
            assert sharding is not None  # several processes have several devices
            return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

        return jax.tree.map(place, state)

    def spread_shapes(self, shapes: Tree) -> Tree:
        """Say of a train state's shapes where it will lie, if that is on several processes."""
        if not self.spans_processes:
            return shapes
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._rest(x.shape)), shapes
        )

    @property
    def spans_processes(self) -> bool:
        """Whether no process holds the whole train state between steps."""
        return self.shard_state and jax.process_count() > 1

    def local(self, batch: Batch) -> Batch:
        """Return the windows of a placed batch that lie on this process's devices."""
        if jax.process_count() == 1:
            return batch
        return jax.tree.map(lambda x: x.addressable_data(0), batch)

    def gather(self, tree: Tree) -> Tree:
        """Return whole arrays in every process, where they are spread over several; all must ask.

        They take memory on each device for as long as the result is used.
        """
        if not self.spans_processes:
            return tree
        return jax.jit(lambda x: x, out_shardings=self._sharding(P()))(tree)

    def _place(self, tree: Tree, spec: P) -> Tree:
        sharding = self._sharding(spec)
        if sharding is None or jax.process_count() == 1:
            return jax.device_put(tree, sharding)

        def place(x: Any) -> Any:
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(place(jax.random.key_data(x)))
            return jax.make_array_from_process_local_data(sharding, np.asarray(x))

        return jax.tree.map(place, tree)

    def constrain_state(self, state: Tree) -> Tree:
        """Say inside a jitted step where its new train state lies."""
        if self._single:
            return state
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, self._rest(x.shape)), state
        )

    def _sharding(self, spec: P) -> NamedSharding | None:
        """Return where arrays of this kind lie; None, jax's default, if there is one device."""
        return None if self._single else NamedSharding(self.mesh, spec)

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
    """Lay a training out over the devices that it asks for, which share the cores from now on.

    Args:
      train: `num_devices`, of every process, `accumulate` and `shard_state` of it.

    Raises:
      UserError: there are fewer devices, or they and the parts do not divide the batch.
    """
    here = local_devices(train.num_devices, "train.num_devices")
    spread = [
        count
        for count in range(len(here), 0, -1)
        if train.batch_size % (count * jax.process_count() * train.accumulate) == 0
    ]
    # As many as divide the batch, where a number is not asked for.
    count = spread[0] if train.num_devices == 0 and spread else len(here)
    devices = []
    for process in range(jax.process_count()):
        devices += [d for d in jax.devices() if d.process_index == process][:count]
    if count not in spread:
        raise UserError(
            f"train.batch_size = {train.batch_size} cannot be divided among {len(devices)} devices "
            f"in {train.accumulate} parts each (train.num_devices, train.accumulate). Choose a "
            f"multiple of {len(devices) * train.accumulate}."
        )
    share_cores(count)
    mesh = Mesh(devices, (_WINDOWS,))
    return Layout(mesh, parts=train.accumulate, shard_state=train.shard_state)


def offer_cores(*trainings: TrainConfig) -> None:
    """Let jax see several CPU devices, which share the cores: windows are then worked off at once.

    One window does not keep several cores busy, for its layers are small and wait for each other
    (`benchmarks/window_devices.py`). Accelerators are not concerned, and nothing happens if jax was
    used before. Its own settings (`JAX_NUM_CPU_DEVICES`, `XLA_FLAGS`) go before. XLA ends a process
    whose CPU devices come a minute apart to where they exchange gradients; here they may wait for
    each other for a day. It also orders a program so that much of it could run at once, which
    devices that have a core each gain nothing by: here memory is used again while it is in the
    cache.

    Args:
      trainings: those to come, of which the greatest counts; where one asks for as many devices as
        divide its windows, there is one for each. More than there are cores are not offered.
    """
    count = max(training.num_devices or training.batch_size for training in trainings)
    devices, flags = min(count, usable_cores()), os.environ.get("XLA_FLAGS", "")
    given = jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]
    if count > 1:
        for flag, value in ((_PATIENCE, 24 * 3600), (_CONCURRENT, "false")):
            flags += "" if flag in flags else f" --{flag}={value}"
        os.environ["XLA_FLAGS"] = flags.strip()
    if devices > 1 and given < 0 and _CPU_DEVICES not in flags:
        with contextlib.suppress(RuntimeError):  # jax has been used before
            jax.config.update("jax_num_cpu_devices", devices)


def local_devices(count: int, key: str) -> tuple[Any, ...]:
    """Return the first devices of this process.

    Args:
      count: how many; 0 is all.
      key: of the setting that asks for them, for the message.

    Raises:
      UserError: there are fewer.
    """
    local = jax.local_devices()
    if count > len(local):
        raise UserError(
            f"{key} is {count}, but jax sees {len(local)} ({local[0].device_kind}). Ask for at "
            "most these, or for 0: all there are."
        )
    return tuple(local[: count or len(local)])


def over_windows(compute: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """Spread a mean over windows over the devices, each of which works off its own in parts.

    Args:
      compute: (parameters, some windows, key, place of the first in the batch) -> pytree of means
        over these windows.
      layout: of the training.

    Returns:
      (parameters, batch, key) -> means over the batch, the same on every device.
    """
    compute = in_parts(compute, layout.parts)
    if layout.mesh.size == 1:
        return lambda params, batch, key: compute(params, batch, key, 0)

    def of_device(params: Params, batch: Batch, key: PRNGKey) -> Any:
        first = jax.lax.axis_index(_WINDOWS) * batch.start.shape[0]
        return jax.lax.pmean(compute(params, batch, key, first), _WINDOWS)

    # check_vma: the compiled host kernels do not say over which axes their results vary.
    return jax.shard_map(
        of_device,
        mesh=layout.mesh,
        in_specs=(P(), P(_WINDOWS), P()),
        out_specs=P(),
        check_vma=False,
    )


def in_parts(compute: Callable[..., Any], parts: int) -> Callable[..., Any]:
    """Work off windows in parts, one after another: that takes the memory of one.

    Args:
      compute: as for `over_windows`.
      parts: at least so many, and as few more as divide the windows.

    Returns:
      A function like `compute`.
    """

    def of_windows(params: Params, batch: Batch, key: PRNGKey, first: Int[Array, ""] | int) -> Any:
        size = batch.start.shape[0]
        count = next(n for n in range(min(parts, size), size + 1) if size % n == 0)
        if count == 1:
            return compute(params, batch, key, first)
        length = size // count

        def add_part(total: Any, offset: Int[Array, ""]) -> tuple[Any, None]:
            part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, offset, length), batch)
            computed = compute(params, part, key, first + offset)
            return jax.tree.map(jnp.add, total, computed), None

        shapes = jax.eval_shape(compute, params, jax.tree.map(lambda x: x[:length], batch), key, 0)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        total, _ = jax.lax.scan(add_part, zeros, jnp.arange(count) * length)
        return jax.tree.map(lambda x: x / count, total)

    return of_windows


def make_gradient(loss: Loss, layout: Layout, pack: Callable[[Params, Params], Any]) -> Gradient:
    """Make the gradient of a loss over a batch that lies as the layout says.

    Args:
      loss: (parameters, some windows, key, place of the first in the batch) -> mean over these
        windows, and the same per predicted step.
      layout: of the training.
      pack: (parameters, their gradient) -> what devices exchange, in few arrays: on CPUs they wait
        for each other once for each.

    Returns:
      (parameters, batch, key) -> (loss over the batch, packed gradient), the same on every device.
    """
    gradient = jax.value_and_grad(loss, has_aux=True)

    def packed(params: Params, *windows: Any) -> Any:
        found, grads = gradient(params, *windows)
        return found, pack(params, grads)

    return over_windows(packed, layout)


def stated_bytes(program: str) -> dict[str, int]:
    """Add up what a compiled program says of its collectives; a loop's body counts once.

    Args:
      program: XLA's text, `jitted.lower(...).compile().as_text()`.

    Returns:
      Bytes of the results of all-gathers and of all-reduces.
    """
    found = {"all-gather": 0, "all-reduce": 0}
    for result, kind in re.findall(r"= (.*?) (all-gather|all-reduce)(?:-start)?\(", program):
        for bits, shape in re.findall(r"(?:[fsu](\d+)|pred)\[([\d,]*)\]", result):
            numbers = [int(number) for number in shape.split(",") if number]
            found[kind] += int(bits or 8) // 8 * math.prod(numbers)
    return found
