"""Rows as JSON objects, one for each entry, and back.

Types that JSON does not have: binary is base64; a decimal, a date and a timestamp are texts ("1.50", "2026-11-20",
"2026-11-20T17:00:00.000000+00:00", without the offset if the column has no time zone); floats that are not numbers are "NaN",
"Infinity" and "-Infinity"; a map whose keys are not texts is a list of pairs. A field that is missing reads as null; one that
no column has is not read.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as arrow
import pyarrow.compute as compute
from pyarrow import types

from replog.spark.json_columns import ColumnReader, is_readable, texts_of

Convert = Callable[[Any], Any]  # of a value that is not null

_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class MalformedError(ValueError):
    """A value that does not fit its column. Caught where entry and log are known."""


# -- writing ------------------------------------------------------------------------------------------------------


class JsonWriter:
    """Makes texts, which are entries in UTF-8, of record batches that have this schema."""

    def __init__(self, schema: arrow.Schema) -> None:
        self._names = list(schema.names)
        self._converts = [_writer_of(field.type) for field in schema]

    def texts(self, batch: arrow.RecordBatch) -> arrow.Array:
        """One for each row. Raises `MalformedError`, with the column, for a value that cannot be written."""
        pieces: list[Any] = []
        for name, convert, column in zip(self._names, self._converts, batch.columns, strict=True):
            texts = texts_of(column)
            if texts is None:
                try:
                    texts = _texts_by_value(column, convert)
                except (ValueError, OverflowError) as error:
                    raise MalformedError(f"column {name!r}: {error}") from error
            before = f"{',' if pieces else '{'}{json.dumps(name, ensure_ascii=False)}:"
            pieces += [before, compute.fill_null(texts, "null")]
        return compute.binary_join_element_wise(*pieces, "}", "")


def _texts_by_value(column: arrow.Array, convert: Convert) -> arrow.Array:
    # One encoder for all rows: `json.dumps` with such settings makes a new one each time.
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    texts = [None if each is None else encode(convert(each)) for each in column.to_pylist()]
    return arrow.array(texts, arrow.string())


def _writer_of(of_type: arrow.DataType) -> Convert:
    if types.is_floating(of_type):
        return _float_to_json
    if types.is_binary(of_type):
        return lambda value: base64.b64encode(value).decode()
    if types.is_decimal(of_type):
        return lambda value: format(value, "f")
    if types.is_date(of_type):
        return lambda value: value.isoformat()
    if types.is_timestamp(of_type):
        return lambda value: value.isoformat(timespec="microseconds")
    if types.is_map(of_type):
        return _map_writer(of_type)
    if types.is_list(of_type):
        item = _writer_of(of_type.value_type)
        return lambda values: [None if each is None else item(each) for each in values]
    if types.is_struct(of_type):
        fields = {field.name: _writer_of(field.type) for field in of_type}
        return lambda found: {
            name: None if found[name] is None else convert(found[name]) for name, convert in fields.items()
        }
    return _as_it_is  # booleans, whole numbers, texts


def _map_writer(of_type: arrow.DataType) -> Convert:
    key, item = _writer_of(of_type.key_type), _writer_of(of_type.item_type)

    def pairs(found: list[tuple[Any, Any]]) -> list[list[Any]]:
        return [[key(name), None if value is None else item(value)] for name, value in found]

    if types.is_string(of_type.key_type):
        return lambda found: dict(pairs(found))
    return pairs


def _float_to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return next(name for name, each in _NO_NUMBERS.items() if each == value or (each != each and value != value))


def _as_it_is(value: Any) -> Any:
    return value


# -- reading ------------------------------------------------------------------------------------------------------


class JsonReader:
    """Makes record batches of this schema of entries."""

    def __init__(self, schema: arrow.Schema) -> None:
        self._schema = schema
        self._columns = [(field.name, _reader_of(field.type)) for field in schema]
        self._fast = ColumnReader(schema) if is_readable(schema) else None

    def batch(self, payloads: arrow.BinaryArray, named: Callable[[int], str]) -> arrow.RecordBatch:
        """One row for each payload. `named` says which entry a payload is, in a `MalformedError`."""
        found = None if self._fast is None else self._fast.batch(payloads)
        return self._by_value(payloads.to_pylist(), named) if found is None else found

    def _by_value(self, payloads: Sequence[bytes | None], named: Callable[[int], str]) -> arrow.RecordBatch:
        columns: list[list[Any]] = [[] for _ in self._columns]
        for place, payload in enumerate(payloads):
            # A tombstone has a key, and no value: all columns are null.
            found = {} if payload is None else _loads(payload, lambda: named(place))  # noqa: B023 - called at once
            for values, (name, convert) in zip(columns, self._columns, strict=True):
                value = found.get(name)
                try:
                    values.append(None if value is None else convert(value))
                except (ValueError, ArithmeticError) as error:
                    raise MalformedError(f"column {name!r} of {named(place)}: {_said(value)}: {error}") from error
        arrays = []
        for values, field in zip(columns, self._schema, strict=True):
            try:
                arrays.append(arrow.array(values, field.type))
            except (arrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
                where = f"{named(0)} to {named(len(payloads) - 1)}" if len(payloads) > 1 else named(0)
                raise MalformedError(f"column {field.name!r} of {where}: {error}") from error
        return arrow.RecordBatch.from_arrays(arrays, schema=self._schema)


def _loads(payload: bytes, named: Callable[[], str]) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{named()} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedError(f"{named()} is not a JSON object, but {_said(found)}")
    return cast("dict[str, Any]", found)


def _said(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _reader_of(of_type: arrow.DataType) -> Convert:
    simple = _simple_reader_of(of_type)
    if simple is not None:
        return simple
    if types.is_map(of_type):
        return _map_reader(of_type)
    if types.is_list(of_type):
        item = _reader_of(of_type.value_type)
        return lambda values: [None if each is None else item(each) for each in _checked(values, list, "a list")]
    assert types.is_struct(of_type), of_type
    fields = {field.name: _reader_of(field.type) for field in of_type}

    def structure(value: Any) -> dict[str, Any]:
        found = _checked(value, dict, "an object")
        return {name: None if found.get(name) is None else convert(found[name]) for name, convert in fields.items()}

    return structure


def _simple_reader_of(of_type: arrow.DataType) -> Convert | None:
    if types.is_boolean(of_type):
        return lambda value: _checked(value, bool, "a boolean")
    if types.is_integer(of_type):
        return lambda value: _checked(value, int, "a whole number")
    if types.is_floating(of_type):
        return _float_from_json
    if types.is_string(of_type):
        return lambda value: _checked(value, str, "a text")
    if types.is_binary(of_type):
        return _binary_from_json
    if types.is_decimal(of_type):
        return lambda value: decimal.Decimal(value if type(value) is int else _checked(value, str, "a decimal's text"))
    if types.is_date(of_type):
        return lambda value: datetime.date.fromisoformat(_checked(value, str, "a date's text"))
    if types.is_timestamp(of_type):
        return lambda value: _timestamp_from_json(value, of_type.tz is not None)
    return None


def _map_reader(of_type: arrow.DataType) -> Convert:
    key, item = _reader_of(of_type.key_type), _reader_of(of_type.item_type)

    def pair(found: Any) -> tuple[Any, Any]:
        if len(_checked(found, list, "a list of pairs")) != 2:
            raise ValueError("is not a list of pairs")
        name, value = found
        return key(name), None if value is None else item(value)

    if types.is_string(of_type.key_type):
        return lambda value: [pair(list(each)) for each in _checked(value, dict, "an object").items()]
    return lambda value: [pair(each) for each in _checked(value, list, "a list of pairs")]


def _checked(value: Any, wanted: type, what: str) -> Any:
    if type(value) is not wanted:
        raise ValueError(f"is not {what}")
    return value


def _float_from_json(value: Any) -> float:
    if type(value) is str and value in _NO_NUMBERS:
        return _NO_NUMBERS[value]
    # Whole numbers are valid doubles in JSON: other programs write 1 for 1.0.
    return float(value if type(value) is int else _checked(value, float, "a number"))


def _binary_from_json(value: Any) -> bytes:
    try:
        return base64.b64decode(_checked(value, str, "base64"), validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not base64: {error}") from error


def _timestamp_from_json(value: Any, has_zone: bool) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(_checked(value, str, "a timestamp's text"))
    if (found.tzinfo is not None) is not has_zone:
        raise ValueError(
            "needs an offset from UTC" if has_zone else "has an offset from UTC, its column has no time zone"
        )
    return found
