"""How rows are kept in a log's entries: as they are, as Arrow, or as JSON; and the schema, kept with the log.

Rules:
- `binary`, the default: one column of bytes or texts, one entry for each row. Everybody reads it. The entry's key and headers may
  be columns beside it.
- `arrow`: some rows make an entry, up to about a megabyte of them: one Arrow IPC stream, which reads without anything else:
  `pyarrow.ipc.open_stream(record.data).read_all()`.
- `json`: a JSON object for each row (`replog.spark.json_values`).
- A log's metadata (`custom`) says what its first job wrote, and every later job must agree: same columns, same order, same
  types. Whether a column may be null is not compared: it always may, as far as the log is concerned.
- Columns may be added behind the others (`merge_schema`). Each addition is a pair of its own in the metadata, which stays: so
  of two jobs that add different ones at the same time, the second one is refused. A job may leave out columns that were added,
  as one does that was begun before; they are null in its rows. A reader that knows fewer columns leaves the others out.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import attrs
import pyarrow as arrow
from pyarrow import types
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from replog.errors import ConfigError, PayloadTooLargeError, SchemaMismatchError
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.envelope import pack_each
from replog.protocol.model import LogMetadata
from replog.spark.envelopes import headers_of
from replog.spark.json_values import JsonReader, JsonWriter, MalformedError
from replog.spark.packing import packed

FORMAT_KEY = "spark.values"  # in a log's `custom`
SCHEMA_KEY = "spark.schema"
SCHEMA_BYTES_MAX = 64 << 10  # it is in the log's record, which is read and written as a whole
ENTRY_BYTES_WANTED = 1 << 20  # of an entry with Arrow


class ValueFormat(enum.StrEnum):
    """How rows become entries: the option `values`."""

    BINARY = "binary"
    ARROW = "arrow"
    JSON = "json"


class DecodedRows(NamedTuple):
    """Rows that some entries hold. If `is_one_entry`, all of them are in the payload number `first`; else each payload from
    there on is one row."""

    batch: arrow.RecordBatch
    first: int
    is_one_entry: bool


_HEADERS = spark_types.MapType(spark_types.StringType(), spark_types.BinaryType())
# As Kafka's sources and sinks have them.
_LISTED_HEADERS = spark_types.ArrayType(
    StructType(
        [
            spark_types.StructField("key", spark_types.StringType()),
            spark_types.StructField("value", spark_types.BinaryType()),
        ]
    )
)
_BINARY_SCHEMA = StructType([spark_types.StructField("value", spark_types.BinaryType())])
_SIMPLE_TYPES = (
    spark_types.BooleanType,
    spark_types.ByteType,
    spark_types.ShortType,
    spark_types.IntegerType,
    spark_types.LongType,
    spark_types.FloatType,
    spark_types.DoubleType,
    spark_types.DecimalType,
    spark_types.StringType,
    spark_types.BinaryType,
    spark_types.DateType,
    spark_types.TimestampType,
    spark_types.TimestampNTZType,
)


@attrs.frozen(slots=False)
class ValueSchema:
    """The format of a log's entries, and the schema of the rows as Spark's JSON: that of the first job, and the columns that each
    later one added. Can be pickled.

    Made by `of_rows` or `of_log`."""

    format: ValueFormat
    schema_json: str
    added_json: tuple[str, ...] = ()

    @classmethod
    def of_rows(cls, value_format: ValueFormat, schema: StructType) -> ValueSchema:
        """How rows of this schema are written. Raises `ConfigError` with all columns that cannot be written."""
        if value_format is ValueFormat.BINARY:
            faults = _binary_faults(schema)
            wanted = _BINARY_SCHEMA
        else:
            names = [field.name for field in schema]
            faults = [f"column {name!r} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
            faults += [] if names else ["it has no columns"]
            faults += [fault for field in schema for fault in _faults(field.dataType, repr(field.name), value_format)]
            wanted = cast("StructType", _all_nullable(schema))
        text = wanted.json()
        if len(text.encode()) > SCHEMA_BYTES_MAX:
            faults.append(f"the schema as JSON is longer than {SCHEMA_BYTES_MAX} bytes: write fewer columns")
        if faults:
            raise ConfigError(f"rows cannot be written with values={value_format}: {'; '.join(faults)}")
        return cls(value_format, text)

    @classmethod
    def of_log(cls, metadata: LogMetadata) -> ValueSchema:
        """The values that the log's metadata names; binary if it names none. Raises `SchemaMismatchError` if it can't be read."""
        custom = metadata.custom
        if custom.get(FORMAT_KEY, ValueFormat.BINARY) == ValueFormat.BINARY:
            return cls(ValueFormat.BINARY, _BINARY_SCHEMA.json())
        try:
            added = itertools.takewhile(custom.__contains__, map(_added_key, itertools.count()))
            found = cls(ValueFormat(custom[FORMAT_KEY]), custom[SCHEMA_KEY], tuple(custom[key] for key in added))
            faults = [fault for each in found.schema for fault in _faults(each.dataType, repr(each.name), found.format)]
            if not faults:
                return found
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            faults = [f"{type(error).__name__}: {error}"]
        raise SchemaMismatchError(
            metadata.name,
            f"the schema in its metadata can't be read ({'; '.join(faults)}): read it with a newer replog, or with "
            "values=binary",
        )

    @cached_property
    def schema(self) -> StructType:
        """The rows' schema as Spark has it; all columns may be null."""
        return StructType([field for text in (self.schema_json, *self.added_json) for field in _parsed(text)])

    @property
    def first_columns(self) -> int:
        """How many columns each row has; it may lack those that were added."""
        return len(_parsed(self.schema_json))

    @cached_property
    def arrow_schema(self) -> arrow.Schema:
        """The same as Arrow has it, with timestamps in UTC: that of batches that are decoded."""
        return arrow_schema_of(self.schema)

    def custom(self) -> dict[str, str]:
        """The custom metadata for the log. A log that has some must have the same; others get it: so jobs that create a log at
        the same time agree, too."""
        if self.format is ValueFormat.BINARY:
            return {FORMAT_KEY: str(self.format)}
        added = {_added_key(number): text for number, text in enumerate(self.added_json)}
        return {FORMAT_KEY: str(self.format), SCHEMA_KEY: self.schema_json, **added}

    def is_read_as(self, reader: ValueSchema) -> bool:
        """True if entries with these values are rows of the reader's schema, too: one has all columns of the other, and maybe
        more behind them."""
        return self.format is reader.format and all(
            (own.name, own.dataType) == (theirs.name, theirs.dataType)
            for own, theirs in zip(self.schema, reader.schema, strict=False)
        )

    def shown(self) -> str:
        """The format and the columns, for errors."""
        if self.format is ValueFormat.BINARY:
            return "binary"
        return f"{self.format} ({', '.join(f'{each.name} {each.dataType.simpleString()}' for each in self.schema)})"

    def check_appendable(self, log_name: str, metadata: LogMetadata | None, merges: bool = False) -> ValueSchema:
        """The same values, spelled as in the log's metadata, which an append must repeat; with `merges` also columns that this
        adds to them. `metadata` is None without a log.

        Raises `SchemaMismatchError`, with all columns that differ, if the log holds other values. A log that has never had a
        ledger holds nothing yet."""
        if metadata is None or metadata.is_deleted:
            return self
        # A log that another client has created, and not yet written to, takes the format of its first job.
        if FORMAT_KEY not in metadata.custom and metadata.next_segment_number == 1:
            return self
        held = ValueSchema.of_log(metadata)
        if held.format is not self.format:
            raise SchemaMismatchError(
                log_name,
                f"its values are {held.format}, and {self.format} was to be appended; nothing was written. "
                f'Say .option("values", "{held.format}"), or write to another log',
            )
        is_prefix = self.is_read_as(held)
        if is_prefix and held.first_columns <= len(self.schema) <= len(held.schema):
            return held
        if is_prefix and merges and len(self.schema) > len(held.schema):
            return held.extended(log_name, StructType(list(self.schema)[len(held.schema) :]))
        differences = _differences(held.schema, self.schema)
        raise SchemaMismatchError(
            log_name,
            f"its rows have other columns: {'; '.join(differences)}; nothing was written. Select and cast the columns "
            'as the log has them, or write to another log. New columns behind all others are added by .option("merge_schema", '
            '"true")',
        )

    def extended(self, log_name: str, fields: StructType) -> ValueSchema:
        """The same with these columns behind the others. Raises `SchemaMismatchError` if they are too many."""
        found = attrs.evolve(self, added_json=(*self.added_json, fields.json()))
        if sum(map(len, found.custom().values())) > SCHEMA_BYTES_MAX:
            raise SchemaMismatchError(
                log_name, f"its schema as JSON would be longer than {SCHEMA_BYTES_MAX} bytes: add fewer columns"
            )
        return found


