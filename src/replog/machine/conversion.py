"""Typed data of machines, as JSON and back.

Sets have one order in all processes, and nothing is taken for another type than its annotation's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import attrs
from cattrs.preconf.json import make_converter


def structure(wanted: Any, value: Any) -> Any:
    """The value of this type that this JSON is. Raises as cattrs does."""
    return CONVERTER.structure(value, wanted)


def from_json(text: str) -> Any:
    """Parses JSON without `json.loads`'s search for the encoding and for spaces: a replay decodes every command."""
    value, end = _raw_decode(text)
    return value if end == len(text) else json.loads(text)


def _in_order(members: Iterable[Any]) -> list[Any]:
    """The members of a set in an order that is the same in all processes, in which equal sets may iterate differently."""
    found = list(members)
    kinds = set(map(type, found))
    # Others may have no order: dicts, which attrs classes become; None beside numbers; NaN.
    has_order = kinds <= {int} or kinds <= {str}
    return sorted(found, key=None if has_order else to_state_json)


def _refuse(value: object) -> Any:
    kind = type(value)
    problem = f"Object of type {kind.__name__} is not JSON serializable"
    if attrs.has(kind) or dataclasses.is_dataclass(kind):
        problem += ": the annotation names another type, or has quotes around a part of it; put them around the whole"
    raise TypeError(problem)


CONVERTER = make_converter(forbid_extra_keys=True, unstruct_collection_overrides={AbstractSet: _in_order})
# One encoder for all: `json.dumps` with options makes one for each call.
to_json = json.JSONEncoder(allow_nan=False, default=_refuse, separators=(",", ":")).encode
# Unlike arguments, a state may have infinite numbers and NaN, which are not equal to themselves.
to_state_json = json.JSONEncoder(default=_refuse, separators=(",", ":")).encode
_raw_decode = json.JSONDecoder().raw_decode
