"""Rows of every type become entries and rows again; what does not fit is refused with its column's name."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import replog
from replog.errors import ConfigError, CustomMismatchError, PayloadTooLargeError, SchemaMismatchError
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.model import LogMetadata, Segment
from replog.spark.options import VALUES
from replog.spark.values import (
    ENTRY_BYTES_WANTED,
    FORMAT_KEY,
    SCHEMA_KEY,
    ValueDecoder,
    ValueEncoder,
    ValueFormat,
    ValueSchema,
)
from tests.spark.logs import payloads_of

UTC = datetime.UTC
ROW_TYPE = StructType().add("x", IntegerType()).add("y", ArrayType(StringType()))
EVERYTHING = StructType(
    [
        StructField("boolean", BooleanType()),
        StructField("byte", ByteType()),
        StructField("short", ShortType()),
        StructField("integer", IntegerType()),
        StructField("long", LongType()),
        StructField("float", FloatType()),
        StructField("double", DoubleType()),
        StructField("decimal", DecimalType(20, 3)),
        StructField("text", StringType()),
        StructField("bytes", BinaryType()),
        StructField("date", DateType()),
        StructField("timestamp", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("array", ArrayType(DoubleType())),
        StructField("by name", MapType(StringType(), BinaryType())),
        StructField("by number", MapType(IntegerType(), DateType())),
        StructField("row", ROW_TYPE),
    ]
)


def rows_of_everything() -> st.SearchStrategy[dict[str, Any]]:
    dates = st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))
    local = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "byte": st.integers(-(2**7), 2**7 - 1),
        "short": st.integers(-(2**15), 2**15 - 1),
        "integer": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32),
        "double": st.floats(),
        "decimal": st.decimals(-(10**16), 10**16, places=3),
        "text": texts,
        "bytes": st.binary(max_size=5),
        "date": dates,
        "timestamp": local.map(lambda each: each.replace(tzinfo=UTC)),
        "local": local,
        "array": st.lists(st.none() | st.floats(), max_size=3),
        "by name": st.dictionaries(texts, st.none() | st.binary(max_size=3), max_size=3).map(lambda x: [*x.items()]),
        "by number": st.dictionaries(st.integers(-9, 9), st.none() | dates, max_size=3).map(lambda x: [*x.items()]),
        "row": st.fixed_dictionaries(
            {"x": st.none() | st.integers(-5, 5), "y": st.none() | st.lists(st.none() | texts, max_size=2)}
        ),
    }
    return st.fixed_dictionaries({name: st.none() | each for name, each in strategies.items()})


def named(place: int) -> str:
    return f"position 7:{place}"


def batch_of(value_schema: ValueSchema, rows: list[dict[str, Any]]) -> arrow.RecordBatch:
    return arrow.RecordBatch.from_pylist(rows, schema=value_schema.arrow_schema)


def comparable(rows: list[dict[str, Any]]) -> str:
    """NaN is itself, and 0.0 is not -0.0."""
    return repr(rows)


def decoded(value_schema: ValueSchema, payloads: list[bytes]) -> list[dict[str, Any]]:
    decoder = ValueDecoder(value_schema)
    found = list(decoder.decode("log", arrow.array(payloads, arrow.binary()), named))
    assert all(each.batch.schema.equals(value_schema.arrow_schema) for each in found)
    return [row for each in found for row in each.batch.to_pylist()]


# -- there and back -------------------------------------------------------------------------------------------------


def test_the_option_knows_the_same_formats() -> None:
    assert tuple(map(str, ValueFormat)) == VALUES


@pytest.mark.parametrize("value_format", [ValueFormat.ARROW, ValueFormat.JSON])
@given(rows=st.lists(rows_of_everything(), max_size=4))
def test_rows_come_back_as_they_were(value_format: ValueFormat, rows: list[dict[str, Any]]) -> None:
    value_schema = ValueSchema.of_rows(value_format, EVERYTHING)
    batch = batch_of(value_schema, rows)
    payloads = payloads_of(ValueEncoder(value_schema, "log"), batch)
    assert comparable(decoded(value_schema, payloads)) == comparable(batch.to_pylist())


def test_json_values_are_spelled_as_documented() -> None:
    """It is a format: others read it."""
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, EVERYTHING)
    row = {
        "boolean": True,
        "byte": 1,
        "double": math.nan,
        "float": -math.inf,
        "decimal": decimal.Decimal("1.500"),
        "text": "ä\n",
        "bytes": b"\x00\xff",
        "date": datetime.date(2026, 11, 20),
        "timestamp": datetime.datetime(2026, 11, 20, 17, tzinfo=UTC),
        "local": datetime.datetime(2026, 11, 20, 17, 0, 0, 5),
        "array": [1.5, None, math.inf],
        "by name": [("a", b"b")],
        "by number": [(1, None)],
        "row": {"x": 1, "y": ["z"]},
    }
    [payload] = payloads_of(ValueEncoder(value_schema, "log"), batch_of(value_schema, [row]))
    assert "ä".encode() in payload
    assert json.loads(payload) == {
        "boolean": True,
        "byte": 1,
        "short": None,
        "integer": None,
        "long": None,
        "float": "-Infinity",
        "double": "NaN",
        "decimal": "1.500",
        "text": "ä\n",
        "bytes": "AP8=",
        "date": "2026-11-20",
        "timestamp": "2026-11-20T17:00:00.000000+00:00",
        "local": "2026-11-20T17:00:00.000005",
        "array": [1.5, None, "Infinity"],
        "by name": {"a": "Yg=="},
        "by number": [[1, None]],
        "row": {"x": 1, "y": ["z"]},
    }


def test_json_of_others_is_read_with_missing_fields_as_null() -> None:
    schema = StructType().add("a", LongType()).add("b", DoubleType()).add("c", DecimalType(4, 1))
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, schema)
    assert decoded(value_schema, [b'{"a": 1, "z": []}', b'{"b": 2, "c": 3}', b"{}"]) == [
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": 2.0, "c": decimal.Decimal("3.0")},
        {"a": None, "b": None, "c": None},
    ]


def test_binary_rows_are_the_entries() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.BINARY, StructType().add("whatever", BinaryType(), nullable=False))
    batch = arrow.RecordBatch.from_pydict({"whatever": arrow.array([b"a", b"", b"c"], arrow.binary())})
    assert payloads_of(ValueEncoder(value_schema, "log"), batch) == [b"a", b"", b"c"]
    [rows] = ValueDecoder(value_schema).decode("log", batch.column(0), named)
    assert (rows.batch.to_pydict(), rows.first, rows.is_one_entry) == ({"value": [b"a", b"", b"c"]}, 0, False)
    assert value_schema.arrow_schema == arrow.schema([("value", arrow.binary())])


def test_an_arrow_entry_is_a_stream_of_about_a_megabyte() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.ARROW, StructType().add("x", LongType()).add("y", BinaryType()))
    rows = [{"x": number, "y": bytes(1000)} for number in range(5000)]
    payloads = payloads_of(ValueEncoder(value_schema, "log"), batch_of(value_schema, rows))
    assert 4 <= len(payloads) <= 6
    assert max(map(len, payloads)) < 1.1 * ENTRY_BYTES_WANTED
    assert arrow.ipc.open_stream(payloads[0]).read_all().column("x").to_pylist()[:3] == [0, 1, 2]
    assert decoded(value_schema, payloads) == rows
    found = ValueDecoder(value_schema).decode("log", arrow.array(payloads, arrow.binary()), named)
    assert [(each.first, each.is_one_entry) for each in found] == [(place, True) for place in range(len(payloads))]


def test_long_rows_among_short_ones_still_fit_into_entries() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.ARROW, StructType().add("y", BinaryType()))
    rows = [{"y": b""}] * 60_000 + [{"y": bytes(ENTRY_BYTES_MAX // 3)}] * 5
    payloads = payloads_of(ValueEncoder(value_schema, "log"), batch_of(value_schema, rows))
    assert max(map(len, payloads)) <= ENTRY_BYTES_MAX
    assert decoded(value_schema, payloads) == rows
    too_long = batch_of(value_schema, [{"y": bytes(ENTRY_BYTES_MAX)}])
    with pytest.raises(PayloadTooLargeError, match="split the row"):
        payloads_of(ValueEncoder(value_schema, "log"), too_long)


def test_batches_of_another_time_zone_fit_the_schema() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, StructType().add("t", TimestampType(), nullable=False))
    of_spark = arrow.schema([arrow.field("t", arrow.timestamp("us", "Europe/Berlin"), nullable=False)])
    noon = datetime.datetime(2026, 11, 20, 12, tzinfo=UTC)
    batch = arrow.RecordBatch.from_pylist([{"t": noon}], schema=of_spark)
    assert payloads_of(ValueEncoder(value_schema, "log"), batch) == [b'{"t":"2026-11-20T12:00:00.000000+00:00"}']


# -- what cannot be written -----------------------------------------------------------------------------------------


def test_unwritable_schemas_are_refused_column_by_column() -> None:
    intervals = StructType().add("d", DayTimeIntervalType()).add("c", ArrayType(CalendarIntervalType()))
    nested = intervals.add("m", MapType(StringType(), StructType().add("i", CalendarIntervalType())))
    with pytest.raises(ConfigError) as caught:
        ValueSchema.of_rows(ValueFormat.JSON, nested)
    for column in ("'d'", "'c'[]", "the values of 'm'.i"):
        assert f"column {column} is of type" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        ValueSchema.of_rows(ValueFormat.ARROW, nested)
    assert "'d'" not in str(caught.value)
    with pytest.raises(ConfigError, match="column 'a' is there twice"):
        ValueSchema.of_rows(ValueFormat.ARROW, StructType().add("a", LongType()).add("a", LongType()))
    with pytest.raises(ConfigError, match="no column"):
        ValueSchema.of_rows(ValueFormat.ARROW, StructType())
    many = StructType([StructField(f"column number {number}", LongType()) for number in range(1000)])
    with pytest.raises(ConfigError, match="longer than 65536 bytes"):
        ValueSchema.of_rows(ValueFormat.ARROW, many)


@pytest.mark.parametrize(
    "schema", [StructType().add("value", LongType()), StructType().add("a", BinaryType()).add("b", LongType())]
)
def test_binary_needs_one_column_of_bytes_and_says_how_to_get_it(schema: StructType) -> None:
    with pytest.raises(ConfigError, match=r'cast\("string"\)') as caught:
        ValueSchema.of_rows(ValueFormat.BINARY, schema)
    for field in schema:
        assert f"{field.name} {field.dataType.simpleString()}" in str(caught.value)


def test_texts_become_entries_of_utf8() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.BINARY, StructType().add("text", StringType()))
    assert value_schema.custom() == {FORMAT_KEY: "binary"}
    for of_type in (arrow.string(), arrow.large_string(), arrow.large_binary()):
        batch = arrow.RecordBatch.from_pydict({"text": arrow.array(["", "grün"], arrow.string()).cast(of_type)})
        assert payloads_of(ValueEncoder(value_schema, "log"), batch) == [b"", "grün".encode()]


def test_a_null_is_refused_as_an_entry() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.BINARY, StructType().add("value", BinaryType()))
    batch = arrow.RecordBatch.from_pydict({"value": arrow.array([b"a", None], arrow.binary())})
    with pytest.raises(SchemaMismatchError, match=r"'value' is null \(row 1 of a batch\)"):
        payloads_of(ValueEncoder(value_schema, "log"), batch)


@pytest.mark.parametrize("value_format", list(ValueFormat))
def test_batches_of_other_columns_are_refused(value_format: ValueFormat) -> None:
    schema = StructType().add("x", BinaryType())
    encoder = ValueEncoder(ValueSchema.of_rows(value_format, schema), "log")
    for columns in ({"x": [1.5]}, {"x": [b""], "y": [1]}):
        with pytest.raises(SchemaMismatchError, match="rows with the columns"):
            payloads_of(encoder, arrow.RecordBatch.from_pydict(columns))


def test_unrepresentable_timestamp_names_its_column() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, StructType().add("when", TimestampType()))
    batch = batch_of(value_schema, [{"when": 2**62}])
    with pytest.raises(SchemaMismatchError, match="column 'when'"):
        payloads_of(ValueEncoder(value_schema, "log"), batch)


# -- what cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "payload"),
    [
        ("boolean", {"boolean": 1}),
        ("integer", {"integer": True}),
        ("integer", {"integer": 1.0}),
        ("byte", {"byte": 128}),
        ("long", {"long": 2**63}),
        ("double", {"double": "1"}),
        ("decimal", {"decimal": "one"}),
        ("decimal", {"decimal": 1.5}),
        ("decimal", {"decimal": "1.2345"}),
        ("text", {"text": 1}),
        ("bytes", {"bytes": "?"}),
        ("date", {"date": "20.11.2026"}),
        ("timestamp", {"timestamp": "2026-11-20T17:00:00"}),
        ("local", {"local": "2026-11-20T17:00:00+00:00"}),
        ("array", {"array": {}}),
        ("by name", {"by name": [["a", None]]}),
        ("by number", {"by number": [[1]]}),
        ("by number", {"by number": [1]}),
        ("row", {"row": []}),
        ("row", {"row": {"x": ""}}),
    ],
)
def test_unfitting_json_names_entry_and_column(column: str, payload: dict[str, Any]) -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, EVERYTHING)
    with pytest.raises(SchemaMismatchError, match=rf"column '{column}' of position 7:1") as caught:
        decoded_at_1 = ValueDecoder(value_schema)
        list(decoded_at_1.decode("log", arrow.array([json.dumps(payload).encode()]), lambda place: named(place + 1)))
    assert 'option("values", "binary")' in str(caught.value)
    assert caught.value.log_name == "log"


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_entry_is_named_when_it_is_not_a_json_object(payload: bytes) -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, EVERYTHING)
    with pytest.raises(SchemaMismatchError, match=r"position 7:1 is not (a )?JSON"):
        decoded(value_schema, [b"{}", payload])


def test_an_entry_of_another_schema_is_named() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.ARROW, StructType().add("x", LongType()))
    [good] = payloads_of(ValueEncoder(value_schema, "log"), batch_of(value_schema, [{"x": 1}]))
    other_schema = ValueSchema.of_rows(ValueFormat.ARROW, StructType().add("x", IntegerType()))
    [other] = payloads_of(ValueEncoder(other_schema, "log"), batch_of(other_schema, [{"x": 1}]))
    with pytest.raises(SchemaMismatchError, match="position 7:1 has other columns than the log's schema: x int32"):
        decoded(value_schema, [good, other])
    for broken in (b"", b"no arrow", good[: len(good) // 2]):
        with pytest.raises(SchemaMismatchError, match="position 7:1 is not an Arrow stream"):
            decoded(value_schema, [good, broken])


# -- what the log says ----------------------------------------------------------------------------------------------


def held(value_schema: ValueSchema, next_segment_number: int = 2) -> LogMetadata:
    segments = tuple(Segment(number, number) for number in range(1, next_segment_number))
    return LogMetadata("log", segments=segments, next_segment_number=next_segment_number, custom=value_schema.custom())


def test_the_schema_is_in_the_logs_metadata() -> None:
    value_schema = ValueSchema.of_rows(ValueFormat.JSON, EVERYTHING)
    found = ValueSchema.of_log(held(value_schema))
    assert found == value_schema
    assert found.schema == EVERYTHING
    assert pickle.loads(pickle.dumps(found)).arrow_schema == value_schema.arrow_schema


def test_log_without_metadata_is_binary() -> None:
    plain = LogMetadata("log", segments=(Segment(1, 1),), next_segment_number=2)
    binary = ValueSchema.of_rows(ValueFormat.BINARY, StructType().add("value", BinaryType()))
    assert ValueSchema.of_log(plain) == binary
    assert binary.custom() == {FORMAT_KEY: "binary"}
    assert ValueSchema.of_log(held(binary)) == binary
    binary.check_appendable("log", plain)


def test_an_append_must_agree_column_by_column() -> None:
    schema = StructType().add("a", LongType()).add("b", StringType()).add("c", ArrayType(LongType()))
    log = held(ValueSchema.of_rows(ValueFormat.ARROW, schema))
    without_nulls = StructType().add("a", LongType(), nullable=False).add("b", StringType(), metadata={"comment": "x"})
    ValueSchema.of_rows(
        ValueFormat.ARROW, without_nulls.add("c", ArrayType(LongType(), containsNull=False))
    ).check_appendable("log", log)
    other = StructType().add("a", IntegerType()).add("d", LongType()).add("c", ArrayType(StringType()))
    with pytest.raises(SchemaMismatchError) as caught:
        ValueSchema.of_rows(ValueFormat.ARROW, other).check_appendable("log", log)
    for said in (
        "column 'a' is bigint in the log, and int here",
        "column 'b' (string) is missing",
        "column 'c' is array<bigint> in the log, and array<string> here",
        "column 'd' is not in the log",
    ):
        assert said in str(caught.value)
    reordered = StructType([schema["b"], schema["a"], schema["c"]])
    with pytest.raises(SchemaMismatchError, match="the log's order is a, b, c"):
        ValueSchema.of_rows(ValueFormat.ARROW, reordered).check_appendable("log", log)


def test_an_append_repeats_the_schema_as_the_log_spells_it() -> None:
    """Another version of Spark may write a schema otherwise, and the log's metadata must not change."""
    mine = ValueSchema.of_rows(ValueFormat.JSON, EVERYTHING)
    of_another_spark = json.dumps({**json.loads(mine.schema_json), "collation": None}, indent=1)
    log = LogMetadata("log", custom={FORMAT_KEY: "json", SCHEMA_KEY: of_another_spark}, next_segment_number=2)
    assert mine.check_appendable("log", log).custom() == log.custom != mine.custom()
    assert mine.check_appendable("log", None) is mine


