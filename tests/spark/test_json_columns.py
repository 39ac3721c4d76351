"""JSON by columns: it means what JSON value by value means, and leaves to that what it can't do."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as arrow
import pytest

from replog.spark.json_columns import ColumnReader, is_readable, texts_of
from replog.spark.json_values import JsonReader, JsonWriter, MalformedError

UTC = arrow.timestamp("us", tz="UTC")
SCHEMA = arrow.schema(
    [
        ("i", arrow.int64()),
        ("b", arrow.int8()),
        ("f", arrow.float64()),
        ("g", arrow.float32()),
        ("t", arrow.bool_()),
        ("s", arrow.string()),
        ('a "name"\n', arrow.string()),
        ("d", arrow.decimal128(12, 3)),
        ("day", arrow.date32()),
        ("at", UTC),
        ("local", arrow.timestamp("us")),
        ("raw", arrow.binary()),
        ("l", arrow.list_(arrow.field("element", arrow.int32()))),
        ("r", arrow.struct([("x", arrow.int64()), ("y", arrow.string())])),
    ]
)
TEXTS = [
    "",
    "plain",
    "grün 😀",
    'a "quote"',
    "back\\slash",
    "line\nbreak\ttab\r",
    "\x01 control",
    "\u2028",
    "{",
    "}",
    "\x7f",
]


def value(chance: random.Random, of_type: arrow.DataType) -> Any:
    if chance.random() < 0.2:
        return None
    kind = str(of_type)
    second = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        days=chance.choice([0, 1, 719_162, 739_000, 3_652_058]), microseconds=chance.randrange(86_400_000_000)
    )
    found: dict[str, Any] = {
        "int64": chance.choice([0, -1, (1 << 63) - 1, -(1 << 63), chance.randrange(1000)]),
        "int8": chance.randrange(-128, 128),
        "double": chance.choice([0.0, -0.0, 1.0, 1e300, 5e-324, 0.1, -1e16, chance.random()]),
        "float": chance.choice([1.0, 0.5, 1e30, -2.0]),
        "bool": chance.random() < 0.5,
        "string": "".join(chance.choice(TEXTS) for _ in range(chance.randrange(3))),
        "decimal128(12, 3)": decimal.Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-3),
        "date32[day]": second.date(),
        "timestamp[us, tz=UTC]": second,
        "timestamp[us]": second.replace(tzinfo=None),
        "binary": chance.randbytes(chance.randrange(5)),
        "list<element: int32>": [chance.choice([None, 1, -5])] * chance.randrange(3),
        "struct<x: int64, y: string>": {"x": 1, "y": chance.choice([None, *TEXTS])},
    }
    return found[kind]


@pytest.mark.parametrize("seed", range(10))
def test_both_ways_mean_the_same(seed: int) -> None:
    chance = random.Random(seed)
    plain = seed % 2 == 0
    rows = [{field.name: value(chance, field.type) for field in SCHEMA} for _ in range(50)]
    if plain:  # nothing that the fast way leaves to the slow one
        rows = [{**row, "s": (row["s"] or "").replace("\x01", "")} for row in rows]
    batch = arrow.RecordBatch.from_pylist(rows, SCHEMA)
    payloads = JsonWriter(SCHEMA).texts(batch).cast(arrow.binary()).to_pylist()
    for payload, row in zip(payloads, rows, strict=True):
        found = json.loads(payload)
        assert list(found) == SCHEMA.names
        assert {name: found[name] for name in "ibtslr"} == {name: row[name] for name in "ibtslr"}
        assert found["f"] is None or (type(found["f"]) is float and math.copysign(1, found["f"]) * 0 == 0)
    entries = arrow.array(payloads, arrow.binary())
    slow = JsonReader(SCHEMA)._by_value(payloads, str)
    fast = ColumnReader(SCHEMA).batch(entries)
    assert fast is not None, "it reads whatever was written here"
    assert fast.to_pylist() == slow.to_pylist() == batch.to_pylist()
    assert fast.schema == SCHEMA
    fast.validate(full=True)


def test_columns_arrow_writes_differently_take_the_slow_way() -> None:
    left = {
        "a float that is no number": arrow.array([1.0, math.nan]),
        "an exponent": arrow.array([decimal.Decimal("1E-10")], arrow.decimal128(20, 10)),
        "a year before 1": arrow.array([-719_163], arrow.int32()).cast(arrow.date32()),
        "a year after 9999": arrow.array([253_402_300_800_000_000], arrow.int64()).cast(UTC),
        "a map": arrow.array([[("a", 1)]], arrow.map_(arrow.string(), arrow.int64())),
        "a control character": arrow.array(["\x01"]),
    }
    assert [why for why, column in left.items() if texts_of(column) is not None] == []


NUMBERS = arrow.schema([("a", arrow.int64())])
STRINGS = arrow.schema([("a", arrow.string())])
LEFT = [
    (NUMBERS, [b'{"a":1}{"a":2}', b'{"a":3}'], "two objects in one entry"),
    (NUMBERS, [b'{"a":1', b"}"], "an object in two entries"),
    (NUMBERS, [b'{"a":{}', b'{"a":1}}'], "an object that goes on in the next entry"),
    (NUMBERS, [b'{"a":1}{"a":2}', b'{"b":', b"1}"], "as many objects as entries, and not in them"),
    (NUMBERS, [b' {"a":1}'], "white space"),
    (NUMBERS, [b'{"a":\n1}'], "a line break"),
    (NUMBERS, [b'{"a":1}\x00}'], "a zero byte"),
    (NUMBERS, [b'{"a":1.0}'], "another number"),
    (NUMBERS, [b'{"a":1,"a":2}'], "a name twice"),
    (NUMBERS, [b""], "nothing"),
    (NUMBERS, [b"[1]"], "a list"),
    (STRINGS, [b'{"a":"\xff"}'], "no UTF-8"),
    (STRINGS, [b'{"a":"\\ud800"}'], "half a character"),
    (STRINGS, [b'{"a":"x}', b'{y"}'], "a text over two entries"),
    (arrow.schema([("a", arrow.decimal128(5, 1))]), [b'{"a":"1.55"}'], "more digits"),
    (arrow.schema([("a", UTC)]), [b'{"a":"2026-11-20T17:00:00"}'], "no offset"),
    (arrow.schema([("a", arrow.timestamp("us"))]), [b'{"a":"2026-11-20T17:00:00Z"}'], "an offset"),
    (arrow.schema([("a", arrow.date32())]), [b'{"a":"20261120"}'], "another date"),
    (arrow.schema([("a", arrow.binary())]), [b'{"a":"%"}'], "no base64"),
    (arrow.schema([("a", arrow.float64())]), [b'{"a":"NaN"}'], "a float that is no number"),
]


@pytest.mark.parametrize(("schema", "payloads", "why"), LEFT, ids=[each[2] for each in LEFT])
def test_unreadable_values_are_left_alone(schema: arrow.Schema, payloads: list[bytes], why: str) -> None:
    entries = arrow.array(payloads, arrow.binary())
    assert ColumnReader(schema).batch(entries) is None, why
    reader = JsonReader(schema)
    assert outcome(lambda: reader.batch(entries, str)) == outcome(lambda: reader._by_value(payloads, str))


def outcome(read: Callable[[], arrow.RecordBatch]) -> str:
    """The rows, or what the user is told."""
    try:
        return repr(read().to_pylist())
    except MalformedError as error:
        return str(error)


def test_maps_are_read_value_by_value() -> None:
    schema = arrow.schema([("m", arrow.map_(arrow.string(), arrow.int64()))])
    assert not is_readable(schema)
    assert JsonReader(schema).batch(arrow.array([b'{"m":{"a":1}}'], arrow.binary()), str).to_pylist() == [
        {"m": [("a", 1)]}
    ]


def test_entries_longer_than_a_block() -> None:
    texts = ["x" * size for size in (5, 300_000, 7, 100_000)]
    found = ColumnReader(STRINGS).batch(
        arrow.array([json.dumps({"a": each}).encode() for each in texts], arrow.binary())
    )
    assert found is not None
    assert found.column(0).to_pylist() == texts


@pytest.mark.parametrize("special", [*map(chr, range(0x20)), '"', "\\"])
def test_text_is_escaped_when_one_row_needs_it(special: str) -> None:
    column = arrow.array(["plain", None, f"a{special}b", "plain"], arrow.string())
    (written,) = {
        "".join(JsonWriter(arrow.schema([("s", arrow.string())])).texts(batch).to_pylist()) for batch in batches(column)
    }
    assert written == "".join(json.dumps({"s": each}, separators=(",", ":")) for each in column.to_pylist())
    assert texts_in(column.slice(3)) == ['"plain"'], "a part that needs none"
    assert texts_in(column.slice(0, 0)) == []


def texts_in(column: arrow.Array) -> list[str | None]:
    found = texts_of(column)
    assert found is not None
    return list(found.to_pylist())


def batches(column: arrow.Array) -> list[arrow.RecordBatch]:
    """The same values from the beginning of a column and from within one."""
    longer = arrow.concat_arrays([arrow.array(["before"]), column, arrow.array(["behind"])])
    return [arrow.RecordBatch.from_arrays([each], names=["s"]) for each in (column, longer.slice(1, len(column)))]


def test_plain_texts_are_not_searched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.spark.json_columns._ESCAPED", None)  # the search would raise
    assert texts_in(arrow.array(["plain", None, "gr\u00fcn", ""])) == ['"plain"', None, '"gr\u00fcn"', '""']
    assert texts_in(arrow.array([None, None], arrow.string())) == [None, None]
