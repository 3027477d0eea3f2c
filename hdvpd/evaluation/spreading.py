"""Windows of an evaluation spread over devices and processes.

Each window is worked off by one device alone, by the very program that one device would run, so
neither devices nor processes change a score. Processes take every n-th window; devices of one
process, two threads each, take the next that is left: while one scores, another computes. Nobody
waits for anybody before the end, so any number of windows suits any number of devices.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from flax import nnx

from hdvpd.kernels.cores import share_cores
from hdvpd.model import Model
from hdvpd.model.compiled import CompiledModel, CompileModel
from hdvpd.training.parallel import local_devices
from hdvpd.training.processes import Team

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[CompiledModel, Item], Result]

AT_ONCE = 2
"""Items that each device works off at once."""


@dataclass(frozen=True)
class SpreadModel:
    """A model on every device that takes part.

    Attributes:
      parts: its compiled parts on each device of this process.
      devices: of this process, in the same order.
      team: all processes.
    """

    parts: tuple[CompiledModel, ...]
    devices: tuple[Any, ...]
    team: Team

    def map(self, work: Work[Item, Result], items: Sequence[Item]) -> list[Result] | None:
        """Work off items wherever there is a device; all processes must ask.

        Args:
          work: from a model's compiled parts and an item to a result that can be pickled.
          items: the same in all processes.

        Returns:
          One result per item, in order; None in all processes but the primary.

        Raises:
          UserError: of the first item that raised it.
        """
        team = self.team
        mine = items[team.number :: team.count]
        gathered = team.gather(team.together(lambda: self._map_here(work, mine)))
        if gathered is None:
            return None
        # Results of process n are those of items n, n + count, ...
        return [gathered[i % team.count][i // team.count] for i in range(len(items))]

    def _map_here(self, work: Work[Item, Result], items: Sequence[Item]) -> list[Result]:
        results: dict[int, Result] = {}
        waiting: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        for numbered in enumerate(items):
            waiting.put(numbered)
        stopped = threading.Event()

        @contextlib.contextmanager
        def stopping() -> Iterator[None]:
            try:
                yield
            except BaseException:
                stopped.set()  # the others end with the item that they are at
                raise

        def work_off(parts: CompiledModel, device: Any, most: int) -> None:
            with jax.default_device(device), stopping(), contextlib.suppress(queue.Empty):
                for _ in range(most):
                    if stopped.is_set():
                        return
                    number, item = waiting.get_nowait()
                    results[number] = work(parts, item)

        def work_off_together(parts: CompiledModel, device: Any) -> None:
            work_off(parts, device, 1)  # which compiles what those after it use
            wait_for([pool.submit(work_off, parts, device, len(items)) for _ in range(AT_ONCE)])

        count = len(self.parts)
        with ThreadPoolExecutor((1 + AT_ONCE) * count, "hdvpd-device") as pool, stopping():
            wait_for(
                [
                    pool.submit(work_off_together, *x)
                    for x in zip(self.parts, self.devices, strict=True)
                ]
            )
        return [results[number] for number in range(len(items))]


def wait_for(futures: Sequence[Future[None]]) -> None:
    """Wait for threads, and raise what the first of them has raised."""
    for future in futures:
        future.result()


def spread_model(model: Model, num_devices: int, compile_model: CompileModel) -> SpreadModel:
    """Put a model on the devices that share the windows of an evaluation, and the cores.

    Args:
      model: with trained parameters.
      num_devices: of every process; 0 is all.
      compile_model: gives the model its compiled parts.

    Raises:
      UserError: there are fewer devices.
    """
    devices = local_devices(num_devices, "eval.num_devices")
    share_cores(len(devices))
    if len(devices) == 1:
        return SpreadModel((compile_model(model),), devices, Team.here())
    graphdef, state = nnx.split(model)
    placed = (nnx.merge(graphdef, jax.device_put(state, device)) for device in devices)
    parts = [compile_model(there) for there in placed]
    return SpreadModel(tuple(parts), devices, Team.here())
