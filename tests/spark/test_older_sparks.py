"""PySpark 4.0 and 4.1: what they lack is not needed by batch jobs, and streams are refused with a reason.

This Spark is a newer one: in a process of its own it gets what the older ones have. Real ones were tried by hand.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs_spark

SCRIPT = """
import sys
import pyspark
import pyspark.sql.datasource as datasource
import pyspark.sql.pandas.types as types

pyspark.__version__ = "4.0.5"
newer = [name for name, each in vars(datasource).items() if isinstance(each, type) and issubclass(each, datasource.Filter)]
for name in [*newer, "DataSourceStreamArrowWriter"]:
    delattr(datasource, name)
del datasource.DataSourceReader.pushFilters
sys.modules["pyspark.sql.streaming.datasource"] = None  # as if there were none
convert = types.to_arrow_schema
types.to_arrow_schema = lambda schema, error=False, timestamp_utc=True: convert(schema, timezone="UTC")

import replog.spark
from replog.errors import ConfigError
from replog.spark.rows import LogBatchReader
from replog.spark.writing import JobWriter

schema = types.StructType().add("value", "binary").add("timestamp", "timestamp")
options = {"metastore": "zookeeper://zk1/prod", "log": "orders", "values": "binary"}
source = replog.spark.ReplogDataSource(options)
assert type(source.reader(schema)) is LogBatchReader
JobWriter(source._parsed, types.StructType().add("value", "string"))
for refused in (lambda: source.streamReader(schema), lambda: source.streamWriter(schema, False)):
    try:
        refused()
    except ConfigError as error:
        assert "streams of format replog need PySpark 4.2 or newer, and this is 4.0.5" in str(error), error
    else:
        raise AssertionError("it was not refused")
"""


def test_batch_jobs_need_nothing_of_newer_sparks() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
