"""The program of docs/how-to/cursors.md that keeps its place in SQLite, while another worker holds the cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import replog.blocking
from tests.test_docs import PAGES, RUNNABLE


def program() -> tuple[Callable[[Any], float], Any]:
    """Its function `work_off`, and its connection to SQLite."""
    page = next(each for each in PAGES if each.name == "cursors.md").read_text(encoding="utf-8")
    (source,) = (each for each in RUNNABLE.findall(page) if "sqlite3" in each)
    names: dict[str, Any] = {}
    exec(source.partition("with replog.blocking.embed")[0], names)
    return names["work_off"], names["results"]


class WaitsForAnother:
    """A client whose `cursor` waits while another worker holds it: until `other` has worked."""

    def __init__(self, client: replog.blocking.Client, other: Callable[[], object]) -> None:
        self.read_log = client.read_log
        self._client = client
        self._other = other

    @contextmanager
    def cursor(self, *arguments: Any, **options: Any) -> Iterator[replog.blocking.Cursor]:
        self._other()
        with self._client.cursor(*arguments, **options) as cursor:
            yield cursor


def test_waiting_worker_continues_behind_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    work_off, results = program()
    with replog.blocking.embed(tmp_path / "wal") as client, client.write_log("amounts") as log:
        log.extend([b"1", b"2"])

        def other() -> None:
            work_off(client)
            log.append(b"4")

        work_off(WaitsForAnother(client, other))
        assert results.execute("SELECT amount FROM total").fetchall() == [(7,)]
    results.close()
