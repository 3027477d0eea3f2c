"""What a command is: frozen settings that run. tyro makes its flags, help and completion of them.

A user's mistake ends with one message and exit status 2; `--debug` adds the traceback.
"""

import abc
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from hdvpd.basics.errors import UserError, nearest

_COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")
_SHELLS = ("bash", "zsh", "fish")  # for tcsh tyro wants one more package, and writes less


class AbstractCommand(abc.ABC):
    """A dataclass whose fields are flags and whose docstrings are their help."""

    @abc.abstractmethod
    def run(self) -> int | None:
        """Do the work, importing here what it needs, so that help stays quick.

        Returns:
          The exit status; None is success.
        """


def announce(what: str, *folders: Path) -> None:
    """Print a first word within the first second: the imports that follow take longer."""
    names = ", ".join(map(str, folders))
    print(f"{what} {names}: loading libraries, data and model ...", flush=True)


class Group(NamedTuple):
    """Commands that are called by two words."""

    description: str
    commands: Mapping[str, type[AbstractCommand]]


@dataclass(frozen=True)
class Program:
    """A program of several commands.

    Attributes:
      name: how it is called.
      description: shown above the list of its commands.
      commands: an `AbstractCommand` class, or a `Group`, by name.
      prepare: rewrites what was typed before it is parsed, or raises a UserError.
    """

    name: str
    description: str
    commands: Mapping[str, Any]
    prepare: Callable[[list[str]], list[str]] = list

    def run(self, words: Sequence[str]) -> int:
        """Parse what was typed and do it.

        Args:
          words: after the program's name; none, or a group alone, asks for help.

        Returns:
          The exit status: 0 for success, 1 if a check failed, 2 for a mistake of the user.
        """
        try:
            try:
                command = self.parse([word for word in words if word != "--debug"])
                return command.run() or 0
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # Who read the output has enough, as in `| head`. Nothing may be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except (UserError, OSError) as error:
            message = _refusal(error) if isinstance(error, OSError) else str(error)
            if message is None:
                raise
            if "--debug" in words:
                traceback.print_exc()
            print(f"{self.name}: {message}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
        except SystemExit as stop:  # after help, a mistake that tyro named, or a signal in training
            return stop.code if isinstance(stop.code, int) else 0

    def parse(self, words: Sequence[str]) -> AbstractCommand:
        """Return the command that was typed.

        Raises:
          UserError: a mistake that tyro would not explain.
          SystemExit: after help, or, with status 2, any other mistake.
        """
        words = self.prepare(list(words))
        _check_completion(words)
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        kind, path = Group(self.description, self.commands), self.name
        # tyro could walk down too, but lists all names for a wrong one, and for a wrong flag the
        # like flags of all commands.
        while isinstance(kind, Group) and words and not words[0].startswith("-"):
            if words[0] not in kind.commands:
                raise UserError(_no_command(words[0], kind, path))
            kind, path, words = kind.commands[words[0]], f"{path} {words[0]}", words[1:]
        if isinstance(kind, Group):
            return _app(kind).cli(prog=path, description=kind.description, args=words or ["--help"])
        return tyro.cli(
            kind,
            prog=path,
            description=_description(kind),
            args=words,
            config=(tyro.conf.HelptextFromCommentsOff, tyro.conf.DisallowNone),
        )


def _refusal(error: OSError) -> str | None:
    """Say which file the system refused; None for what may as well be a mistake of ours."""
    if error.filename is None or isinstance(error, FileNotFoundError | FileExistsError):
        return None
    return (
        f"{error.filename}: {error.strerror}. Name another place, or make sure that this user may "
        "read and write there and enter every folder above it; --debug shows the traceback."
    )


def _check_completion(words: Sequence[str]) -> None:
    """Refuse what tyro would answer with a traceback when it writes a shell's completion."""
    flags = [i for i, word in enumerate(words) if word in _COMPLETION]
    for i in flags[:1]:
        shell, *file = [*words[i + 1 :], ""]
        if shell not in _SHELLS:
            raise UserError(f"{words[i]} {shell}: give one of {', '.join(_SHELLS)}.")
        folder = Path(file[0]).parent
        if words[i].startswith("--tyro-write") and not os.access(folder, os.W_OK):
            raise UserError(f"{file[0]} cannot be written: make the folder {folder} first.")


def _no_command(word: str, group: Group, path: str) -> str:
    near = nearest(word, group.commands)
    *names, last = group.commands
    hint = f"did you mean `{path} {near}`?" if near else f"choose of {', '.join(names)} and {last}."
    return f"`{path}` has no command {word!r}; {hint}"


def _app(group: Group) -> tyro.extras.SubcommandApp:
    app = tyro.extras.SubcommandApp()
    for name, kind in group.commands.items():
        inner: Any = _app(kind) if isinstance(kind, Group) else kind
        about = kind.description if isinstance(kind, Group) else _description(kind)
        app.command(inner, name=name, help=about)
    return app


def _description(kind: Any) -> str:
    (described,) = typing.get_args(kind) or (kind,)  # of generic settings their parameter
    return inspect.getdoc(described) or ""