OLD = StructType().add("x", LongType()).add("y", StringType())
NEW = StructType([*OLD]).add("z", LongType(), nullable=False)


def extended_log(value_format: ValueFormat, *fields: StructType) -> tuple[ValueSchema, LogMetadata]:
    """The values of a log to which a job after the other has added columns."""
    log = held(ValueSchema.of_rows(value_format, OLD))
    found = ValueSchema.of_log(log)
    schema = OLD
    for added in fields:
        schema = StructType([*schema, *added])
        found = ValueSchema.of_rows(value_format, schema).check_appendable("log", log, True)
        log = held(found)
    return found, log


@pytest.mark.parametrize("value_format", [ValueFormat.ARROW, ValueFormat.JSON])
def test_added_columns_are_null_in_older_rows(value_format: ValueFormat) -> None:
    """Each of three writers, of different age, is read by each of three readers."""
    more = StructType().add("w", StringType())
    newest, log = extended_log(value_format, StructType().add("z", LongType()), more)
    assert ValueSchema.of_log(log) == newest
    assert list(newest.custom()) == [FORMAT_KEY, SCHEMA_KEY, "spark.schema.2", "spark.schema.3"]
    row = {"x": 1, "y": "one", "z": 3, "w": "four"}
    middle, _ = extended_log(value_format, StructType().add("z", LongType()))
    readers = [ValueSchema.of_rows(value_format, OLD), middle, newest]
    schemas = [ValueSchema.of_rows(value_format, StructType(list(newest.schema)[:count])) for count in (2, 3, 4)]
    for writer in schemas:
        written = {name: row[name] for name in writer.schema.names}
        assert writer.check_appendable("log", log) == newest, "one that was begun before goes on"
        payloads = payloads_of(ValueEncoder(writer, "log"), batch_of(writer, [written]))
        for reader in readers:
            assert decoded(reader, payloads) == [{name: written.get(name) for name in reader.schema.names}]


