"""Rows made of stored batches: what each column has."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from replog.client.entries import EntryBatch
from replog.errors import ConfigError, SchemaMismatchError
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.effects import Delivered
from replog.protocol.model import Position
from replog.spark.columns import Columns, check_schema, places_of, positions, schema_of_rows
from replog.spark.read_options import ReadOptions
from replog.spark.rows import LogBatchReader
from replog.spark.values import ValueEncoder, ValueFormat, ValueSchema
from tests.spark.logs import payloads_of

DIGEST = Digest(DigestType.CRC32C, 7, b"")
NOON_NS = 1_795_176_000_000_000_000
PLACES = ["_position", "_segment", "_entry", "_timestamp"]


def batch(first: int, payloads: list[bytes], timestamp_ns: int = NOON_NS, stride: int = 1) -> Batch:
    return build(
        DIGEST,
        ledger_id=7,
        first_entry_id=first,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=timestamp_ns,
        cumulative_length=0,
    )


def entries(first: int, payloads: list[bytes], timestamp_ns: int = NOON_NS) -> EntryBatch:
    return EntryBatch(Delivered(first, first + len(payloads) - 1, (batch(first, payloads, timestamp_ns),)))


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def rows(columns: Columns, batches: list[EntryBatch]) -> list[dict[str, Any]]:
    found = list(columns.record_batches("log", 17, batches))
    for each in found:
        each.validate(full=True)
    return pyarrow.Table.from_batches(found).to_pylist()


def schema(*columns: str) -> StructType:
    found = StructType()
    for column in columns:
        name, of_type = column.split(" ")
        found = found.add(name, of_type)
    return found


def test_entries_as_they_are() -> None:
    columns = Columns(schema_of_rows(None), None)
    later = NOON_NS + 5_000_999
    found = rows(columns, [entries(3, numbered(3, 4)), entries(7, numbered(7, 1), later), entries(8, numbered(8, 2))])
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert found == [
        {
            "position": f"17:{number}",
            "segment": 17,
            "entry": number,
            "timestamp": noon.replace(microsecond=5000) if number == 7 else noon,
            "value": b"%d" % number,
        }
        for number in range(3, 10)
    ]


def test_spark_gets_its_requested_schema() -> None:
    """It compares them to the letter, and names of other order or types are refused."""
    for wanted in (schema_of_rows(None), schema("value binary"), schema("entry long", "position string")):
        (found,) = Columns(wanted, None).record_batches("log", 17, [entries(0, [b"x"])])
        assert found.schema.equals(to_arrow_schema(wanted, timezone="UTC"))


def test_logs_and_texts_are_columns_on_demand() -> None:
    wanted = schema("log string", "value string")
    assert schema_of_rows(None, True).names == ["log", *schema_of_rows(None).names]
    columns = Columns(wanted, None)
    check_schema(wanted, None, "log")
    assert rows(columns, [entries(0, ["grün".encode(), b""])]) == [
        {"log": "log", "value": "grün"},
        {"log": "log", "value": ""},
    ]
    with pytest.raises(SchemaMismatchError, match='position 17:4 is not UTF-8: ask for "value binary"'):
        rows(columns, [entries(3, [b"fine", b"\xff", b"\xfe"])])
    own = ValueSchema.of_rows(ValueFormat.JSON, schema("_log long", "log string"))
    assert schema_of_rows(own, True).names == ["_log", "log"]
    assert places_of(own) == {f"_{name}": name for name in ("position", "segment", "entry", "timestamp")}


def test_a_part_of_a_batch_and_striped_ones() -> None:
    part = EntryBatch(Delivered(4, 5, (batch(3, numbered(3, 4)),)))
    striped = EntryBatch(
        Delivered(6, 9, tuple(batch(6 + k, [b"%d" % (6 + k), b"%d" % (8 + k)], stride=2) for k in (0, 1)))
    )
    found = rows(Columns(schema("entry long", "value binary"), None), [part, striped])
    assert [(row["entry"], row["value"]) for row in found] == [(number, b"%d" % number) for number in range(4, 10)]


def test_large_entry_ids_and_many_rows() -> None:
    first = (1 << 62) + 5
    found = rows(Columns(schema("position string", "entry long"), None), [entries(first, [b""] * 5000)])
    assert [row["entry"] for row in found] == list(range(first, first + 5000))
    assert found[-1]["position"] == f"17:{first + 4999}"


RECORDS = schema("name string", "timestamp timestamp", "count long")


def encoded(value_format: ValueFormat, count: int) -> tuple[ValueSchema, list[bytes]]:
    values = ValueSchema.of_rows(value_format, RECORDS)
    table = pyarrow.RecordBatch.from_pylist(
        [{"name": f"n{number}", "timestamp": NOON_NS // 1000, "count": number} for number in range(count)],
        schema=values.arrow_schema,
    )
    encoder = ValueEncoder(values, "log")
    return values, payloads_of(encoder, table.slice(0, 3)) + payloads_of(encoder, table.slice(3))


@pytest.mark.parametrize(("value_format", "entries_of_rows"), [("json", range(8)), ("arrow", [0] * 3 + [1] * 5)])
def test_rows_of_any_schema(value_format: str, entries_of_rows: Any) -> None:
    values, payloads = encoded(ValueFormat(value_format), 8)
    assert schema_of_rows(values).names == ["name", "timestamp", "count"]
    found = rows(Columns(values.schema, values), [entries(0, payloads)])
    assert [row["count"] for row in found] == list(range(8))
    wanted = StructType([*schema("_position string", "_entry long", "_segment long"), *values.schema.fields[:1]])
    wanted = wanted.add("_timestamp", "timestamp")
    check_schema(wanted, values, "log")
    found = rows(Columns(wanted, values), [entries(0, payloads)])
    assert [list(row.values())[:4] for row in found] == [
        [f"17:{entry}", entry, 17, f"n{number}"] for number, entry in enumerate(entries_of_rows)
    ]
    assert {row["_timestamp"] for row in found} == {datetime(2026, 11, 20, 12, tzinfo=UTC)}


def test_unfitting_entry_is_named() -> None:
    values, payloads = encoded(ValueFormat.JSON, 8)
    wrong = json.dumps({"name": 1}).encode()
    with pytest.raises(SchemaMismatchError, match="position 17:48"):
        rows(Columns(values.schema, values), [entries(40, [*payloads, wrong])])


def test_missing_columns_are_refused() -> None:
    values, _ = encoded(ValueFormat.JSON, 8)
    check_schema(schema("count long"), values, "log")
    for wrong, told in (
        (schema("position string"), "asks for position string, and there are: name string"),
        (schema("count integer"), "asks for count int"),
        (schema(), "no column"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_schema(wrong, values, "log")
    own = ValueSchema.of_rows(ValueFormat.JSON, schema("_entry string"))
    check_schema(schema("_entry string", "_segment long"), own, "log")  # the log's own column comes first


def test_omitted_batches_leave_a_gap() -> None:
    """Clocks of writers may go back: rows of other times lie between those that are wanted, and keep their positions."""
    options = {"metastore": "zookeeper://zk1/prod", "log": "orders", "values": "binary", "from": "2026-11-20T12:00:00Z"}
    wanted = schema("position string", "value binary")
    reader = LogBatchReader(ReadOptions.parse(options), wanted)
    times = [-1, 0, 5, -7, -8, 3, -1]
    stored = [entries(2 * place, numbered(2 * place, 2), NOON_NS + time) for place, time in enumerate(times)]
    runs = list(reader._wanted(stored))
    assert [[batch.first_entry_id for batch in run] for run in runs] == [[2, 4], [10]]
    found = [row for run in runs for row in rows(Columns(wanted, None), run)]
    assert [row["position"] for row in found] == [f"17:{row['value'].decode()}" for row in found]
    assert len(found) == 6


@pytest.mark.parametrize(
    "first", [0, 5, 990, 998, 999, 1000, 1001, 1999, 8_999, 9_998, 12_345, 99_001, 1_000_000, 2**62]
)
@pytest.mark.parametrize("count", [1, 2, 3, 999, 1000, 1001, 2500])
def test_positions_are_texts_of_segment_and_entry(first: int, count: int) -> None:
    found = positions(17, first, count)
    found.validate(full=True)
    assert found.type == pyarrow.string()
    assert found.to_pylist() == [str(Position(17, entry)) for entry in range(first, first + count)]


def test_positions_of_no_entries_are_none() -> None:
    assert positions(17, 4000, 0).to_pylist() == []


def sizes_of(columns: Columns, batches: list[EntryBatch]) -> list[int]:
    return [each.num_rows for each in columns.record_batches("log", 17, batches)]


def test_large_stored_batches_are_record_batches_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.spark.columns._JOINED_BYTES", 1000)
    columns = Columns(schema("value binary"), None)
    large = [entries(0, [b"x" * 100] * 20), entries(20, [b"y" * 100] * 20)]
    found = list(columns.record_batches("log", 17, large))
    assert [each.num_rows for each in found] == [20, 20]
    for made, stored in zip(found, large, strict=True):
        value_buffers = [column.buffers()[2].address for column in (made.column(0), stored.to_arrow())]
        assert value_buffers[0] == value_buffers[1]


def test_small_stored_batches_are_joined_to_a_record_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.spark.columns._JOINED_BYTES", 1000)
    columns = Columns(schema("position string", "value binary"), None)
    small = [entries(first, [b"x" * 10] * 10) for first in range(0, 100, 10)]
    assert sum(sizes_of(columns, small)) == 100
    assert 1 < len(sizes_of(columns, small)) < 10
    found = rows(columns, [*small, entries(100, [b"y" * 100] * 20), *(entries(first, [b"z"]) for first in (120, 121))])
    assert [each["position"] for each in found] == [f"17:{entry}" for entry in range(122)]
    assert [each["value"][:1] for each in found] == [b"x"] * 100 + [b"y"] * 20 + [b"z"] * 2