def _added_key(number: int) -> str:
    return f"{SCHEMA_KEY}.{number + 2}"  # the first schema has no number


def _parsed(schema_json: str) -> StructType:
    return StructType.fromJson(json.loads(schema_json))


def arrow_schema_of(schema: StructType) -> arrow.Schema:
    """The same as Arrow has it, with timestamps in UTC. Before 4.2 Spark had them so without being told."""
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **in_utc)


def check_binary(log_name: str, metadata: LogMetadata) -> None:
    """Raises `SchemaMismatchError` if the log holds anything but bytes."""
    ValueSchema(ValueFormat.BINARY, _BINARY_SCHEMA.json()).check_appendable(log_name, metadata)


# -- writing ------------------------------------------------------------------------------------------------------


class ValueEncoder:
    """Makes entries of record batches, as Spark's Arrow writers get them."""

    def __init__(self, value_schema: ValueSchema, log_name: str) -> None:
        self._format = value_schema.format
        self._schema = value_schema.arrow_schema
        self._log_name = log_name
        self._json = JsonWriter(self._schema) if self._format is ValueFormat.JSON else None

    def parts(self, batch: arrow.RecordBatch) -> list[Sequence[bytes]]:
        """The entries, in the order of the rows, in parts of what a batch holds, or in one. Raises `SchemaMismatchError` for rows
        that are not of the schema, a null among binary values, or what JSON cannot say; `PayloadTooLargeError` for a row that no
        entry can hold."""
        if self._format is ValueFormat.BINARY:
            return self._binary(batch)
        batch = self._fitted(batch)
        if self._json is None:
            return [self._arrow(batch)]
        try:
            return packed(self._json.texts(batch))
        except (MalformedError, arrow.ArrowException) as error:
            raise SchemaMismatchError(self._log_name, f"{error}; nothing of this task was committed") from error

    def _binary(self, batch: arrow.RecordBatch) -> list[Sequence[bytes]]:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if batch.num_columns == 1:
            columns = {"value": batch.column(0)}
        headers = columns.get("headers")
        are_bytes = all(name == "headers" or _is_bytes(column.type) for name, column in columns.items())
        if not are_bytes or "value" not in columns or not set(columns) <= {"value", "key", "headers"}:
            raise self._misfit(batch)
        # Texts become UTF-8, which is how Arrow has them already.
        if len(columns) == 1 and not columns["value"].null_count:
            try:
                return packed(columns["value"])
            except arrow.ArrowException as error:
                raise self._misfit(batch) from error
        values, keys = (
            column if column is None else _bytes_of(column) for column in map(columns.get, ("value", "key"))
        )
        assert values is not None, "the value is among the columns"
        for row, value in enumerate(values) if columns["value"].null_count else ():
            if value is None and (keys is None or keys[row] is None):
                name = batch.schema.names[0] if batch.num_columns == 1 else "value"
                raise SchemaMismatchError(
                    self._log_name,
                    f"column {name!r} is null (row {row} of a batch), and an entry is bytes: filter such rows out, or give "
                    "them a key, to write that it has no value any more; nothing of this task was committed",
                )
        try:
            pairs = None if headers is None else [headers_of(each) for each in headers.to_pylist()]
            return [list(pack_each(values, keys, pairs))]
        except (TypeError, ConfigError) as error:
            raise SchemaMismatchError(self._log_name, f"{error}; nothing of this task was committed") from error

    def _fitted(self, batch: arrow.RecordBatch) -> arrow.RecordBatch:
        """The same rows with exactly the log's schema: Spark has other time zones, and columns without nulls."""
        if batch.schema.equals(self._schema):
            return batch
        if batch.schema.names != self._schema.names:
            raise self._misfit(batch)
        try:
            columns = [column.cast(field.type) for column, field in zip(batch.columns, self._schema, strict=True)]
        except arrow.ArrowException as error:
            raise self._misfit(batch) from error
        return arrow.RecordBatch.from_arrays(columns, schema=self._schema)

    def _misfit(self, batch: arrow.RecordBatch) -> SchemaMismatchError:
        found = ", ".join(f"{field.name} {field.type}" for field in batch.schema)
        wanted = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        return SchemaMismatchError(self._log_name, f"rows with the columns ({found}) came, and not ({wanted})")

    def _arrow(self, batch: arrow.RecordBatch) -> list[bytes]:
        if not batch.num_rows:
            return []
        # By the average size of a row. What is still too large is halved in `_streams`.
        rows = max(1, batch.num_rows * ENTRY_BYTES_WANTED // max(1, batch.nbytes))
        return [
            payload for start in range(0, batch.num_rows, rows) for payload in self._streams(batch.slice(start, rows))
        ]

    def _streams(self, batch: arrow.RecordBatch) -> list[bytes]:
        sink = arrow.BufferOutputStream()
        with arrow.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(batch)
        payload = sink.getvalue()
        if payload.size <= ENTRY_BYTES_MAX:
            return [payload.to_pybytes()]
        # Rows may be of very different sizes: the average says little about this part.
        half = batch.num_rows // 2
        if not half:
            raise PayloadTooLargeError(
                f"log {self._log_name!r}: a row of {payload.size} bytes, and an entry has at most {ENTRY_BYTES_MAX}; nothing "
                "of this task was committed: split the row"
            )
        return [*self._streams(batch.slice(0, half)), *self._streams(batch.slice(half))]


def _bytes_of(column: arrow.Array) -> list[bytes | None]:
    return cast("list[bytes | None]", column.cast(arrow.binary()).to_pylist())


def _is_bytes(of_type: arrow.DataType) -> bool:
    kinds = (types.is_binary, types.is_string, types.is_large_binary, types.is_large_string)
    return any(is_kind(of_type) for is_kind in kinds)


# -- reading ------------------------------------------------------------------------------------------------------


class ValueDecoder:
    """Makes record batches of entries, with exactly `value_schema.arrow_schema`."""

    def __init__(self, value_schema: ValueSchema) -> None:
        self._format = value_schema.format
        self._schema = value_schema.arrow_schema
        self._first_columns = value_schema.first_columns
        self._json = JsonReader(self._schema) if self._format is ValueFormat.JSON else None

    def decode(self, log_name: str, payloads: arrow.BinaryArray, named: Callable[[int], str]) -> Iterator[DecodedRows]:
        """The rows of these entries of a log, in order. `named` says which entry a payload is ("position 17:42"), for errors.
        Raises `SchemaMismatchError` for an entry that holds something else."""
        if not len(payloads):
            return
        if self._format is ValueFormat.BINARY:
            yield DecodedRows(arrow.RecordBatch.from_arrays([payloads], schema=self._schema), 0, False)
            return
        try:
            if self._json is not None:
                yield DecodedRows(self._json.batch(payloads, named), 0, False)
                return
            for place, payload in enumerate(payloads):
                if not payload.is_valid:
                    nulls = [arrow.nulls(1, field.type) for field in self._schema]
                    yield DecodedRows(arrow.RecordBatch.from_arrays(nulls, schema=self._schema), place, True)
                    continue
                for batch in self._stream(payload.as_buffer(), named(place)):
                    yield DecodedRows(batch, place, True)
        except MalformedError as error:
            raise SchemaMismatchError(
                log_name,
                f"{error}. The log was begun with values={self._format}, and another program may have appended "
                'to it, too: read it with .option("values", "binary"), which gives all entries as they are',
            ) from error

    def _stream(self, payload: arrow.Buffer, name: str) -> list[arrow.RecordBatch]:
        try:
            with arrow.ipc.open_stream(payload) as stream:
                found = stream.schema
                shared = min(len(found), len(self._schema))
                if shared < self._first_columns or list(found)[:shared] != list(self._schema)[:shared]:
                    columns = ", ".join(f"{field.name} {field.type}" for field in found)
                    raise MalformedError(f"{name} has other columns than the log's schema: {columns}")
                batches = list(stream)
                for batch in batches:
                    # The lengths and offsets in an entry come from another program: an invalid one would crash the
                    # process, not raise.
                    batch.validate(full=True)  # anybody may have written it
        except (arrow.ArrowException, OSError) as error:
            raise MalformedError(f"{name} is not an Arrow stream: {error}") from error
        return [self._widened(batch) for batch in batches]

    def _widened(self, batch: arrow.RecordBatch) -> arrow.RecordBatch:
        """The same rows with exactly the reader's columns: the log may have got others since one of both was begun."""
        if batch.num_columns == len(self._schema):
            return batch
        added = [arrow.nulls(batch.num_rows, field.type) for field in list(self._schema)[batch.num_columns :]]
        return arrow.RecordBatch.from_arrays([*batch.columns[: len(self._schema)], *added], schema=self._schema)


# -- schemas ------------------------------------------------------------------------------------------------------


def _binary_faults(schema: StructType) -> list[str]:
    fields = list(schema)
    are_bytes = [isinstance(field.dataType, spark_types.BinaryType | spark_types.StringType) for field in fields]
    if are_bytes == [True]:
        return []
    wanted = {
        "value": are_bytes,
        "key": are_bytes,
        "headers": [_all_nullable(field.dataType) in (_HEADERS, _LISTED_HEADERS) for field in fields],
    }
    names = [field.name for field in fields]
    has_one_each = len(set(names)) == len(names) and "value" in names
    if has_one_each and all(name in wanted and wanted[name][place] for place, name in enumerate(names)):
        return []
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields) or "none"
    return [
        "one column of type binary or string is needed, or value with key (of these types) and headers (map<string,binary> or "
        f'array<struct<key:string,value:binary>>), and there are: {found}. Select it, as in .select(col("value").cast("string")),'
        ' or say .option("values", "arrow") or "json" for any columns'
    ]


