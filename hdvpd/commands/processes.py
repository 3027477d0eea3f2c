"""Flags of the commands that several processes work on together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from hdvpd.basics.errors import UserError
from hdvpd.commands.flags import optional


@dataclass(frozen=True)
class Processes:
    """Who takes part."""

    distributed: bool = False
    """Share the work with other processes, each started with the same command (docs/scaling.md)."""
    coordinator: Annotated[str, optional("HOST:PORT")] = ""
    """Where process 0 listens; known by itself under Slurm."""
    num_processes: Annotated[int | None, optional("INT")] = None
    """Processes that take part."""
    process_id: Annotated[int | None, optional("INT")] = None
    """Number of this one, from 0."""

    def run(self, act: Callable[[], None]) -> None:
        """Act, as one of the processes if there are several.

        Raises:
          UserError: it is not said who takes part, or the others cannot be reached.
        """
        given = self.coordinator, self.num_processes, self.process_id
        if not self.distributed:
            if given != ("", None, None):
                raise UserError(
                    "--coordinator, --num-processes and --process-id say who takes part in a job "
                    "of several processes: add --distributed."
                )
            return act()

        from hdvpd.training.processes import join, membership

        with membership(join(*given)):
            act()
