"""What the rows with JSON look like: events as they are often sent, five columns of five types, about 110 bytes as JSON."""

from __future__ import annotations

JSON_COLUMNS = "id bigint, customer string, amount double, is_new boolean, at timestamp"
JSON_ROW = (  # of the column `id` of a range
    "id",
    "concat('customer-', CAST(id % 10007 AS STRING)) AS customer",
    "CAST(id % 100003 AS DOUBLE) / 100 AS amount",
    "id % 3 = 0 AS is_new",
    "timestamp_millis(1700000000000 + id) AS at",
)
