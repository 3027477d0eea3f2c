"""Several processes that work together, by JAX's own distributed runtime.

Every process runs the same program on its own devices; arrays and collectives span all of them.
So all must take the same decisions in the same order: what only one of them can know (a signal, a
file, a mistake) is agreed upon here before anybody acts on it. Process 0, the primary, writes the
run folder; the others read it.
"""

import collections
import contextlib
import itertools
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from hdvpd.basics.errors import UserError

Result = TypeVar("Result")

LOST_STATUS = 75
"""Exit status of a process whose partner is gone: try again, as sysexits.h says."""
_HEARTBEAT_S = 30
_PATIENCE_MS = 7 * 24 * 3600 * 1000
"""The longest wait for others that are alive; those that are not are found by their heartbeat."""
_PART = 1 << 20
_MEETINGS: dict[str, itertools.count] = collections.defaultdict(itertools.count)
"""Numbers that no meeting on a channel had before; all processes meet in the same order there."""
_SHUTDOWN_S = 60


@dataclass(frozen=True)
class Team:
    """The processes of a training or an evaluation, seen from one of them.

    Attributes:
      number: of this process; 0 is the primary.
      count: of all.
      channel: where they meet. Threads of a process that meet the others at the same time, in
        whatever order, need one each; what a channel does must not compute on several devices.
    """

    number: int = 0
    count: int = 1
    channel: str = "main"

    @classmethod
    def here(cls) -> "Team":
        """Return the team that this process is in: itself, unless `join` was called."""
        return cls(jax.process_index(), jax.process_count())

    @property
    def primary(self) -> bool:
        """Whether this process writes the run folder."""
        return self.number == 0

    def any(self, value: bool) -> bool:
        """Whether a condition holds in any process; all must ask."""
        if self.count == 1:
            return value
        gathered = multihost_utils.process_allgather(np.asarray(value, np.int32))
        return bool(np.asarray(gathered).any())

    def from_primary(self, value: int) -> int:
        """Return the primary's number in every process; all must ask."""
        if self.count == 1:
            return value
        return int(multihost_utils.broadcast_one_to_all(np.asarray(value, np.int32)))

    def meet(self) -> None:
        """Wait until every process is here, however long that takes."""
        if self.count > 1:
            client = ocp.multihost.get_jax_distributed_client()
            client.wait_at_barrier(self.new_name(), _PATIENCE_MS)

    def new_name(self) -> str:
        """Return the same new name in every process; all must ask."""
        return f"hdvpd-{self.channel}-{next(_MEETINGS[self.channel])}"

    def gather(self, value: Result) -> list[Result] | None:
        """Return the values of all processes, in their order, in the primary, and None elsewhere.

        They travel through the coordination service, not through devices: for the results of an
        evaluation, not for those of a step.

        Args:
          value: can be pickled; all must bring one.
        """
        if self.count == 1:
            return [value]
        client = ocp.multihost.get_jax_distributed_client()
        name = self.new_name()
        if not self.primary:
            content = pickle.dumps(value)
            parts = [content[i : i + _PART] for i in range(0, len(content), _PART)]
            for number, part in enumerate(parts):
                client.key_value_set_bytes(f"{name}/{self.number}/{number}", part)
            client.key_value_set_bytes(f"{name}/{self.number}", str(len(parts)).encode())
        self.meet()
        if not self.primary:
            return None
        values = [value]
        for other in range(1, self.count):
            count = int(client.blocking_key_value_get_bytes(f"{name}/{other}", _PATIENCE_MS))
            parts = [
                client.blocking_key_value_get_bytes(f"{name}/{other}/{number}", _PATIENCE_MS)
                for number in range(count)
            ]
            values.append(pickle.loads(b"".join(parts)))  # of another process of this very job
        client.key_value_delete(name)
        return values

    def together(self, act: Callable[[], Result]) -> Result:
        """Let every process do something that may be refused; one refusal ends all of them.

        They agree through the coordination service, which waits longer than a collective.

        Args:
          act: the same in every process, without a collective inside.

        Raises:
          UserError: that of this process, or one that points to the process that refused.
        """
        if self.count == 1:
            return act()
        client = ocp.multihost.get_jax_distributed_client()
        # Of this meeting alone: a process that left it may refuse in the next before another reads.
        refusals = f"{self.new_name()}-refused/"
        try:
            result, refusal = act(), None
        except UserError as error:
            result, refusal = None, error
            client.key_value_set(f"{refusals}{self.number}", str(error))
        self.meet()
        if not client.key_value_dir_get(refusals):
            return result  # type: ignore[return-value]
        raise refusal or UserError(
            f"Process {self.number} ends because another of the {self.count} processes was "
            "refused; its message says why."
        )


