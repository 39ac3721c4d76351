"""The outbox: relays are killed wherever they stand, and each order that was committed is in the log exactly once."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from replog import blocking
from tests.examples.orders import everything
from tests.examples.programs import WAIT_S, Program

pytestmark = pytest.mark.skipif(find_spec("django") is None, reason="needs the extra `recipes`")
EXAMPLE = "examples/django_outbox.py"


@pytest.mark.crash
def test_each_committed_order_is_in_the_log_exactly_once(tmp_path: Path) -> None:
    with Program(EXAMPLE, str(tmp_path), "order") as shop:
        placed = [f"order {number}" for number in range(60)]
        place(shop, placed[:20])
        with closing(sqlite3.connect(tmp_path / "shop.sqlite3", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # nobody else changes the database: relayed, and not noted
            with Program(EXAMPLE, str(tmp_path), "relay") as relay:
                relay.wait_for("in the log up to 1:19")
                relay.kill()
            assert left_in(database) == 20
            database.execute("ROLLBACK")
            with Program(EXAMPLE, str(tmp_path), "relay") as relay:
                place(shop, placed[20:40])
                relay.wait_for("in the log up to")
                relay.kill()  # wherever it stands
            with Program(EXAMPLE, str(tmp_path), "relay") as relay:
                place(shop, placed[40:])
                deadline_s = time.monotonic() + WAIT_S
                while left_in(database) and time.monotonic() < deadline_s:
                    time.sleep(0.05)
                assert left_in(database) == 0
    with blocking.embed(tmp_path / "log") as client:
        assert [record["item"] for record in everything(client).values()] == placed


def place(shop: Program, orders: list[str]) -> None:
    """Places them, and waits until each is committed."""
    before = shop.lines.count("ok")
    for each in orders:
        shop.say(each)
    shop.wait_for("^ok$", before + len(orders))


def left_in(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT count(*) FROM shop_outbox").fetchone()[0])
