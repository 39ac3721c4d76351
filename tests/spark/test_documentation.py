"""What README.md shows of Spark runs, in the session that all tests of Spark share."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replog import blocking
from tests.servers.bookies import Bookies
from tests.spark.logs import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs_spark

README = Path(__file__).parents[2] / "README.md"
SHOWN = re.compile(r"^<!-- run with spark -->\n+```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_readme_totals_orders(spark: SparkSession, spark_bookies: Bookies) -> None:
    (code,) = SHOWN.findall(README.read_text(encoding="utf-8"))
    orders = [{"item": "tea", "price": 3}, {"item": "jam", "price": 4}, {"item": "tea", "price": 5}]
    with blocking.connect(spark_bookies.metastore) as client, client.write_log("orders") as log:
        log.extend([json.dumps(order).encode() for order in orders])

    exec(code, {"spark": spark, "METASTORE": spark_bookies.metastore})

    totals = [json.loads(row) for row in rows_of(spark_bookies.metastore, "totals")]
    assert {row["item"]: row["sum(price)"] for row in totals} == {"tea": 8, "jam": 4}
