"""Flags that several verbs share: image sizes, lists of names, and those of the configuration.

The configuration's flags are optional and have no defaults of their own: what is given comes back
as tables, shaped like those of a TOML file, which `hdvpd.config.experiments` lays over the file's.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import docstring_parser
import tyro
from tyro.constructors import PrimitiveConstructorSpec

from hdvpd.basics.errors import UserError
from hdvpd.config import Config
from hdvpd.config.earlier import MOVED, REMOVED
from hdvpd.config.experiments import read_tables
from hdvpd.config.reading import Tables, default_of, import_parts, key_types
from hdvpd.config.settings import Settings, is_settings, parts_of, plain_type


def _read_names(words: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in words[0].split(",") if name.strip())


def _read_size(words: list[str]) -> tuple[int, int]:
    height, _, width = words[0].lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) > 0 and int(width) > 0):
        raise ValueError(f"{words[0]} should be height x width in pixels, for example 96x128")
    return int(height), int(width)


def _read_seed(words: list[str]) -> int:
    if not words[0].isdecimal():
        raise ValueError(f"{words[0]} should be 0 or a positive whole number")
    return int(words[0])


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

Seed = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_read_seed,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda seed: [str(seed)],
    ),
]
"""From which draws follow; never negative."""


def optional(metavar: str) -> Any:
    """Return how tyro shows an argument whose docstring says what its absence means."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def config_flags(*keys: str, default: str = "") -> Any:
    """Return what tyro turns into flags of the configuration.

    An exchangeable part has the flags of all its kinds; what is given must fit the kind chosen.

    Args:
      *keys: keys or sections to offer; none offers all.
      default: what a flag's help says of its default; empty says the schema's.

    Returns:
      A type whose values are tables of exactly the keys that were given.
    """
    return TypedDict("Config", _entries({"": Config}, "", keys, default), total=False)  # type: ignore[operator]


def _entries(
    schemas: Mapping[str, type[Settings]], prefix: str, keys: tuple[str, ...], default: str
) -> dict[str, Any]:
    """Return what tyro is to read of a table: the fields of its schema, or of all its kinds'."""
    entries: dict[str, Any] = {}
    for kind, schema in schemas.items():
        texts = documentation(schema)
        for field in dataclasses.fields(schema):
            key, parts = f"{prefix}{field.name}", parts_of(field.type)
            if field.name in entries:
                continue
            text = texts.get(field.name) or str(plain_type(field.type).__doc__)
            if kind:
                owners = [k for k, s in schemas.items() if field.name in s.__dataclass_fields__]
                text = f"({', '.join(owners)}) {text}"
            if parts is None and not is_settings(field.type):
                if _wanted(key, keys):
                    flag = _flag(plain_type(field.type), text, default, default_of(field))
                    entries[field.name] = flag
                continue
            if not (_wanted(key, keys) or any(k.startswith(f"{key}.") for k in keys)):
                continue
            kinds = {"": plain_type(field.type)} if parts is None else parts.known()
            inner = _entries(kinds, f"{key}.", keys, default)
            if parts is not None and _wanted(key, keys):
                names = f"One of {', '.join(parts.names)}, or package.module:Class."
                chosen = parts.kind_of(default_of(field))
                inner = {"kind": _flag(str, names, default, chosen), **inner}
            if inner:
                table = TypedDict(field.name, inner, total=False)  # type: ignore[operator]
                entries[field.name] = Annotated[table, tyro.conf.arg(help=text)]
    return entries


def _wanted(key: str, keys: tuple[str, ...]) -> bool:
    return not keys or any(key == known or key.startswith(f"{known}.") for known in keys)


def _flag(kind: Any, text: str, default: str, value: Any) -> Any:
    shown = default or " ".join(_words(value)) or "none"
    return Annotated[kind, tyro.conf.arg(help=text, help_behavior_hint=f"(default: {shown})")]


def documentation(schema: type[Settings]) -> dict[str, str]:
    """Return the docstring of every field on one line, those of base classes too."""
    texts: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _own_documentation(base)
    return texts


@functools.cache
def _own_documentation(schema: type) -> dict[str, str]:
    """Return the docstring of every field that the class itself has; its source is read once."""
    docs = docstring_parser.parse_from_object(schema).params
    return {doc.arg_name: " ".join((doc.description or "").split()) for doc in docs}


def read_flags(words: Sequence[str]) -> Tables:
    """Read flags of the configuration, for scripts that have no command of their own.

    Returns:
      Tables for `hdvpd.config.experiments.load_config`.
    """
    return tyro.cli(config_flags(), args=understood(words))


def flag_words(tables: Tables, prefix: str = "--") -> list[str]:
    """Return the words that give tables on the command line."""
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
    """Put right what tyro does not know of the configuration's flags.

    Switches may have a value, a part may be chosen without saying `kind`, and the classes of other
    packages that are chosen here or in an experiment's file bring flags of their own.

    Returns:
      The words with `--train.remat true` and `=true` as `--train.remat`, false as
      `--train.no-remat`, and `--model.dynamics.local mp` as `--model.dynamics.local.kind mp`.

    Raises:
      UserError: a key is of an earlier version.
    """
    if not any(word.startswith("--") and "." in word.partition("=")[0] for word in words):
        return list(words)
    for word in words:
        if word.endswith(".toml") and Path(word).is_file():
            import_parts(read_tables(Path(word)))
    types = key_types()
    found: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        key = _key(flag)
        if key in REMOVED:
            raise UserError(f"{flag} is no flag any more, leave it out: {REMOVED[key]}.")
        if key in MOVED:
            new = MOVED[key].replace("_", "-")
            raise UserError(f"{flag} is a flag of an earlier version, --{new} now.")
        if f"{key}.kind" in types:
            flag = f"{flag}.kind"
        if found and types.get(_key(found[-1])) is bool and word.lower() in _SWITCHED:
            found[-1] = _SWITCHED[word.lower()](found[-1])
        elif equals and types.get(_key(flag)) is bool and value.lower() in _SWITCHED:
            found.append(_SWITCHED[value.lower()](flag))
        else:
            found.append(f"{flag}{equals}{value}")
    import_parts(_kinds(found))
    return found


def _kinds(words: Sequence[str]) -> dict[str, Any]:
    """Return the tables of what is said of kinds."""
    tables: dict[str, Any] = {}
    for flag, value in itertools.pairwise([part for word in words for part in word.split("=", 1)]):
        *path, last = _key(flag).split(".")
        if path and last == "kind":
            inner = tables
            for name in path:
                inner = inner.setdefault(name, {})
            inner["kind"] = value
    return tables


def _key(flag: str) -> str:
    return flag[2:].replace("-", "_") if flag.startswith("--") else ""


def _off(flag: str) -> str:
    section, dot, name = flag.rpartition(".")
    return f"{section}{dot}no-{name}"


_SWITCHED: Mapping[str, Callable[[str], str]] = {"true": str, "false": _off}


def _words(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else (value,)
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in values]
