"""What a command is: frozen settings that run. tyro makes its flags, help and completion of them.

A user's mistake ends with one message and exit status 2; `--debug` adds the traceback.
"""

import abc
import os
import sys
import traceback
from collections.abc import Collection, Sequence
from typing import Any

import tyro

from hdvpd.errors import UserError


class AbstractCommand(abc.ABC):
    """A dataclass whose fields are flags and whose docstrings are their help."""

    @abc.abstractmethod
    def run(self) -> int | None:
        """Do the work, importing here what it needs, so that help stays quick.

        Returns:
          The exit status; None is success.
        """


def run_command(
    kind: Any, words: Sequence[str], *, prog: str, description: str, groups: Collection[str] = ()
) -> int:
    """Parse words into a command and run it.

    Args:
      kind: a command, or a union of commands, each annotated with its name.
      words: what was typed after the program's name; nothing, or a group alone, asks for help.
      prog: name of the program.
      description: shown above the list of commands.
      groups: names of the commands that only hold other ones.

    Returns:
      The exit status: 0 for success, 1 if a check failed, 2 for a mistake of the user.
    """
    words = list(words)
    if debug := "--debug" in words:
        words.remove("--debug")
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif not words or (len(words) == 1 and words[0] in groups):
        words.append("--help")
    try:
        try:
            command = tyro.cli(kind, prog=prog, description=description, args=words)
        finally:
            sys.stdout.flush()
        return command.run() or 0
    except SystemExit as stop:  # tyro has shown help or named a mistake
        return stop.code if isinstance(stop.code, int) else 0
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Who read the output has enough, as in `| head`. Nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
