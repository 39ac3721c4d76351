"""Whether a machine's state is the same after it was saved and restored.

Rules:
- JSON does not show that: a tuple becomes a list, the key 1 a text, a defaultdict a dict. So the shape of a state is
  compared, too: the types of everything in it.
- An object that commands may change has one place in the state. Restored, an object with two places is two objects. It
  may be hashable: so are objects of attrs classes with `eq=False`.
- Objects have no attributes but their fields.
- Nesting is limited, far below what Python's stack takes: what one process saved, every other one can restore.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections import deque
from collections.abc import Iterable
from enum import Enum
from functools import cache, cached_property
from typing import Any

import attrs

# Levels of lists and objects. cattrs and json need three frames for each, of the 1000 that a thread has by default.
ARGUMENT_NESTING_MAX = 64
STATE_NESTING_MAX = 128  # a field of collections has room for such arguments
RESULT_NESTING_MAX = STATE_NESTING_MAX  # any part of the state can be a result

_ATOMS = frozenset({int, str, bool, float, bytes, type(None)})
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")


class ShapeError(ValueError):
    """A part of a state cannot be saved. Internal: callers name the field and the machine."""


def is_nested_deeper(data: bytes, levels: int) -> bool:
    """Whether this JSON has more levels of lists and objects than that."""
    if data.count(b"[") + data.count(b"{") <= levels:
        return False
    brackets = _TEXT.sub(b"", data).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(levels):
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    return bool(brackets)


def shape_of(value: object, seen: set[int]) -> Any:
    """The types of a value and of all in it, in their order: equal for a value and its copy. `seen` has the ids of the
    objects of before. Raises `ShapeError`, whose text follows the name of a field."""
    return _shape(value, 1, seen)


def difference(before: Any, after: Any) -> str:
    """The first difference of two shapes, for people."""
    if type(before) is tuple and type(after) is tuple and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            if one != other:
                return difference(one, other)
    names = _name(before), _name(after)
    return "in the number of its items" if names[0] == names[1] else " becomes ".join(names)


def _shape(value: object, level: int, seen: set[int]) -> Any:
    kind: Any = type(value)
    if kind in _ATOMS:
        return kind
    if level > STATE_NESTING_MAX:
        raise ShapeError(f"is nested more than {STATE_NESTING_MAX} levels deep")
    if _is_changeable(kind):
        if id(value) in seen:
            raise ShapeError(
                f"has a {kind.__name__} that is also elsewhere in the state: restored, it would be two; put a copy there"
            )
        seen.add(id(value))
    level += 1
    names = _attributes(kind)
    if names is not None:
        extra = extra_attribute(value)
        if extra is not None:
            raise ShapeError(
                f"has the attribute {extra!r} of {kind.__name__}, which is no field, so it is not saved: make it a field"
            )
        return kind, *_shapes([getattr(value, name) for name in names], level, seen)
    if isinstance(value, dict):
        made = getattr(value, "default_factory", None)
        kept = typing.get_origin(made) or made
        return kind, kept, _shapes(value, level, seen), _shapes(value.values(), level, seen)
    if isinstance(value, (list, tuple, deque)):
        return kind, getattr(value, "maxlen", None), _shapes(value, level, seen)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(_shapes(value, level, seen))
    return kind, repr(value)


def _shapes(values: Iterable[object], level: int, seen: set[int]) -> tuple[Any, ...]:
    kinds = tuple(map(type, values))
    # Nearly always, and at once.
    return kinds if _ATOMS.issuperset(kinds) else tuple([_shape(each, level, seen) for each in values])


def extra_attribute(value: object) -> str | None:
    """The name of an attribute of this object that is no field of its class, and no `functools.cached_property`."""
    found = getattr(value, "__dict__", None)
    if not found:
        return None
    kind: Any = type(value)
    known = _known_attributes(kind)
    return None if found.keys() <= known else min(found.keys() - known)


@cache
def _known_attributes(kind: type) -> frozenset[str]:
    kept = {name for each in kind.__mro__ for name, found in vars(each).items() if type(found) is cached_property}
    return frozenset({*(_attributes(kind) or ()), *kept, "_attrs_cached_hash"})


@attrs.frozen
class _Frozen:
    """To know attrs' frozen classes by."""


@cache
def _is_changeable(kind: Any) -> bool:
    if _attributes(kind) is None:
        return kind.__hash__ is None
    is_frozen: bool = kind.__setattr__ is _Frozen.__setattr__ if attrs.has(kind) else kind.__dataclass_params__.frozen
    return not is_frozen


@cache
def _attributes(kind: type) -> tuple[str, ...] | None:
    if issubclass(kind, Enum):
        return None  # even if a dataclass is mixed in
    if attrs.has(kind):
        found: Iterable[Any] = attrs.fields(kind)
    elif dataclasses.is_dataclass(kind):
        found = dataclasses.fields(kind)
    else:
        return None
    names = {each.name: each.init for each in found}
    for name, is_saved in names.items():
        if not is_saved:
            raise ShapeError(
                f"has the attribute {name!r} of {kind.__name__}, which is not saved: remove its init=False"
            )
    return tuple(names)


def _name(shape: Any) -> str:
    if type(shape) is tuple and shape:
        return _name(shape[0])
    return shape.__name__ if isinstance(shape, type) else str(shape)
