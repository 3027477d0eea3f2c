"""Values of a decoded JSON file, checked: every fault is one message with file, key and value."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from hdvpd.basics.errors import UserError

_KINDS = {Mapping: "an object", int: "an integer", list: "a list", str: "a text"}
"""What JSON calls the types, for people."""


def get(raw: Mapping[str, Any], key: str, kind: type, file: Path, where: str = "") -> Any:
    """Return a value of a JSON object; true and false are of no kind.

    Args:
      raw: the object.
      key: of the value.
      kind: its type.
      file: for messages.
      where: the object is in the file; empty at its top.

    Raises:
      UserError: it is missing or of another type.
    """
    path = f"{where}.{key}" if where else key
    if key not in raw:
        raise UserError(f"{file}: '{path}' is missing; see docs/data-format.md.")
    value = raw[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(
            f"{file}: {path} = {value!r} should be {_KINDS[kind]}; see docs/data-format.md."
        )
    return value


def number(raw: Mapping[str, Any], key: str, file: Path, where: str = "") -> float:
    """Return a number of a JSON object; the arguments are those of `get`.

    Raises:
      UserError: it is missing, no number or not finite.
    """
    value = raw.get(key)
    if not is_number(value):
        path = f"{where}.{key}" if where else key
        raise UserError(
            f"{file}: {path} = {value!r} should be a finite number; see docs/data-format.md."
        )
    return float(value)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Say whether a decoded value is a finite number; Python's JSON reads Infinity and NaN."""
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    return kind and abs(value) <= sys.float_info.max
