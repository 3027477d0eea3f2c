"""Find, read, override and write experiments.

An experiment is a TOML file that states only how it differs from the defaults of
`hdvpd.config`. Values are read in this order: defaults, file, overrides. Overrides are tables like
those of a file, made of the command line's flags or written by hand; both go through the same
checks, and a mistake in either is one `UserError` that names the file, the key, the value and the
nearest valid key.
"""

import dataclasses
import importlib.resources
import json
import logging
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hdvpd.config import Config
from hdvpd.errors import UserError, nearest


def _flat_types() -> dict[str, Any]:
    sections = {field.name: field.type for field in dataclasses.fields(Config)}
    return {
        f"{section}.{field.name}": field.type
        for section, schema in sections.items()
        for field in dataclasses.fields(schema)  # type: ignore[arg-type]
    }


KEY_TYPES: Mapping[str, Any] = _flat_types()
"""Every key of the configuration, dotted, with its type."""

Tables = Mapping[str, Any]
"""Values by section and key, such as `{"train": {"num_steps": 2}}`."""

RENAMED: Mapping[str, str] = {}
"""Keys of earlier versions that are called otherwise now; files and flags may use either name."""

REMOVED: Mapping[str, str] = {
    "eval.num_bootstrap": "intervals are Student's now and need no resamples",
}
"""Keys of earlier versions that are gone, and why: left out of files, refused as flags."""


def experiment_names() -> dict[str, Path]:
    """List the experiments that come with hdvpd.

    Returns:
      The path of each experiment's file by its name. The wheel holds them inside the package; a
      clone has them in `configs/` beside it.
    """
    package = Path(str(importlib.resources.files("hdvpd")))
    for folder in (package / "configs", package.parent / "configs"):
        files = sorted(folder.glob("*.toml"))
        if files:
            return {path.stem: path for path in files}
    return {}


def find_experiment(name_or_path: str) -> Path:
    """Find the file of an experiment.

    Args:
      name_or_path: name of an experiment that comes with hdvpd, or path of a TOML file.

    Returns:
      The file's path; a path is returned as given.

    Raises:
      UserError: there is no such file or experiment.
    """
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if not path.is_file():
            raise UserError(f"{name_or_path}: there is no such experiment file; check the path.")
        return path
    names = experiment_names()
    if name_or_path not in names:
        near = nearest(name_or_path, names)
        hint = f"; did you mean {near!r}?" if near else "."
        raise UserError(
            f"no experiment is called {name_or_path!r}: give one of {', '.join(names)} or the path "
            f"of a .toml file{hint}"
        )
    return names[name_or_path]


def load_config(name_or_path: str, overrides: Tables | None = None) -> Config:
    """Read an experiment.

    Args:
      name_or_path: name of an experiment that comes with hdvpd, or path of a TOML file.
      overrides: what to change of it, such as `{"model": {"num_particles": 512}}`.

    Returns:
      The checked configuration.

    Raises:
      UserError: a key, a type, a value or a combination is not possible.
    """
    path = find_experiment(name_or_path)
    return _build(_read_values(path), _values(overrides or {}), source=str(path))


def read_toml(path: Path | str) -> Config:
    """Read a TOML file; keys that it lacks keep their defaults.

    Args:
      path: the file.

    Returns:
      The checked configuration.

    Raises:
      UserError: the file cannot be read, or a key, a type or a value is not possible.
    """
    return _build(_read_values(Path(path)), {}, source=str(path))


def apply_overrides(config: Config, overrides: Tables, *, source: str = "configuration") -> Config:
    """Change a configuration.

    Args:
      config: the configuration to start from.
      overrides: what to change, such as `{"eval": {"num_steps": 24}}`.
      source: where `config` came from, for messages.

    Returns:
      The changed configuration; `config` itself is never changed.

    Raises:
      UserError: a key, a type, a value or a combination is not possible.
    """
    return _build(flatten(config), _values(overrides), source=source)


def flatten(config: Config) -> dict[str, Any]:
    """Return every value of a configuration by its dotted key."""
    return {key: _get(config, key) for key in KEY_TYPES}


