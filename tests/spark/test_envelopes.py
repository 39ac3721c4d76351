"""Rows of `foreachPartition` as entries with keys and headers, by functions or by columns."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

import replog.blocking
import replog.spark
from replog.errors import ConfigError
from replog.protocol.envelope import Enveloped, pack
from replog.spark.envelopes import RowEncoder, headers_of
from tests.servers.bookies import Bookies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = RowEncoder()


@pytest.mark.parametrize(
    ("row", "entry"),
    [
        (b"plain", b"plain"),
        (bytearray(b"plain"), b"plain"),
        (Row(any=bytearray(b"plain")), b"plain"),
        (Row(value="text", key="k"), pack(b"text", key=b"k")),
        (Row(value=bytearray(b"v"), key=bytearray(b"k")), pack(b"v", key=b"k")),
        (Row(key=b"k", value=None), pack(None, key=b"k")),
        (Row(value=b"v", key=None, headers=None), b"v"),
        (Row(value=b"v", headers={"a": bytearray(b"1")}), pack(b"v", headers={"a": b"1"})),
        (Row(value=b"v", headers=[Row(key="a", value=bytearray(b"1"))]), pack(b"v", headers={"a": b"1"})),
    ],
)
def test_columns_are_the_parts_of_an_entry(row: Any, entry: bytes) -> None:
    found = COLUMNS(row)
    assert (found, type(found)) == (entry, type(entry))


def test_functions_make_the_parts_of_an_entry() -> None:
    row = Row(id=7, value=b"not used", key=b"neither")
    encoder = RowEncoder(lambda row: b"%d" % row.id, lambda _: b"k", lambda _: {"a": b"1"})
    assert encoder(row) == pack(b"7", key=b"k", headers={"a": b"1"})
    plain = RowEncoder(lambda row: b"%d" % row.id)(row)
    assert (plain, type(plain)) == (b"7", bytes)
    tombstone = RowEncoder(lambda _: None, lambda _: b"k")(row)
    assert (tombstone, type(tombstone)) == (pack(None, key=b"k"), Enveloped)
    assert RowEncoder(key=lambda row: row.id)(Row(id=b"k")) == pack(b"k", key=b"k")


@pytest.mark.parametrize(
    ("encoder", "row", "told"),
    [
        (COLUMNS, Row(id=1), "say how to make bytes"),
        (COLUMNS, Row(value=b"v", topic="t"), "a row of value, topic"),
        (COLUMNS, Row(value=None, headers=None), "only one with a key may have no value"),
        (COLUMNS, Row(value=b"v", key=1), "a key must be bytes, not int"),
        (COLUMNS, Row(value=b"v", headers=[Row(key="a", value=None)]), "not of str to NoneType"),
        (RowEncoder(lambda _: b"v", headers=lambda _: [("a", b"1"), ("a", b"2")]), b"", "headers 'a' are there twice"),
    ],
)
def test_rows_are_refused_when_they_cannot_be_entries(encoder: RowEncoder, row: Any, told: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=told):
        encoder(row)


def test_headers_are_a_mapping_or_pairs() -> None:
    wanted = {"a": b"1", "b": b""}
    for found in (wanted, list(wanted.items()), [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]):
        assert headers_of(found) == wanted
    assert headers_of(None) is None
    assert headers_of([]) == {}


def test_encoders_of_columns_are_pickled_with_their_job() -> None:
    assert pickle.loads(pickle.dumps(COLUMNS)) == COLUMNS


@pytest.mark.needs_spark
def test_job_writes_keys_and_headers_from_functions_or_columns(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str
) -> None:
    headers = "array(struct('h' as key, unhex('01') as value)) as headers"
    columns = ["string(id) as key", "encode(string(id), 'utf-8') as value", headers]
    with replog.spark.job(spark, metastore=spark_bookies.metastore, log=spark_log) as job:
        spark.range(0, 2, 1, 1).selectExpr(*columns).foreachPartition(job.writer())
        writer = job.writer(lambda row: b"%d" % row.id, key=lambda row: b"k%d" % row.id)
        spark.range(2, 3, 1, 1).foreachPartition(writer)
    with replog.blocking.connect(spark_bookies.metastore) as client, client.read_log(spark_log) as reader:
        found = [(each.key, each.data, dict(each.headers)) for each in reader]
    assert found == [(b"0", b"0", {"h": b"\x01"}), (b"1", b"1", {"h": b"\x01"}), (b"k2", b"2", {})]
