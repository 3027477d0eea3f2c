"""What settings are made of: ranges that stand at the field, parts that can be exchanged.

A group of settings is a frozen dataclass derived from `Settings`. A field's annotation says which
values it takes and when it may differ from what a run was trained with:

    num_steps: Annotated[Count, Free("resume")] = 100

An exchangeable part is a field that holds one of several `Settings` classes, annotated with the
`Parts` that name them. In files and flags its `kind` chooses the class, by a name or, for classes
of other packages, as "package.module:Class". Classes are imported when they are first chosen.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from hdvpd.basics.errors import UserError, nearest

NONE = "none"
"""The kind of a part that is left out."""

T = TypeVar("T")


class SettingError(UserError):
    """A value that is not possible, or not beside the others.

    Attributes:
      key: of the value, dotted from the settings that refused it.
    """

    def __init__(self, key: str, value: object, remedy: str) -> None:
        """Say what was found and what to do."""
        super().__init__(f"{key} = {value!r} is not possible: {remedy}.")
        self.key, self._value, self._remedy = key, value, remedy

    def within(self, key: str) -> "SettingError":
        """Return the same error for settings that lie under this key of others."""
        return SettingError(f"{key}.{self.key}", self._value, self._remedy)


@dataclass(frozen=True)
class Limit:
    """Which values a field takes.

    Attributes:
      accepts: whether a value is one of them.
      remedy: what to do about another.
    """

    accepts: Callable[[Any], bool]
    remedy: str


Count = Annotated[int, Limit(lambda n: n >= 1, "use a positive number")]
CountOrZero = Annotated[int, Limit(lambda n: n >= 0, "use 0 or a positive number")]
Positive = Annotated[float, Limit(lambda x: x > 0, "use a positive number")]
DecayRate = Annotated[float, Limit(lambda x: 0 <= x < 1, "use a number from 0 to below 1")]
PositiveOrZero = Annotated[float, Limit(lambda x: x >= 0, "use 0 or a positive number")]
Fraction = Annotated[float, Limit(lambda x: 0 < x <= 1, "use a number above 0, at most 1")]

Occasion = Literal["resume", "evaluation"]


class Free:
    """When a field, or everything under it, may differ from what a run was trained with.

    Attributes:
      occasions: when.
    """

    def __init__(self, *occasions: Occasion, unless: tuple[str, object] | None = None) -> None:
        """Name the occasions.

        Args:
          *occasions: when.
          unless: another field of the same settings, and the value at which this one is bound.
        """
        self.occasions, self._unless = occasions, unless

    def on(self, occasion: Occasion, settings: "Settings") -> bool:
        """Say whether the field may differ on this occasion, in these settings."""
        bound = self._unless and getattr(settings, self._unless[0]) == self._unless[1]
        return occasion in self.occasions and not bound


@dataclass(frozen=True)
class Settings:
    """Frozen settings; made only of values that are possible.

    Raises:
      SettingError: a value is out of its range, or `check` refuses it.
    """

    def __post_init__(self) -> None:
        """Check; never mutate."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for limit in marks(field.type, Limit):
                require(limit.accepts(value), field.name, value, limit.remedy)
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together, by `require`."""

    def check_within(self, outer: Any) -> None:
        """Refuse values that do not go with the settings that these are a part of, however deep."""


def require(condition: bool, key: str, value: object, remedy: str) -> None:
    """Refuse a value unless a condition holds.

    Raises:
      SettingError: it does not.
    """
    if not condition:
        raise SettingError(key, value, remedy)


def check_parts(settings: Settings, outer: Settings) -> None:
    """Let everything below some settings check itself against `outer`.

    Raises:
      SettingError: a part refused; the key begins at `settings`.
    """
    for field in dataclasses.fields(settings):
        part = getattr(settings, field.name)
        if isinstance(part, Settings):
            try:
                part.check_within(outer)
                check_parts(part, outer)
            except SettingError as error:
                raise error.within(field.name) from None


@dataclass(frozen=True, eq=False)
class Parts:
    """The classes of settings that one field can hold.

    Attributes:
      title: what they are, in the singular, for messages.
      classes: "package.module:Class" by the name in files and flags.
      optional: whether the part can be left out, by the kind "none".
      base: what the classes are derived from.
      foreign: kinds of other packages that this process has imported.
    """

    title: str
    classes: Mapping[str, str]
    optional: bool = False
    base: type[Settings] = Settings
    foreign: set[str] = dataclasses.field(default_factory=set)

    @property
    def names(self) -> tuple[str, ...]:
        """Names that files and flags can choose."""
        return (*self.classes, *([NONE] if self.optional else []))

    def find(self, kind: str) -> type[Settings]:
        """Import a class.

        Args:
          kind: its name, or "package.module:Class".

        Raises:
          UserError: there is no such class, or it cannot be imported.
        """
        module, colon, name = self.classes.get(kind, kind).partition(":")
        if not colon:
            near = nearest(kind, self.names)
            hint = f"; the nearest is {near!r}" if near else ""
            names = ", ".join(map(repr, self.names))
            raise UserError(f'expected one of {names}, or "package.module:Class"{hint}.')
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            if kind in self.classes:  # a broken installation, not a mistake in the kind
                raise
            raise UserError(
                f"there is no {self.title} there ({error}): name a class that Python can import; "
                "PYTHONPATH says where it looks besides installed packages."
            ) from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            base = f"{self.base.__module__}.{self.base.__name__}"
            raise UserError(f"{name} is no {self.title}: derive its settings from {base}.")
        if kind not in self.classes:
            self.foreign.add(kind)
        return found

    def known(self) -> dict[str, type[Settings]]:
        """Import every class that has a name, and return them and the foreign ones by kind."""
        return {kind: self.find(kind) for kind in (*self.classes, *sorted(self.foreign))}

    def make(self, kind: str, **values: Any) -> Any:
        """Return settings of a kind, with its defaults but for the values given.

        Raises:
          UserError: there is no such class, or a value is not possible.
        """
        return self.find(kind)(**values)

    def kind_of(self, part: Settings | None) -> str:
        """Return the name that chooses a part's class, or its path if it has none."""
        if part is None:
            return NONE
        path = f"{type(part).__module__}:{type(part).__qualname__}"
        return next((name for name, known in self.classes.items() if known == path), path)


