"""Rows as Spark gets them: Arrow record batches, made of stored batches without touching their entries.

The columns are those that the schema names; a query that needs fewer names them (`.schema("value binary")`), and the others are
not made. With `values=binary` there are five, `log` if the query reads many, and on demand `key` and `headers`; `value` and
`key` may also be strings. With `arrow` and `json` there are the log's own columns, and on demand the others, with an underscore
before their names. A tombstone has no value: that is null, and with `arrow` and `json` all columns are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as arrow
import pyarrow.compute
from pyspark.sql import types as spark_types
from pyspark.sql.types import StructType

from replog.client.entries import Entry, EntryBatch
from replog.errors import ConfigError, SchemaMismatchError
from replog.spark.values import DecodedRows, ValueDecoder, ValueSchema, arrow_schema_of

_LOG = spark_types.StructField("log", spark_types.StringType())
_PLACES = StructType(
    [
        spark_types.StructField("position", spark_types.StringType()),
        spark_types.StructField("segment", spark_types.LongType()),
        spark_types.StructField("entry", spark_types.LongType()),
        spark_types.StructField("timestamp", spark_types.TimestampType()),
    ]
)
_ENVELOPE = StructType(
    [
        spark_types.StructField("key", spark_types.BinaryType()),
        spark_types.StructField("headers", spark_types.MapType(spark_types.StringType(), spark_types.BinaryType())),
    ]
)
_ON_DEMAND = [_LOG, *_PLACES, *_ENVELOPE]
_HEADERS_TYPE = arrow.map_(arrow.string(), arrow.binary())
_BINARY = StructType([*_PLACES, spark_types.StructField("value", spark_types.BinaryType())])
_TIMESTAMP = arrow.timestamp("us", tz="UTC")
_JOINED_BYTES = 512 << 10  # of stored batches, in one record batch: of 100 kB a row costs Spark half as much again
_DIGITS = [b"%03d" % number for number in range(1000)]


def schema_of_rows(values: ValueSchema | None, is_many: bool = False) -> StructType:
    """The columns of a query that names none: those of entries as they are (None), or of the rows in them; and before them the
    log's name if the query reads many."""
    if values is None:
        return StructType([_LOG, *_BINARY]) if is_many else _BINARY
    log = [] if "_log" in values.schema.names or not is_many else [spark_types.StructField("_log", _LOG.dataType)]
    return StructType([*log, *values.schema])


def _offered(values: ValueSchema | None) -> StructType:
    if values is None:
        return StructType([_LOG, *_BINARY, *_ENVELOPE])
    places = [spark_types.StructField(f"_{field.name}", field.dataType) for field in _ON_DEMAND]
    own = [field for field in places if field.name not in values.schema.names]
    return StructType([*values.schema, *own])


def places_of(values: ValueSchema | None) -> dict[str, str]:
    """The columns that say where an entry is: what each is called in a query, and its meaning."""
    own = () if values is None else values.schema.names
    names = {f"{'' if values is None else '_'}{field.name}": field.name for field in [_LOG, *_PLACES]}
    return {name: place for name, place in names.items() if name not in own}


def check_schema(wanted: StructType, values: ValueSchema | None, shown: str) -> None:
    """Raises `ConfigError` with all columns that do not exist, or have another type. `shown` describes the range that
    is read."""
    offered = {field.name: field.dataType for field in _offered(values)}
    types = {name: [of_type] for name, of_type in offered.items()}
    for name in ("value", "key") if values is None else ("_key",):
        if types[name] == [spark_types.BinaryType()]:
            types[name].append(spark_types.StringType())
    faults = [
        f"{field.name} {field.dataType.simpleString()}"
        for field in wanted
        if field.dataType not in types.get(field.name, ())
    ]
    twice = sorted({name for name in wanted.names if wanted.names.count(name) > 1})
    if faults or twice or not wanted.names:
        there = ", ".join(f"{name} {of_type.simpleString()}" for name, of_type in offered.items())
        asked = ", ".join(faults) or (f"{', '.join(twice)} twice" if twice else "no column")
        raw = "" if values is None else '; or say .option("values", "binary"), to read entries as they are'
        raise ConfigError(
            f"log {shown!r}: the schema asks for {asked}, and there are: {there}. Ask for these, and cast them "
            f"afterwards{raw}"
        )