def test_columns_are_added_only_on_demand_and_behind_all_others() -> None:
    log = held(ValueSchema.of_rows(ValueFormat.JSON, OLD))
    with pytest.raises(SchemaMismatchError, match=r"column 'z' is not in the log; .*merge_schema"):
        ValueSchema.of_rows(ValueFormat.JSON, NEW).check_appendable("log", log)
    refused = [
        (StructType().add("x", LongType()), "column 'y' .string. is missing"),
        (
            StructType().add("x", LongType()).add("z", LongType()),
            "column 'y' .string. is missing; column 'z' is not in",
        ),
        (StructType().add("z", LongType()).add("x", LongType()).add("y", StringType()), "column 'z' is not in the log"),
        (StructType([*NEW]).add("y2", LongType()).add("x2", LongType()), None),
    ]
    for schema, told in refused:
        wanted = ValueSchema.of_rows(ValueFormat.JSON, schema)
        if told is None:
            assert wanted.check_appendable("log", log, True).schema == wanted.schema
        else:
            with pytest.raises(SchemaMismatchError, match=told):
                wanted.check_appendable("log", log, True)
    _, extended = extended_log(ValueFormat.JSON, StructType().add("z", LongType()))
    other = ValueSchema.of_rows(ValueFormat.JSON, StructType([*OLD]).add("q", LongType()))
    with pytest.raises(SchemaMismatchError, match=r"column 'z' \(bigint\) is missing; column 'q' is not in the log"):
        other.check_appendable("log", extended, True)


