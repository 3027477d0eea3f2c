"""Flags that several verbs share: image sizes, lists of names, and those of the configuration.

The configuration's flags are optional and have no defaults of their own: what is given comes back
as tables, shaped like those of a TOML file, which `hdvpd.experiments` lays over the file's.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import docstring_parser
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from hdvpd.config import Config
from hdvpd.errors import UserError
from hdvpd.experiments import KEY_TYPES, REMOVED, RENAMED, Tables


def _read_names(words: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in words[0].split(",") if name.strip())


def _read_size(words: list[str]) -> tuple[int, int]:
    height, _, width = words[0].lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) > 0 and int(width) > 0):
        raise ValueError(f"{words[0]} should be height x width in pixels, for example 96x128")
    return int(height), int(width)


Names = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="A,B",
        instance_from_str=_read_names,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda names: [",".join(names)],
    ),
]
"""Names, separated by commas on the command line."""

Size = Annotated[
    tuple[int, int],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="HxW",
        instance_from_str=_read_size,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda size: [f"{size[0]}x{size[1]}"],
    ),
]
"""Height and width of images [px], written 96x128."""


def optional(metavar: str) -> Any:
    """Return how tyro shows an argument whose docstring says what its absence means.

    Args:
      metavar: stands for the value.
    """
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@functools.cache
def config_flags(*keys: str, default: str = "") -> Any:
    """Return what tyro turns into flags of the configuration.

    Args:
      *keys: keys or sections to offer; none offers all.
      default: what a flag's help says of its default; empty says the schema's.

    Returns:
      A type whose values are tables of exactly the keys that were given.
    """
    return _table(Config, "", keys, default)


def _table(schema: Any, prefix: str, keys: tuple[str, ...], default: str) -> Any:
    texts = {doc.arg_name: doc for doc in docstring_parser.parse_from_object(schema).params}
    entries: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(field.type):
            table = _table(field.type, f"{key}.", keys, default)
            if table.__annotations__:
                entries[field.name] = Annotated[table, tyro.conf.arg(help=field.type.__doc__)]
        elif not keys or any(key == k or key.startswith(f"{k}.") for k in keys):
            shown = default or " ".join(_words(field.default)) or "none"
            about = tyro.conf.arg(
                help=" ".join((texts[field.name].description or "").split()),
                help_behavior_hint=f"(default: {shown})",
            )
            entries[field.name] = Annotated[field.type, about]  # type: ignore[valid-type]
    return TypedDict(schema.__name__, entries, total=False)  # type: ignore[operator]


def read_flags(words: Sequence[str]) -> Tables:
    """Read flags of the configuration, for scripts that have no command of their own.

    Args:
      words: nothing but flags and their values.

    Returns:
      Tables for `hdvpd.experiments.load_config`.
    """
    return tyro.cli(config_flags(), args=understood(words))


def flag_words(tables: Tables, prefix: str = "--") -> list[str]:
    """Return the words that give tables on the command line.

    Args:
      tables: as `config_flags` reads them.
      prefix: before every key.
    """
    words: list[str] = []
    for name, value in tables.items():
        flag = f"{prefix}{name.replace('_', '-')}"
        if isinstance(value, dict):
            words += flag_words(value, f"{flag}.")
        elif isinstance(value, bool):
            words.append(flag if value else _off(flag))
        else:
            words += [flag, *_words(value)]
    return words


def understood(words: Sequence[str]) -> list[str]:
    """Put right what tyro does not know: switches with a value, and keys of earlier versions.

    Args:
      words: as typed.

    Returns:
      The words with `--train.remat true` and `=true` as `--train.remat`, false as
      `--train.no-remat`, and keys under their present names.

    Raises:
      UserError: a key is there no more.
    """
    found: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        key = _key(flag)
        if key in REMOVED:
            raise UserError(f"{flag} is no flag any more, leave it out: {REMOVED[key]}.")
        if key in RENAMED:
            flag = f"--{RENAMED[key].replace('_', '-')}"
        if found and KEY_TYPES.get(_key(found[-1])) is bool and word.lower() in _SWITCHED:
            found[-1] = _SWITCHED[word.lower()](found[-1])
        elif equals and KEY_TYPES.get(_key(flag)) is bool and value.lower() in _SWITCHED:
            found.append(_SWITCHED[value.lower()](flag))
        else:
            found.append(f"{flag}{equals}{value}")
    return found


def _key(flag: str) -> str:
    return flag[2:].replace("-", "_") if flag.startswith("--") else ""


def _off(flag: str) -> str:
    section, dot, name = flag.rpartition(".")
    return f"{section}{dot}no-{name}"


_SWITCHED: Mapping[str, Callable[[str], str]] = {"true": str, "false": _off}


def _words(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else (value,)
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in values]
