"""Checkpoints of a train state that is spread over processes: each writes the part that it holds.

Orbax's multi-host saving, into the same folder with the same files as one process's. The primary
writes what is not an array, and renames the folder once everybody's part is on disk. They wait for
each other in the coordination service and never by a collective, because training goes on in the
meantime, on the same devices. A process that is lost leaves a folder aside, which the next start
removes: the last checkpoint is intact.
"""

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from hdvpd.basics.errors import UserError
from hdvpd.basics.files import explain_write_errors
from hdvpd.training.checkpoint_folder import (
    Progress,
    describe,
    named_leaves,
    parts_held,
    require_finite,
    reserve_space,
    sync_all,
    write_arrays,
)
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.metrics_log import REMEDY
from hdvpd.training.processes import Team

Result = TypeVar("Result")


class SpreadStore:
    """The checkpoints of a run, saved by all processes of a team together.

    Args:
      store: they are restored and listed by it, in any number of processes.
      team: all of it calls every method.
    """

    def __init__(self, store: CheckpointStore, team: Team) -> None:
        """Write nothing."""
        self._store = store
        self._team = dataclasses.replace(team, channel="checkpoints")
        self._copy = jax.jit(lambda state: jax.tree.map(jnp.copy, state))

    def copy(self, state: Any) -> Any:
        """Copy a state on its devices, each its part: what a device lends may be donated."""
        return jax.block_until_ready(self._copy(state))

    def save(
        self, step: int, state: Any, *, progress: Progress, files: Mapping[str, str] | None = None
    ) -> Path:
        """Write a checkpoint as `CheckpointStore.save` does; all processes end with the same.

        Raises:
          UserError: as there; or another process was refused.
        """
        arrays, number = named_leaves(state), self._team.number
        final = self._store.path / str(step)
        # The same name in all processes, which no other save of this start has.
        staging = self._store.path / f".saving-{self._team.new_name()}"
        parts = {name: _row(array) for name, array in arrays.items()}

        def prepare() -> None:
            require_finite(step, parts)
            scratch = staging / f"reserving-{number}"
            reserve_space(scratch, sum(part.nbytes for part in parts.values()))
            scratch.rmdir()

        def finish() -> None:
            describe(staging, arrays, progress, files or {})
            sync_all(staging)
            self._store.publish(staging, step)

        try:
            self._together(final, prepare)
            with explain_write_errors(final, REMEDY):
                write_arrays(staging, arrays, self._everybody())
            # Each flushes what it has written: on a network disk nobody else can.
            self._together(final, lambda: sync_all(staging))
            self._together(final, lambda: finish() if self._team.primary else None)
        except UserError:
            if self._team.primary:
                shutil.rmtree(staging, ignore_errors=True)
            raise
        return final

    def verify(self, step: int, state: Any) -> None:
        """Read a checkpoint back; each process compares the part that it holds.

        Raises:
          UserError: it differs.
        """
        self._together(self._store.path, lambda: self._store.verify(step, state))

    def _everybody(self) -> ocp.options.MultiprocessingOptions:
        """Say that all processes write; named ones meet without a collective."""
        return ocp.options.MultiprocessingOptions(
            primary_host=0,
            active_processes=set(range(self._team.count)),
            barrier_sync_key_prefix=self._team.new_name(),
        )

    def _together(self, what: Path, act: Callable[[], Result]) -> Result:
        def explained() -> Result:
            with explain_write_errors(what, REMEDY):
                return act()

        return self._team.together(explained)


def _row(array: jax.Array) -> np.ndarray:
    """Return the elements of an array that this process holds, in one row."""
    return np.concatenate([part.ravel() for _, part in parts_held(array)])