def join(
    coordinator: str = "", num_processes: int | None = None, process_id: int | None = None
) -> Team:
    """Join the processes of a job, before anything is computed.

    Args:
      coordinator: host:port at which process 0 listens; empty takes `JAX_COORDINATOR_ADDRESS`, or
        what Slurm, Open MPI or a TPU pod say.
      num_processes: of all; None takes `JAX_NUM_PROCESSES`, or what these say.
      process_id: of this one, from 0; None takes `JAX_PROCESS_ID`, or `JOB_COMPLETION_INDEX` of a
        Kubernetes job, or what these say.

    Returns:
      The team.

    Raises:
      UserError: nobody says who takes part, or the others cannot be reached.
    """
    coordinator = coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    count = _number(num_processes, "JAX_NUM_PROCESSES")
    index = _number(process_id, "JAX_PROCESS_ID", "JOB_COMPLETION_INDEX")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Signals are this package's: `hdvpd.training.interrupts`.
    jax.config.update("jax_enable_preemption_service", False)
    local = coordinator.startswith(("127.0.0.1:", "localhost:"))
    try:
        jax.distributed.initialize(
            coordinator or None,
            count,
            index,
            # What is said needs no detection, which in Kubernetes wants another package.
            cluster_detection_method=None if None in (count, index) else "deactivate",
            # Not on every network that the machine is in, where nobody else takes part.
            coordinator_bind_address=coordinator if local else None,
            heartbeat_timeout_seconds=_HEARTBEAT_S,
            shutdown_timeout_seconds=_SHUTDOWN_S,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(
            f"--distributed could not join the others ({error}). Under Slurm nothing else is "
            "needed; elsewhere give every process the same --coordinator HOST:PORT and "
            "--num-processes N, and each its own --process-id from 0 to N - 1 (docs/scaling.md)."
        ) from error
    return Team.here()


@contextlib.contextmanager
def membership(team: Team) -> Iterator[None]:
    """Leave the team cleanly: nobody waits for a process that has failed.

    A process that ends alone ends at once, with its message, so that the others' collectives fail
    instead of waiting; one whose partner is gone says so and ends with status 75.

    Args:
      team: of `join`.
    """
    try:
        yield
        team.meet()  # the primary may still be writing
    except UserError as error:
        _end(f"hdvpd: process {team.number}: {error}", 2)
    except SystemExit:  # all were stopped together
        jax.distributed.shutdown()
        raise
    except Exception as error:
        if not _is_lost(error):
            traceback.print_exc()
            _end(f"hdvpd: process {team.number} has failed", 1)
        reason = str(error).strip().splitlines()[0]
        _end(
            f"hdvpd: process {team.number}: another of the {team.count} processes is gone "
            f"({reason}). Checkpoints are intact: start the processes again, fewer if need be, "
            "with --resume.",
            LOST_STATUS,
        )
    jax.distributed.shutdown()


def _is_lost(error: Exception) -> bool:
    if not isinstance(error, (jax.errors.JaxRuntimeError, ValueError)):
        return False
    text = str(error).lower()
    return any(sign in text for sign in ("gloo", "connection", "unavailable", "coordination"))


def _end(message: str, status: int) -> None:
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


def _number(given: int | None, *variables: str) -> int | None:
    if given is not None:
        return given
    for name in variables:
        text = os.environ.get(name, "")
        if text:
            if not text.isdecimal():
                raise UserError(f"The environment variable {name} is {text!r}; it is a number.")
            return int(text)
    return None