def test_an_arrow_entry_must_have_the_first_columns() -> None:
    reader, _ = extended_log(ValueFormat.ARROW, StructType().add("z", LongType()))
    short = ValueSchema.of_rows(ValueFormat.ARROW, StructType().add("x", LongType()))
    [payload] = payloads_of(ValueEncoder(short, "log"), batch_of(short, [{"x": 1}]))
    with pytest.raises(SchemaMismatchError, match="position 7:0 has other columns than the log's schema: x int64"):
        decoded(reader, [payload])


def test_formats_are_not_mixed_and_an_empty_log_takes_any() -> None:
    schema = StructType().add("value", BinaryType())
    formats = {each: ValueSchema.of_rows(each, schema) for each in ValueFormat}
    for mine, value_schema in formats.items():
        value_schema.check_appendable("log", None)
        value_schema.check_appendable("log", LogMetadata("log"))
        for others, other in formats.items():
            if mine is others:
                value_schema.check_appendable("log", held(other))
            else:
                with pytest.raises(SchemaMismatchError, match=f"its values are {others}, and {mine} was to be"):
                    value_schema.check_appendable("log", held(other))


@pytest.mark.parametrize(("first", "second"), [("binary", "json"), ("json", "binary"), ("arrow", "json")])
async def test_jobs_beginning_a_log_at_the_same_time_agree_too(first: str, second: str, tmp_path: Path) -> None:
    """Each has looked before, and found no log; the log's record is what decides."""
    schema = StructType().add("value", BinaryType())
    wanted = [ValueSchema.of_rows(ValueFormat(each), schema) for each in (first, second)]
    async with replog.embed(tmp_path) as client:
        ledger_ids = []
        for _ in wanted:
            async with client.create_ledger(custom={"log": "log", "job": "job"}) as writer:
                ledger_ids.append(writer.ledger_id)
        await client.jobs.append_ledgers("log", ledger_ids[:1], custom=wanted[0].custom())
        with pytest.raises(CustomMismatchError, match=FORMAT_KEY):
            await client.jobs.append_ledgers("log", ledger_ids[1:], custom=wanted[1].custom())
        metadata = await client.log_metadata("log")
        assert [each.ledger_id for each in metadata.segments] == ledger_ids[:1]
        assert ValueSchema.of_log(metadata) == wanted[0]
        wanted[0].check_appendable("log", metadata)


@pytest.mark.parametrize(
    "custom",
    [
        {FORMAT_KEY: "yaml", SCHEMA_KEY: StructType().add("a", LongType()).json()},
        {FORMAT_KEY: "json"},
        {FORMAT_KEY: "json", SCHEMA_KEY: "{"},
        {FORMAT_KEY: "json", SCHEMA_KEY: "[]"},
        {FORMAT_KEY: "json", SCHEMA_KEY: '{"type": "struct", "fields": [{"name": "a", "type": "later"}]}'},
        {FORMAT_KEY: "json", SCHEMA_KEY: StructType().add("a", CalendarIntervalType()).json()},
    ],
)
def test_metadata_of_unknown_form_is_refused(custom: dict[str, str]) -> None:
    with pytest.raises(SchemaMismatchError, match="can't be read"):
        ValueSchema.of_log(LogMetadata("log", custom=custom))
