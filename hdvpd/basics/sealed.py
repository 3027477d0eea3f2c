"""JSON objects that carry their own digest, so that a changed byte is seen when they are read.

The last key, `sha256`, is the SHA-256 of the others: `json.dumps` without it, with sorted keys and
no spaces. So layout may change and content may not. A file without the key is taken as it is:
older ones have none, and who edits one by hand removes it.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "sha256"


def dumps(value: Mapping[str, Any], indent: int | None = 1) -> str:
    """Write an object with its digest; the same value always gives the same text.

    Args:
      value: plain values; a digest that is among them is replaced.
      indent: as of `json.dumps`.

    Raises:
      ValueError: a number is not finite.
    """
    content = {name: entry for name, entry in value.items() if name != KEY}
    return json.dumps({**content, KEY: digest(content)}, indent=indent, allow_nan=False) + "\n"


def loads(text: str) -> Any:
    """Read what `dumps` wrote, or any other JSON.

    Args:
      text: of the file.

    Returns:
      The value, without its digest.

    Raises:
      ValueError: it is no JSON, or its content is not what was written.
    """
    value = json.loads(text)
    if not isinstance(value, dict) or KEY not in value:
        return value
    stated = value.pop(KEY)
    if stated != digest(value):
        raise ValueError(
            f'its content has changed since it was written. If that was you, remove its "{KEY}"'
        )
    return value


def digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values, however they are laid out."""
    plain = json.loads(json.dumps(value))  # keys as they will be read: text
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