def to_toml(config: Config) -> str:
    """Write every value of a configuration as TOML; `read_toml` gives it back unchanged."""
    lines = []
    for section in dataclasses.fields(config):
        lines += [f"[{section.name}]", *section_toml(getattr(config, section.name)), ""]
    return "\n".join(lines)


def section_toml(section: Any) -> list[str]:
    """Return a TOML line for every field of a dataclass of plain values."""
    return [
        f"{field.name} = {_toml_value(getattr(section, field.name))}"
        for field in dataclasses.fields(section)
    ]


def nearest_key(name: str) -> str | None:
    """Find the key that a wrong one most probably meant.

    Args:
      name: the wrong key, dotted or not.

    Returns:
      The nearest valid dotted key, or None when nothing is near.
    """
    by_last = {key.rpartition(".")[2]: key for key in reversed(list(KEY_TYPES))}
    last = name.rpartition(".")[2]
    if last in by_last:
        same = [key for key in KEY_TYPES if key.endswith(f".{last}")]
        return nearest(name, same) or same[0]
    near = nearest(name, KEY_TYPES)
    if near is None and (near := nearest(last, by_last)) is not None:
        near = by_last[near]
    return near


def _get(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _read_values(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_bytes().decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: this is not valid TOML: {error}.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    return _values(tables, f"{path}: ")


def _values(tables: Tables, source: str = "") -> dict[str, Any]:
    """Return checked values by dotted key; `source`, if it is a file, begins the messages."""
    values: dict[str, Any] = {}
    for section, table in tables.items():
        # A key outside any table, or a value where a table belongs, is named like any other key.
        inner = table if isinstance(table, Mapping) else {}
        entries = {f"{section}.{key}": value for key, value in inner.items()}
        for given, value in (entries or {section: table}).items():
            key = RENAMED.get(given, given)
            found = f"{source}{given} = {_shown(value)}"
            if key in REMOVED and not source:
                raise UserError(f"{found}: there is no such key any more: {REMOVED[key]}.")
            if key in REMOVED:
                # Every run of an earlier version has it in its config.toml.
                text = "%s%s is left out: %s."
                logging.getLogger("hdvpd").warning(text, source, key, REMOVED[key])
            elif key in KEY_TYPES:
                values[key] = _checked(KEY_TYPES[key], value, found)
            elif not (key in _SECTIONS and value == {}):
                near = nearest_key(key)
                remedy = f"the nearest valid key is {near}" if near else "see docs/experiments.md"
                raise UserError(f"{source}unknown key {key} = {_shown(value)}; {remedy}.")
    return values


_SECTIONS = frozenset(key.partition(".")[0] for key in KEY_TYPES)


def _checked(kind: Any, value: Any, found: str) -> Any:
    """Return the value as the schema's type, or raise a UserError that starts with `found`."""
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_checked(get_args(kind)[0], item, found) for item in value)
    if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
        raise UserError(f"{found}: expected a finite number.")
    if isinstance(kind, type) and type(value) is kind:
        return value
    near = nearest(str(value), get_args(kind)) if get_origin(kind) is Literal else None
    hint = f"; the nearest is {near!r}" if near else ""
    raise UserError(f"{found}: expected {_expected(kind)}{hint}.")


def _expected(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list, each item {_expected(get_args(kind)[0])}"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(kind))
    return {bool: "true or false", int: "an integer", float: "a number", str: "a text"}[kind]


def _build(values: Mapping[str, Any], overrides: Mapping[str, Any], *, source: str) -> Config:
    merged = {**values, **overrides}
    try:
        sections = {
            field.name: field.type(  # type: ignore[operator]
                **{
                    key.partition(".")[2]: value
                    for key, value in merged.items()
                    if key.startswith(f"{field.name}.")
                }
            )
            for field in dataclasses.fields(Config)
        }
        return Config(**sections)
    except UserError as error:
        changed = ", ".join(f"{key} = {_shown(value)}" for key, value in overrides.items())
        raise UserError(f"{source}{' with ' + changed if changed else ''}: {error}") from error


def _shown(value: Any) -> str:
    try:
        return _toml_value(value)
    except TypeError:
        return repr(value)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's; DEL is the one character TOML wants escaped besides.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise TypeError(f"no TOML for {type(value).__name__}")