class Columns:
    """Makes rows of consecutive entries of one segment. The schema must have passed `check_schema`."""

    def __init__(self, wanted: StructType, values: ValueSchema | None) -> None:
        # With the time zone of the session, as a usual conversion has it, Spark would refuse the batches.
        self._schema = arrow_schema_of(wanted)  # Spark compares it with what comes, to the letter
        self._decoder = None if values is None else ValueDecoder(values)

    def record_batches(self, log: str, segment: int, batches: Sequence[EntryBatch]) -> Iterator[arrow.RecordBatch]:
        """The rows of these batches, between which no entry is missing. Raises `SchemaMismatchError` for entries that hold
        something else."""
        for together in _grouped(batches):
            yield from self._record_batches(log, segment, together)

    def _record_batches(self, log: str, segment: int, batches: Sequence[EntryBatch]) -> Iterator[arrow.RecordBatch]:
        payloads = _joined([batch.to_arrow() for batch in batches])
        places = _Places(log, segment, batches)

        def named(place: int) -> str:
            return f"position {segment}:{places.first + place}"

        if self._decoder is None:
            yield self._assembled({**places.makers(), "value": lambda: payloads}, log, named)
            return
        for rows in self._decoder.decode(log, payloads, named):
            count = rows.batch.num_rows
            where = places.taken(rows.first, count, rows.is_one_entry)
            makers = {f"_{name}": make for name, make in where.items()}
            for number, name in enumerate(rows.batch.schema.names):
                # Made only if the query names them: a query for one column pays for one.
                makers[name] = lambda number=number, rows=rows: rows.batch.column(number)  # type: ignore[misc]

            def named_row(place: int, rows: DecodedRows = rows) -> str:
                return named(rows.first if rows.is_one_entry else rows.first + place)

            yield self._assembled(makers, log, named_row)

    def _assembled(
        self, makers: Mapping[str, Callable[[], arrow.Array]], log: str, named: Callable[[int], str]
    ) -> arrow.RecordBatch:
        columns = []
        for field in self._schema:
            column = makers[field.name]()
            if column.type != field.type:
                # Only of bytes: a query may ask for them as texts.
                column = _as_texts(column, field, log, named)
            columns.append(column)
        return arrow.RecordBatch.from_arrays(columns, schema=self._schema)


def _as_texts(column: arrow.Array, field: arrow.Field, log: str, named: Callable[[int], str]) -> arrow.Array:
    try:
        return column.cast(field.type)
    except arrow.ArrowException as error:
        place = next(place for place, each in enumerate(column.to_pylist()) if not _is_text(each))
        raise SchemaMismatchError(
            log, f'{named(place)} is not UTF-8: ask for "{field.name} binary" instead of "{field.name} string"'
        ) from error


