"""Variants of an experiment: every combination of some values of some keys."""

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hdvpd.basics.errors import UserError
from hdvpd.config.reading import Tables


@dataclass(frozen=True)
class Variant:
    """One combination of values.

    Attributes:
      label: says the values; can be part of a folder's name. Empty where nothing varies.
      tables: what to change of the experiment.
    """

    label: str
    tables: Tables


def list_variants(varied: Sequence[str]) -> list[Variant]:
    """List all combinations.

    Args:
      varied: such as "train.clip-norm=0.01,0.1"; values are those of TOML, and words.

    Returns:
      The variants, the last key's values changing first; one that changes nothing if none varies.

    Raises:
      UserError: a text names no key or fewer than two values, or a key or a value comes twice.
    """
    keys, values = [], []
    for text in varied:
        key, equals, given = text.partition("=")
        found = _values(given)
        key = key.removeprefix("--").replace("-", "_")
        if not (equals and key) or len(found) < 2 or len(set(map(_label, found))) < len(found):
            raise UserError(
                f"--vary {text}: give a key of the configuration and two or more different values, "
                "for example train.clip-norm=0.01,0.1; lists in brackets: "
                "train.learning-rates=[0.003],[0.001]."
            )
        if key == "train.seed":
            raise UserError(f"--vary {text}: every variant is trained from several seeds; --seeds.")
        keys.append(key)
        values.append(found)
    if len(set(keys)) < len(keys):
        raise UserError(
            f"--vary names {', '.join(keys)}: name every key once, with all its values."
        )
    names = [key.rpartition(".")[2] for key in keys]
    shown = names if len(set(names)) == len(names) else keys
    return [_variant(keys, shown, chosen) for chosen in itertools.product(*values)]


def _variant(keys: Sequence[str], shown: Sequence[str], values: Sequence[Any]) -> Variant:
    tables: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        *path, last = key.split(".")
        inner = tables
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    label = ",".join(f"{n}={_label(v)}" for n, v in zip(shown, values, strict=True))
    return Variant(label, tables)


def _values(text: str) -> list[Any]:
    try:
        return tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        return [_value(part.strip()) for part in text.split(",") if part.strip()]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _label(value: Any) -> str:
    if isinstance(value, list):
        # Brackets in the name of a folder would be a pattern (`RunFolder.find_to_train`).
        return "+".join(map(_label, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("/", "_")