def marks(annotation: Any, kind: type[T]) -> list[T]:
    """Return what an annotation says beside its type, of one kind."""
    if get_origin(annotation) is not Annotated:
        return []
    return [mark for mark in annotation.__metadata__ if isinstance(mark, kind)]


def plain_type(annotation: Any) -> Any:
    """Return an annotation without what it says beside its type."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def parts_of(annotation: Any) -> Parts | None:
    """Return the parts that a field can hold, or None for a field that holds a plain value.

    The field's type says what they are derived from, and whether there may be None.
    """
    kind = plain_type(annotation)
    for parts in marks(annotation, Parts):
        if isinstance(kind, UnionType):
            return dataclasses.replace(parts, optional=True, base=get_args(kind)[0])
        return dataclasses.replace(parts, base=kind)
    return None


@dataclass(frozen=True)
class Entry:
    """One value of some settings.

    Attributes:
      key: dotted; a part's own key is that of its `kind`.
      value: plain.
      free: the occasions on which it may differ from what a run was trained with.
    """

    key: str
    value: Any
    free: frozenset[Occasion]


def entries(
    settings: Settings, prefix: str = "", free: frozenset[Occasion] = frozenset()
) -> Iterator[Entry]:
    """List the values of settings and of everything below them, a part's kind before its values.

    Args:
      settings: to be listed.
      prefix: before every key.
      free: occasions on which all of them may differ.
    """
    for field in dataclasses.fields(settings):
        key, value = f"{prefix}{field.name}", getattr(settings, field.name)
        here = free | {
            occasion
            for mark in marks(field.type, Free)
            for occasion in get_args(Occasion)
            if mark.on(occasion, settings)
        }
        parts = parts_of(field.type)
        if parts is not None:
            yield Entry(f"{key}.kind", parts.kind_of(value), here)
        if isinstance(value, Settings):
            yield from entries(value, f"{key}.", here)
        elif parts is None:
            yield Entry(key, value, here)


def to_table(settings: Settings) -> dict[str, Any]:
    """Return settings as nested dictionaries, like the tables of a TOML file."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value, parts = getattr(settings, field.name), parts_of(field.type)
        if isinstance(value, Settings):
            kind = {"kind": parts.kind_of(value)} if parts else {}
            table[field.name] = kind | to_table(value)
        else:
            table[field.name] = NONE if parts else value
    return table


def free_keys(schema: type[Settings], occasion: Occasion, prefix: str = "") -> Iterator[str]:
    """List the keys that may differ on an occasion, a whole section by its own key."""
    for field in dataclasses.fields(schema):
        if any(occasion in mark.occasions for mark in marks(field.type, Free)):
            yield f"{prefix}{field.name}"
        elif is_settings(field.type):
            yield from free_keys(plain_type(field.type), occasion, f"{prefix}{field.name}.")


def is_settings(annotation: Any) -> bool:
    """Say whether a field holds further settings of one class."""
    kind = plain_type(annotation)
    fixed = parts_of(annotation) is None
    return fixed and isinstance(kind, type) and issubclass(kind, Settings)
