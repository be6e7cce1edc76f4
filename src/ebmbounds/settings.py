"""Frozen dataclasses as settings: each field carries its type, its range and the sentence that explains it."""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from ebmbounds.errors import BadInput, unknown

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Range:
    """Bounds of a number; `open_low` excludes the lower one, `open_high` the upper one."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        low = value > self.low if self.open_low else value >= self.low
        high = value < self.high if self.open_high else value <= self.high
        return low and high

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'above' if self.open_low else 'at least'} {self.low:g}"
        high = "" if self.high == math.inf else f"{'below' if self.open_high else 'at most'} {self.high:g}"
        return " and ".join(filter(None, (low, high)))


Positive = Annotated[float, Range(0, open_low=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1, open_high=True)]
Share = Annotated[float, Range(0, 1, open_low=True)]
Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
# Bounded, so that a stranger's file cannot ask for networks without end.
Width = Annotated[int, Range(1, 2**16)]
Depth = Annotated[int, Range(1, 2**8)]


def build(cls: type[Settings], values: dict[str, Any]) -> Settings:
    """An instance of a settings dataclass from plain values or their text (`"1e-4"`, `"true"`), checked."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = field_names(cls)
    for name in values:
        if name not in names:
            raise unknown("key", name, names)
    return cls(**{name: _checked(name, value, hints[name]) for name, value in values.items()})


def field_names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _checked(name: str, value: Any, hint: Any) -> Any:
    limits = None
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        limits = next((note for note in notes if isinstance(note, Range)), None)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):  # an optional setting
        if value is None or value == "none":
            return None
        (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
        return _checked(name, value, hint)
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        if value not in options:
            raise BadInput(f"{name}={value!r} is not one of {', '.join(map(str, options))}.")
        return value
    value = _converted(name, value, hint)
    if limits is not None and not limits.holds(value):
        raise BadInput(f"{name}={value!r} is out of range: it must be {limits}.")
    return value


def _converted(name: str, value: Any, kind: type) -> Any:
    """The value as a bool, int, float or str; exact, so that 3.7 is no int and nan no float."""
    wrong = BadInput(f"{name}={value!r} is not a valid {kind.__name__}.")
    if kind is bool:
        table = {"true": True, "false": False}
        if isinstance(value, str) and value.lower() in table:
            return table[value.lower()]
        if isinstance(value, bool):
            return value
        raise wrong
    if kind is str:
        if isinstance(value, str):
            return value
        raise wrong
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise wrong from None
    if not math.isfinite(number):
        raise wrong
    if kind is float:
        return number
    if number != int(number):
        raise wrong
    return int(number)
