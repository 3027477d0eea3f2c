"""Variants of an experiment: every combination of some values, or one change at a time."""

import dataclasses
import itertools
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from hdvpd.basics.errors import UserError
from hdvpd.config.reading import Tables


@dataclasses.dataclass(frozen=True)
class Variant:
    """One combination of values.

    Attributes:
      label: says the values; can be part of a folder's name. Empty where nothing varies.
      tables: what to change of the experiment.
      flag: that asks for it, for messages.
    """

    label: str
    tables: Tables
    flag: str = "--vary"


def list_variants(varied: Sequence[str]) -> list[Variant]:
    """List all combinations.

    Args:
      varied: such as "train.clip-norm=0.01,0.1"; values are those of TOML, and words.

    Returns:
      The variants, the last key's values changing first; one that changes nothing if none varies.

    Raises:
      UserError: a text names no key or fewer than two values, a key or a value comes twice, or one
        key lies inside another.
    """
    given = _read("--vary", varied, least=2)
    keys = list(given)
    _require_apart(keys)
    return [_variant(keys, _shown(keys), chosen) for chosen in itertools.product(*given.values())]


def list_changes(ablated: Sequence[str]) -> list[Variant]:
    """List an experiment as it is, called `base`, and what each value alone makes of it.

    Args:
      ablated: such as "train.clip-norm=0.1"; several values of a key are several changes.

    Raises:
      UserError: a text names no key or value, or a key or a value comes twice.
    """
    given = _read("--ablate", ablated, least=1)
    shown = _shown(list(given))
    changes = [
        dataclasses.replace(_variant([key], [name], [value]), flag="--ablate")
        for (key, values), name in zip(given.items(), shown, strict=True)
        for value in values
    ]
    return [Variant("base", {}), *changes]


def _read(flag: str, texts: Sequence[str], least: int) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    number = "a value" if least == 1 else "two or more different values"
    for text in texts:
        key, equals, given = text.partition("=")
        values = _values(given)
        key = key.removeprefix("--").replace("-", "_")
        if not (equals and key) or len(values) < least or _repeat(map(_label, values)):
            raise UserError(
                f"{flag} {text}: give a key of the configuration and {number}, for example "
                "train.clip-norm=0.01,0.1; lists in brackets: train.learning-rates=[0.003],[0.001]."
            )
        if key == "train.seed":
            raise UserError(f"{flag} {text}: every variant is trained from several seeds; --seeds.")
        if key in found:
            raise UserError(f"{flag} names {key} twice: name every key once, with all its values.")
        found[key] = values
    return found


def _require_apart(keys: Sequence[str]) -> None:
    """Refuse a part beside one of its settings: in one table, each would overwrite the other."""
    for outer, inner in itertools.permutations(keys, 2):
        if inner.startswith(f"{outer}."):
            raise UserError(
                f"--vary names {outer} and {inner} inside it: give one of them, or choose the part "
                f"by {outer}.kind instead of {outer}."
            )


def _repeat(labels: Iterable[str]) -> bool:
    seen = list(labels)
    return len(set(seen)) < len(seen)


def _shown(keys: Sequence[str]) -> Sequence[str]:
    names = [key.rpartition(".")[2] for key in keys]
    return keys if _repeat(names) else names


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
