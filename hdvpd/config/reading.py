"""From tables, as TOML files and flags give them, to checked settings."""

import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from hdvpd.basics.errors import UserError, nearest
from hdvpd.config import Config
from hdvpd.config.earlier import MOVED, REMOVED
from hdvpd.config.settings import (
    NONE,
    Parts,
    SettingError,
    Settings,
    is_settings,
    parts_of,
    plain_type,
)

Tables = Mapping[str, Any]
"""Values by section and key, such as `{"train": {"num_steps": 2}}`; parts are tables with a `kind`,
or nothing but their kind."""

S = TypeVar("S", bound=Settings)


def read(tables: Tables, changes: Tables | None = None, *, source: str) -> Config:
    """Make a configuration of tables; keys that they lack keep their defaults.

    Args:
      tables: of a file.
      changes: laid over them; a part of another kind replaces the whole part.
      source: the file, for messages.

    Raises:
      UserError: a key, a type, a value or a combination is not possible.
    """
    changes = _without_empty(changes or {})
    changed = dict(_leaves(changes))
    if changes:
        tables = overlay(Config, tables, changes)
    try:
        return _build(Config, tables, _Given(source, frozenset(changed)), "")
    except SettingError as error:
        these = ", ".join(f"{key} = {_shown(value)}" for key, value in changed.items())
        raise UserError(f"{source}{' with ' + these if these else ''}: {error}") from error


def _without_empty(tables: Tables) -> dict[str, Any]:
    """Leave out tables that say nothing."""
    inner = {k: _without_empty(v) if isinstance(v, Mapping) else v for k, v in tables.items()}
    return {key: value for key, value in inner.items() if value != {}}


@dataclass(frozen=True)
class _Given:
    """Where values come from, to name one at the beginning of a message."""

    source: str
    changed: frozenset[str]

    def __call__(self, key: str, value: Any) -> str:
        shown = f"{key} = {_shown(value)}"
        changed = self.changed & {key, key.removesuffix(".kind")}
        return shown if changed else f"{self.source}: {shown}"


def overlay(schema: type[Settings], base: Tables, changes: Tables) -> dict[str, Any]:
    """Lay tables over others of the same settings.

    Args:
      schema: what the tables are about.
      base: below.
      changes: above. Where they choose another kind of a part, nothing is left of it.

    Returns:
      New tables; what is wrong in either is still in them, unless a right value replaces it.
    """
    merged = dict(base)
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for name, change in changes.items():
        merged[name] = change
        field = fields.get(name)
        if field is None or not isinstance(change, Mapping | str):
            continue
        below, parts = base.get(name, {}), parts_of(field.type)
        if parts is not None and isinstance(below, Mapping | str):
            before = _part_table(parts, field, below)
            after = _part_table(parts, field, change, before.get("kind"))
            merged[name] = after
            if after["kind"] == before.get("kind") != NONE and (kind := _find(parts, after)):
                merged[name] = overlay(kind, before, after)
        elif is_settings(field.type) and isinstance(below, Mapping):
            if isinstance(change, Mapping):
                merged[name] = overlay(plain_type(field.type), below, change)
        elif parts is not None or is_settings(field.type):
            merged[name] = below  # no table: `_build` refuses it
    return merged


def _part_table(
    parts: Parts, field: dataclasses.Field, value: Any, kind: Any = None
) -> dict[str, Any]:
    """Return a part's table with its kind: that given, or the default one."""
    if isinstance(value, str):
        return {"kind": value}
    given = value if isinstance(value, Mapping) else {}
    return {"kind": kind or parts.kind_of(default_of(field)), **given}


def _find(parts: Parts, table: Tables) -> type[Settings] | None:
    """Return the class that a table chooses; None if its kind is wrong, which `_part` says."""
    try:
        return parts.find(table["kind"]) if isinstance(table["kind"], str) else None
    except UserError:
        return None


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a field; None where it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if callable(field.default_factory) else None


