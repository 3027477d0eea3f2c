"""Windows of an evaluation spread over devices and processes.

Each window is worked off by one device alone, by the very program that one device would run, so
neither devices nor processes change a score. Processes take every n-th window; devices of one
process, a thread each, take the next that is left. Nobody waits for anybody before the end, so any
number of windows suits any number of devices.
"""

import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from flax import nnx

from hdvpd.model import Model
from hdvpd.model.compiled import CompiledModel, CompileModel
from hdvpd.training.parallel import local_devices
from hdvpd.training.processes import Team

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[CompiledModel, Item], Result]


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
        if len(self.parts) == 1:
            return [work(self.parts[0], item) for item in items]
        results: dict[int, Result] = {}
        waiting: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        for numbered in enumerate(items):
            waiting.put(numbered)

        def work_off(parts: CompiledModel, device: Any) -> None:
            with jax.default_device(device), contextlib.suppress(queue.Empty):
                while True:
                    number, item = waiting.get_nowait()
                    results[number] = work(parts, item)

        with ThreadPoolExecutor(len(self.parts), thread_name_prefix="hdvpd-device") as pool:
            list(pool.map(work_off, self.parts, self.devices))  # raises what a thread has raised
        return [results[number] for number in range(len(items))]


def spread_model(model: Model, num_devices: int, compile_model: CompileModel) -> SpreadModel:
    """Put a model on the devices that share the windows of an evaluation.

    Args:
      model: with trained parameters.
      num_devices: of every process; 0 is all.
      compile_model: gives the model its compiled parts.

    Raises:
      UserError: there are fewer devices.
    """
    devices = local_devices(num_devices, "eval.num_devices")
    if len(devices) == 1:
        return SpreadModel((compile_model(model),), devices, Team.here())
    graphdef, state = nnx.split(model)
    placed = (nnx.merge(graphdef, jax.device_put(state, device)) for device in devices)
    parts = [compile_model(there) for there in placed]
    return SpreadModel(tuple(parts), devices, Team.here())