def _faults(of_type: Any, path: str, value_format: ValueFormat) -> list[str]:
    """The parts of this type that cannot be written, each with the path to it."""
    if isinstance(of_type, spark_types.ArrayType):
        return _faults(of_type.elementType, f"{path}[]", value_format)
    if isinstance(of_type, spark_types.MapType):
        keys = _faults(of_type.keyType, f"the keys of {path}", value_format)
        return [*keys, *_faults(of_type.valueType, f"the values of {path}", value_format)]
    if isinstance(of_type, StructType):
        twice = sorted({name for name in of_type.names if of_type.names.count(name) > 1})
        faults = [f"column {path} has its field {name!r} twice" for name in twice]
        for field in of_type:
            faults += _faults(field.dataType, f"{path}.{field.name}", value_format)
        return faults
    if isinstance(of_type, _SIMPLE_TYPES):
        return []
    if value_format is ValueFormat.ARROW and isinstance(of_type, spark_types.DayTimeIntervalType):
        return []
    return [f"column {path} is of type {of_type.simpleString()}: cast it to another"]


def _all_nullable(of_type: Any) -> Any:
    """The same type with nulls allowed everywhere and without comments, for comparing."""
    if isinstance(of_type, StructType):
        fields = [spark_types.StructField(each.name, _all_nullable(each.dataType)) for each in of_type]
        return StructType(fields)
    if isinstance(of_type, spark_types.ArrayType):
        return spark_types.ArrayType(_all_nullable(of_type.elementType))
    if isinstance(of_type, spark_types.MapType):
        return spark_types.MapType(_all_nullable(of_type.keyType), _all_nullable(of_type.valueType))
    return of_type


def _differences(held: StructType, wanted: StructType) -> list[str]:
    """The differences of `wanted`, column by column."""
    found = []
    held_types = {field.name: field.dataType for field in held}
    wanted_types = {field.name: field.dataType for field in wanted}
    for name, held_type in held_types.items():
        if name not in wanted_types:
            found.append(f"column {name!r} ({held_type.simpleString()}) is missing")
        elif wanted_types[name] != held_type:
            found.append(
                f"column {name!r} is {held_type.simpleString()} in the log, and {wanted_types[name].simpleString()} here"
            )
    found += [f"column {name!r} is not in the log" for name in wanted_types if name not in held_types]
    if not found and held.names != wanted.names:
        found.append(f"the log's order is {', '.join(held.names)}")
    return found


BINARY_VALUES = ValueSchema(ValueFormat.BINARY, _BINARY_SCHEMA.json())  # what programs without a schema write
