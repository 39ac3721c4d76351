"""`on_trimmed=skip`: queries go on where the log begins now, and say what they have lost."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from replog.errors import ConfigError, TrimmedError
from replog.spark.read_options import ReadOptions
from tests.servers.bookies import Bookies
from tests.spark.logs import ask, wait_for_news
from tests.spark.readers import batch_reader, numbers, stream_reader, values, write

pytestmark = pytest.mark.needs_spark

ALL = ReadAllAvailable()


def test_a_stream_goes_on_at_the_first_record(
    spark_bookies: Bookies, spark_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    metastore = spark_bookies.metastore
    ask(metastore, lambda client: write(client, spark_log, 3, 10))
    reader = stream_reader(metastore, spark_log, onTrimmed="skip")
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(15))
    last = reader.latestOffset(start, ReadMaxRows(25))
    planned = reader.partitions(start, last)
    assert "lost" not in last
    ask(metastore, lambda client: client.trim_log(spark_log, before="3:0"))

    with caplog.at_level(logging.WARNING, "replog.spark"):
        assert values(reader, planned) == numbers(20, 5), "a task whose entries are gone"
        wait_for_news(caplog, "skipped: up to 20 entries of 2 segments")
        assert reader.partitions(start, middle) == [], "a micro-batch that is repeated, and all of it is gone"
        assert values(reader, reader.partitions(middle, last)) == numbers(20, 5)
        wait_for_news(caplog, "what lay from 2:5 to 3:0 was trimmed away unread")
    for limit, reached in ((ALL, "4:0"), (ReadMaxRows(5), "3:5"), (ReadMaxBytes(16), "3:2")):
        end = reader.latestOffset(middle, limit)
        assert (end["position"], end["lost"]) == (reached, "2:5 to 3:0")
    end = reader.latestOffset(middle, ALL)
    assert values(reader, reader.partitions(middle, end)) == numbers(20, 10)
    assert reader.latestOffset(end, ALL) == end, "else Spark would begin a batch of nothing again and again"
    begun = stream_reader(metastore, spark_log, onTrimmed="skip", **{"from": "1:5"}).initialOffset()
    assert (begun["position"], begun["lost"]) == ("3:0", "1:5 to 3:0")
    failing = stream_reader(metastore, spark_log)
    with pytest.raises(TrimmedError, match=r'option\("on_trimmed", "skip"\)'):
        failing.latestOffset(middle, ALL)


def test_a_batch_goes_on_at_the_first_record(
    spark_bookies: Bookies, spark_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    metastore = spark_bookies.metastore
    ask(metastore, lambda client: write(client, spark_log, 3, 10))
    ask(metastore, lambda client: client.trim_log(spark_log, before="2:0"))
    begins = {"from": "1:5"}
    with caplog.at_level(logging.WARNING, "replog.spark"):
        assert values(batch_reader(metastore, spark_log, onTrimmed="skip", **begins)) == numbers(10, 20)
    wait_for_news(caplog, f"{spark_log!r}: what lay from 1:5 to 2:0 was trimmed away unread")
    assert values(batch_reader(metastore, spark_log, onTrimmed="skip", to="1:7", **begins)) == []
    with pytest.raises(TrimmedError, match=r'option\("on_trimmed", "skip"\)'):
        batch_reader(metastore, spark_log, **begins).partitions()


def test_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_trimmed: 'ignore' is neither fail nor skip"):
        ReadOptions.parse({"metastore": "zookeeper://zk1/prod", "log": "orders", "onTrimmed": "ignore"})
