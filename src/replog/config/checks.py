"""Fields of options with checks, and the error that lists every fault of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from replog.errors import ConfigError

Check = Callable[[Any], str | None]


def option(default: Any, doc: str, check: Check | None = None) -> Any:
    """A field with a default, a line that explains it, and a check that reports the fault of a value."""
    return attrs.field(default=default, metadata={"doc": doc, "check": check})


def check_field(field: attrs.Attribute[Any], value: object) -> None:
    """Raises ValueError with what the field's check says about this value."""
    check = field.metadata.get("check")
    fault = check(value) if check is not None and value is not None else None
    if fault is not None:
        raise ValueError(fault)


def at_least(lowest: float, highest: float | None = None) -> Check:
    """Checks for a number from `lowest` to `highest`, both allowed."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{value!r} is not a number"
        if highest is not None and not lowest <= value <= highest:
            return f"{value} is not between {lowest} and {highest}"
        return None if value >= lowest else f"{value} is less than {lowest}"

    return check


def positive(value: Any) -> str | None:
    """Checks for a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r} is not a number"
    return None if 0 < value < float("inf") else f"{value} is not above 0 and finite"


def one_of(*words: str) -> Check:
    """Checks for one of these words."""

    def check(value: Any) -> str | None:
        return None if value in words else f"{value!r} is not one of {', '.join(map(repr, words))}"

    return check


class FaultsError(ConfigError):
    """A `ConfigError` with each of its `faults`."""

    def __init__(self, what: str, faults: Sequence[str]) -> None:
        super().__init__(_report(what, faults))
        self.faults = tuple(faults)


def _report(what: str, faults: Sequence[str]) -> str:
    return f"{what}: {faults[0]}" if len(faults) == 1 else "\n  - ".join([f"{what}: {len(faults)} faults", *faults])


class Checked:
    """A base class for options: making an instance runs all checks, and `ConfigError` lists the ones that fail."""

    def __attrs_post_init__(self) -> None:
        faults = []
        for field in attrs.fields(type(self)):  # type: ignore[arg-type]
            try:
                check_field(field, getattr(self, field.name))
            except ValueError as error:
                faults.append(f"{field.name}: {error}")
        faults += [] if faults else self.contradictions()
        if faults:
            raise FaultsError(type(self).__name__, faults)

    def contradictions(self) -> list[str]:
        """Faults of options that are valid one by one, but not together."""
        return []


def check_types(where: str, **given: tuple[object, type]) -> None:
    """Raises `ConfigError` for each argument, by name, that is neither None nor an instance of its type."""
    wrong = [
        f"{name}={value!r} must be {kind.__name__}(...)"
        for name, (value, kind) in given.items()
        if value is not None and not isinstance(value, kind)
    ]
    if wrong:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")


def check_names(**given: object) -> None:
    """Raises `ConfigError` for the first argument that is neither None nor a list of texts: of one text, each letter would be
    taken for a name."""
    for name, value in given.items():
        is_list = isinstance(value, Iterable) and not isinstance(value, str)
        if value is not None and not (is_list and all(isinstance(each, str) for each in value)):  # type: ignore[attr-defined]
            raise ConfigError(f"{name}={value!r} must be a list of texts; nothing was changed")


def names_in(name: str, value: object) -> tuple[str, ...]:
    """The texts of this argument, a list or an iterator; none if it is None. Raises `ConfigError` as `check_names`."""
    # An iterator that was checked would have none left.
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
    check_names(**{name: found})
    return found or ()  # type: ignore[return-value]


def check_seconds(name: str, value: object) -> None:
    """Raises `ConfigError` if the value is not a number of seconds that is 0 or more, and finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value < float("inf")):  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} must be a finite number of seconds, 0 or more")


def check_number(name: str, value: object, lowest: int | None = None) -> None:
    """Raises `ConfigError` if the value is not a whole number, or less than `lowest`."""
    if type(value) is not int or (lowest is not None and value < lowest):
        at_least = "" if lowest is None else f" of at least {lowest}"
        raise ConfigError(f"{name}={value!r} must be a whole number{at_least}")
