"""Fields of options with checks, and the error that lists every fault of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from replog.errors import ConfigError

Check = Callable[[Any], str | None]


def option(default: Any, doc: str, check: Check | None = None) -> Any:
    """A field with a default, a line for people, and what is wrong with a value, if something is."""
    return attrs.field(default=default, metadata={"doc": doc, "check": check})


def check_field(field: attrs.Attribute[Any], value: object) -> None:
    """Raises ValueError with what the field's check has to say of this value."""
    check = field.metadata.get("check")
    fault = check(value) if check is not None and value is not None else None
    if fault is not None:
        raise ValueError(fault)


def at_least(lowest: float, highest: float | None = None) -> Check:
    """A number between these, which are allowed."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{value!r} is no number"
        if highest is not None and not lowest <= value <= highest:
            return f"{value} is not between {lowest} and {highest}"
        return None if value >= lowest else f"{value} is less than {lowest}"

    return check


def positive(value: Any) -> str | None:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r} is no number"
    return None if 0 < value < float("inf") else f"{value} is not above 0 and finite"


class FaultsError(ConfigError):
    """A `ConfigError` that knows the `faults` it lists, one by one."""

    def __init__(self, what: str, faults: Sequence[str]) -> None:
        super().__init__(_report(what, faults))
        self.faults = tuple(faults)


def _report(what: str, faults: Sequence[str]) -> str:
    return f"{what}: {faults[0]}" if len(faults) == 1 else "\n  - ".join([f"{what}: {len(faults)} faults", *faults])


class Checked:
    """A base of options: however an instance is made, all its checks hold, or `ConfigError` lists what does not."""

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
        """What cannot be true together, though each option alone may be as it is."""
        return []


def check_types(where: str, **given: tuple[object, type]) -> None:
    """Raises `ConfigError` for arguments, by name, that are neither None nor of their type."""
    wrong = [
        f"{name}={value!r} must be {kind.__name__}(...)"
        for name, (value, kind) in given.items()
        if value is not None and not isinstance(value, kind)
    ]
    if wrong:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")


def check_number(name: str, value: object, lowest: int | None = None) -> None:
    """Raises `ConfigError` for what is not a whole number, or below the lowest."""
    if type(value) is not int or (lowest is not None and value < lowest):
        at_least = "" if lowest is None else f" of at least {lowest}"
        raise ConfigError(f"{name}={value!r} must be a whole number{at_least}")
