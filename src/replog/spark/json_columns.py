"""Rows as JSON and back by Arrow's own code, a column at a time. It leaves unsupported types to `replog.spark.json_values`.

Rules:
- Its result means the same as the result of the slow way; or it is None, even for an invalid entry, which the slow way
  names.
- Payloads are parsed as lines of one text. Each begins with `{`, ends with `}`, and has neither a line break nor a zero
  byte. So wherever one ends, the parser is between two objects or has failed; and as many rows as payloads means one
  object in each.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.json
from pyarrow import types

_ESCAPED = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL = r"[\x00-\x1f]"
_SPECIAL = bytes(range(0x20)) + b'"\\'  # all of the above
_DAYS = -719_162, 2_932_896  # 0001-01-01 to 9999-12-31, the range of the slow way, and of other readers
_US_PER_DAY = 86_400_000_000
_BLOCK_BYTES_MIN = 1 << 16

# -- writing ------------------------------------------------------------------------------------------------------


def texts_of(column: arrow.Array) -> arrow.Array | None:
    """The JSON of each value, null for null; None if that is left to the slow way."""
    of_type = column.type
    if types.is_integer(of_type) or types.is_boolean(of_type):
        return column.cast(arrow.string())
    if types.is_floating(of_type):
        return _of_floats(column)
    if types.is_string(of_type):
        return _of_texts(column)
    if types.is_decimal(of_type):
        texts = column.cast(arrow.string())
        return None if _any(compute.match_substring(texts, "E")) else _quoted(texts)
    if types.is_date32(of_type):
        return _quoted(column.cast(arrow.string())) if _is_within(column.cast(arrow.int32()), *_DAYS) else None
    if types.is_timestamp(of_type) and of_type.unit == "us":
        return _of_times(column)
    if types.is_binary(of_type):
        found = [None if each is None else base64.b64encode(each).decode() for each in column.to_pylist()]
        return _quoted(arrow.array(found, arrow.string()))
    return None


def _any(truths: arrow.Array) -> bool:
    return bool(compute.any(truths).as_py())


def _is_within(numbers: arrow.Array, lowest: int, highest: int) -> bool:
    found = compute.min_max(numbers).as_py()
    return found["min"] is None or (lowest <= found["min"] and found["max"] <= highest)


def _quoted(texts: arrow.Array, end: str = '"') -> arrow.Array:
    return compute.binary_join_element_wise('"', texts, end, "")


def _of_floats(column: arrow.Array) -> arrow.Array | None:
    if not compute.all(compute.is_finite(column), skip_nulls=True).as_py():
        return None
    texts = column.cast(arrow.string())
    # A whole number stays a float for readers that tell both apart.
    is_whole = compute.match_substring_regex(texts, r"^-?[0-9]+$")
    return compute.if_else(is_whole, compute.binary_join_element_wise(texts, ".0", ""), texts)


def _of_texts(column: arrow.Array) -> arrow.Array | None:
    if _is_plain_text(column):
        return _quoted(column)
    for plain, escaped in _ESCAPED:
        if _any(compute.match_substring(column, plain)):
            column = compute.replace_substring(column, plain, escaped)
    return None if _any(compute.match_substring_regex(column, _CONTROL)) else _quoted(column)


def _is_plain_text(column: arrow.Array) -> bool:
    """True if no value needs an escape. One pass over the bytes of all values: to ask Arrow for each character takes ten times
    as long. Bytes behind a null may make it False."""
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return True
    edges = memoryview(offsets).cast("i")
    begin, end = edges[column.offset], edges[column.offset + len(column)]
    found = data.slice(begin, end - begin).to_pybytes()
    return len(found.translate(None, _SPECIAL)) == len(found)


def _of_times(column: arrow.Array) -> arrow.Array | None:
    lowest, highest = _DAYS
    if not _is_within(column.cast(arrow.int64()), lowest * _US_PER_DAY, (highest + 1) * _US_PER_DAY - 1):
        return None
    texts = column.cast(arrow.timestamp("us")).cast(arrow.string())
    return _quoted(compute.replace_substring(texts, " ", "T"), '"' if column.type.tz is None else '+00:00"')


# -- reading ------------------------------------------------------------------------------------------------------


class ColumnReader:
    """Makes record batches of this schema, which `is_readable`."""

    def __init__(self, schema: arrow.Schema) -> None:
        self._schema = schema
        self._parsed = arrow.schema([arrow.field(field.name, _parsed_type(field.type)) for field in schema])

    def batch(self, payloads: arrow.BinaryArray) -> arrow.RecordBatch | None:
        """One row for each payload; None if one of them is left to the slow way."""
        if payloads.null_count:
            return None  # tombstones
        try:
            # Any program may have written them: bytes that are not UTF-8 are refused here.
            texts = payloads.cast(arrow.string())
            are_objects = compute.and_(compute.starts_with(texts, "{"), compute.ends_with(texts, "}"))
            joined = b"\n".join(payloads.to_pylist())
            is_fit = compute.all(are_objects).as_py() and joined.count(b"\n") == len(payloads) - 1 and 0 not in joined
            found = self._read(joined) if is_fit else None
            if found is None or found.num_rows != len(payloads):
                return None
            columns = [_converted(found.column(field.name).combine_chunks(), field.type) for field in self._schema]
        except (arrow.ArrowException, ValueError):
            return None
        return arrow.RecordBatch.from_arrays(columns, schema=self._schema)

    def _read(self, joined: bytes) -> arrow.Table:
        # All in one block: an object that is longer than a block fails.
        size = max(_BLOCK_BYTES_MIN, len(joined) + 1)
        return pyarrow.json.read_json(
            arrow.BufferReader(joined),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=size),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=self._parsed, unexpected_field_behavior="ignore"),
        )


def is_readable(schema: arrow.Schema) -> bool:
    """True if `ColumnReader` can read rows of this schema."""
    return all(_parsed_type(field.type) is not None for field in schema)


def _is_plain(of_type: arrow.DataType) -> bool:
    """True if JSON has such values itself."""
    if types.is_list(of_type):
        return _is_plain(of_type.value_type)
    if types.is_struct(of_type):
        return all(_is_plain(field.type) for field in of_type)
    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_string)
    return any(is_kind(of_type) for is_kind in kinds)


def _parsed_type(of_type: arrow.DataType) -> arrow.DataType | None:
    """The column type that JSON has for this type; None if that is left to the slow way."""
    if _is_plain(of_type):
        return of_type
    kinds = (types.is_decimal, types.is_date, types.is_timestamp, types.is_binary)
    return arrow.string() if any(is_kind(of_type) for is_kind in kinds) else None


def _converted(column: arrow.Array, wanted: arrow.DataType) -> arrow.Array:
    if not types.is_binary(wanted):
        return column if column.type == wanted else column.cast(wanted)
    decode: Callable[[str], bytes] = lambda text: base64.b64decode(text, validate=True)  # noqa: E731
    return arrow.array([None if each is None else decode(each) for each in column.to_pylist()], wanted)