def _build(kind: type[S], table: Tables, given: _Given, prefix: str) -> S:
    """Make settings of their table."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        dotted = f"{prefix}{key}"
        if dotted in REMOVED:
            if dotted in given.changed:
                why = REMOVED[dotted]
                raise UserError(f"{given(dotted, value)}: there is no such key any more: {why}.")
            # Every run of an earlier version has it in its config.toml.
            text = "%s: %s is left out: %s."
            logging.getLogger("hdvpd").warning(text, given.source, dotted, REMOVED[dotted])
        elif dotted in MOVED:
            raise UserError(
                f"{given(dotted, value)} is a key of an earlier version, {MOVED[dotted]} now; "
                "`hdvpd model convert` rewrites experiment files and runs."
            )
        elif key not in fields:
            raise _unknown(dotted, value, given)
        else:
            values[key] = _value(fields[key], value, given, dotted)
    try:
        return kind(**values)
    except SettingError as error:
        raise (error.within(prefix[:-1]) if prefix else error) from None


def _value(field: dataclasses.Field, value: Any, given: _Given, key: str) -> Any:
    parts = parts_of(field.type)
    if parts is not None:
        return _part(parts, field, value, given, key)
    if not is_settings(field.type):
        return _checked(plain_type(field.type), value, given(key, value))
    if isinstance(value, Mapping):
        return _build(plain_type(field.type), value, given, f"{key}.")
    raise UserError(f"{given(key, value)}: expected a table of settings.")


def _part(
    parts: Parts,
    field: dataclasses.Field,
    value: Any,
    given: _Given,
    key: str,
) -> Settings | None:
    if not isinstance(value, Mapping | str):
        names = ", ".join(map(repr, parts.names))
        raise UserError(f"{given(key, value)}: expected one of {names}, or a table with a kind.")
    # As it was written: the short form has no key `kind`.
    kind_key = f"{key}.kind" if isinstance(value, Mapping) else key
    table = _part_table(parts, field, value)
    kind = _checked(str, table["kind"], given(kind_key, table.pop("kind")))
    if kind == NONE and parts.optional:
        if table:
            raise _unknown(f"{key}.{next(iter(table))}", next(iter(table.values())), given)
        return None
    try:
        found = parts.find(kind)
    except UserError as error:
        raise UserError(f"{given(kind_key, kind)}: {error}") from error
    return _build(found, table, given, f"{key}.")


def _unknown(key: str, value: Any, given: _Given) -> UserError:
    key, value = next(_leaves({key: value}), (key, value))
    near = nearest_key(key)
    remedy = f"the nearest valid key is {near}" if near else "see docs/experiments.md"
    if near == key:
        remedy = f"{key.rpartition('.')[0]} of this kind has no such setting"
    first, equals, rest = given(key, value).rpartition(f"{key} = ")
    return UserError(f"{first}unknown key {equals}{rest}; {remedy}.")


def _leaves(tables: Tables, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def import_parts(tables: Tables, schema: type[Settings] = Config) -> None:
    """Import the classes of other packages that tables choose, so that their settings are known.

    Args:
      tables: unchecked; what is wrong with them is left for `read` to say.
      schema: what they are about.
    """
    for field in dataclasses.fields(schema):
        table, parts = tables.get(field.name), parts_of(field.type)
        kind = None if parts else plain_type(field.type)
        if parts is not None and isinstance(table, Mapping | str):
            table = _part_table(parts, field, table)
            kind = _find(parts, table)
        if isinstance(table, Mapping) and isinstance(kind, type) and issubclass(kind, Settings):
            import_parts(table, kind)


def key_types(schema: type[Settings] = Config, prefix: str = "") -> dict[str, Any]:
    """Return every key with its plain type, those of all known kinds of a part together."""
    types: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        key, parts = f"{prefix}{field.name}", parts_of(field.type)
        if parts is not None:
            types[f"{key}.kind"] = str
            for kind in parts.known().values():
                types = key_types(kind, f"{key}.") | types
        elif is_settings(field.type):
            types |= key_types(plain_type(field.type), f"{key}.")
        else:
            types[key] = plain_type(field.type)
    return types


def nearest_key(name: str) -> str | None:
    """Find the key that a wrong one most probably meant.

    Returns:
      The nearest valid dotted key, or None when nothing is near.
    """
    keys = list(key_types())
    by_last = {key.rpartition(".")[2]: key for key in reversed(keys)}
    last = name.rpartition(".")[2]
    if last in by_last:
        same = [key for key in keys if key.endswith(f".{last}")]
        return nearest(name, same) or same[0]
    near = nearest(name, keys)
    if near is None and (near := nearest(last, by_last)) is not None:
        near = by_last[near]
    return near


def _checked(kind: Any, value: Any, found: str) -> Any:
    """Return the value as the schema's type, or raise a UserError that starts with `found`."""
    kind = plain_type(kind)
    if isinstance(kind, UnionType):  # of a text and a list of texts
        listed = isinstance(value, list | tuple)
        kind = next(k for k in get_args(kind) if (get_origin(k) is tuple) == listed)
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
    kind = plain_type(kind)
    if get_origin(kind) is tuple:
        return f"a list, each item {_expected(get_args(kind)[0])}"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(kind))
    return {bool: "true or false", int: "an integer", float: "a number", str: "a text"}[kind]


def _shown(value: Any) -> str:
    try:
        return toml_value(value)
    except TypeError:
        return repr(value)


def toml_value(value: Any) -> str:
    """Return a plain value as TOML writes it.

    Raises:
      TypeError: it is none.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's; DEL is the one character TOML wants escaped besides.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"no TOML for {type(value).__name__}")


def toml_lines(table: Tables, name: str = "") -> list[str]:
    """Return the lines of a table: its values, then the tables in it under their dotted names."""
    values = [f"{k} = {toml_value(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    head = [f"[{name}]"] if name else []
    lines = [*head, *values, ""] if values or (name and not table) else []
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += toml_lines(value, f"{name}.{key}" if name else key)
    return lines