def _is_text(value: bytes | None) -> bool:
    try:
        _ = value is None or value.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Places:
    """The columns with the log and position of entries, and the time when they were sent."""

    def __init__(self, log: str, segment: int, batches: Sequence[EntryBatch]) -> None:
        self.first = batches[0].first_entry_id
        self._log = log
        self._segment = segment
        self._batches = batches
        self._count = sum(map(len, batches))

    def makers(self) -> dict[str, Callable[[], arrow.Array]]:
        """How to make each column."""
        return {
            "log": lambda: arrow.repeat(arrow.scalar(self._log, arrow.string()), self._count),
            "position": lambda: positions(self._segment, self.first, self._count),
            "segment": lambda: arrow.repeat(arrow.scalar(self._segment, arrow.int64()), self._count),
            "entry": self._entries,
            "timestamp": self._timestamps,
            "key": self._keys,
            "headers": self._headers,
        }

    def taken(self, start: int, count: int, is_one_entry: bool) -> dict[str, Callable[[], arrow.Array]]:
        """The same for `count` rows: those of one entry, or of as many entries from `start` on."""

        def part(column: Callable[[], arrow.Array]) -> arrow.Array:
            if is_one_entry:
                return column().take(arrow.array([start] * count, arrow.int64()))
            return column().slice(start, count)

        return {name: (lambda make=make: part(make)) for name, make in self.makers().items()}  # type: ignore[misc]

    def _keys(self) -> arrow.Array:
        return arrow.array(self._of_each(lambda entry: entry.key), arrow.binary())

    def _headers(self) -> arrow.Array:
        return arrow.array(self._of_each(lambda entry: list(entry.headers.items()) or None), _HEADERS_TYPE)

    def _of_each(self, get: Callable[[Entry], Any]) -> list[Any]:
        found: list[Any] = []
        for batch in self._batches:
            found += map(get, batch) if batch.has_envelopes else [None] * len(batch)
        return found

    def _entries(self) -> arrow.Array:
        return pyarrow.compute.add(_counted(self._count), arrow.scalar(self.first, arrow.int64()))

    def _timestamps(self) -> arrow.Array:
        times = [batch.timestamp_ns // 1000 for batch in self._batches]
        # Nearly always: a stored batch has one time for all of its entries.
        if len(set(times)) == 1:
            return arrow.repeat(arrow.scalar(times[0], _TIMESTAMP), self._count)
        return _joined(
            [
                arrow.repeat(arrow.scalar(time, _TIMESTAMP), len(batch))
                for time, batch in zip(times, self._batches, strict=True)
            ]
        )


def _grouped(batches: Sequence[EntryBatch]) -> Iterator[list[EntryBatch]]:
    """The batches in lists that are worth a record batch. Joining copies them: so batches that are large enough stay
    alone, and Spark has them as they were stored."""
    together: list[EntryBatch] = []
    size_bytes = 0
    for batch in batches:
        together.append(batch)
        size_bytes += batch.size_bytes
        if size_bytes >= _JOINED_BYTES:
            yield together
            together, size_bytes = [], 0
    if together:
        yield together


def positions(segment: int, first: int, count: int) -> arrow.Array:
    """The positions of `count` entries of a segment as texts: "17:42", "17:43", ..."""
    parts = []
    end = first + count
    while first < end:
        stop = min(end, 10 ** len(str(first)))
        # All of them have the same number of digits.
        make = _short_positions if stop <= len(_DIGITS) else _long_positions
        parts.append(make(segment, first, stop))
        first = stop
    return _joined(parts) if parts else arrow.array([], arrow.string())


def _short_positions(segment: int, first: int, stop: int) -> arrow.Array:
    return arrow.array([f"{segment}:{entry}" for entry in range(first, stop)], arrow.string())


def _long_positions(segment: int, first: int, stop: int) -> arrow.Array:
    """The positions of entries with as many digits each, at least four. A thousand of them differ in their last three
    digits only, which are kept as texts: that takes less than half of what Arrow's own code does."""
    parts = []
    for thousand in range(first // 1000, (stop - 1) // 1000 + 1):
        begin = thousand * 1000
        before = f"{segment}:{thousand}".encode()
        parts += [before, before.join(_DIGITS[max(first - begin, 0) : stop - begin])]
    data = b"".join(parts)
    count = stop - first
    starts = pyarrow.compute.multiply(_counted(count + 1), arrow.scalar(len(data) // count, arrow.int64()))
    buffers = [None, starts.cast(arrow.int32()).buffers()[1], arrow.py_buffer(data)]
    return arrow.Array.from_buffers(arrow.string(), count, buffers)


def _joined(arrays: list[arrow.Array]) -> arrow.Array:
    return arrays[0] if len(arrays) == 1 else arrow.concat_arrays(arrays)


_counting = arrow.array([], arrow.int64())


def _counted(count: int) -> arrow.Array:
    """0, 1, 2, ...: kept, since counting in Python costs more than all the rest."""
    global _counting
    # Twice as many as are needed: a slice of what is kept costs nothing.
    if len(_counting) < count:
        numbers = array("q", range(1 << count.bit_length()))
        _counting = arrow.Array.from_buffers(arrow.int64(), len(numbers), [None, arrow.py_buffer(numbers)])
    return _counting.slice(0, count)
