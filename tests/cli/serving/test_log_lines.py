"""What a process says: JSON a line, or lines for people; never by waiting for who reads."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replog.cli.serving.lines import LineHandler
from replog.cli.serving.log_lines import Logs, Observer
from replog.cli.serving.settings import LoggingOptions
from replog.errors import StorageFailedError, StorageFullError
from replog.hookspecs import DamageFound, StorageFailed
from tests.forks import run

BOOKIE = "bookie-1"


@pytest.fixture(autouse=True)
def _hook_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@contextmanager
def logs(path: Path, form: str = "json", level: str = "info") -> Iterator[Logs]:
    with open(path, "a") as stream, Logs(LoggingOptions(format=form, level=level), stream) as made:
        made.bookie_id = BOOKIE
        yield made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_lines_are_json_with_the_same_first_fields(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logs(path) as made:
        made.log.info("serving", listen=["tcp:x:1"])
        logging.getLogger("replog.transports.tcp").warning("client %s was refused", "x:2", extra={"client": "x:2"})
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("beware", UserWarning, stacklevel=1)
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("elsewhere").exception("failed\nin two lines")
    served, refused, warned, failed = lines(path)
    assert list(served)[:4] == ["time", "level", "event", "bookie"]
    assert (served["level"], served["event"], served["listen"]) == ("info", "serving", ["tcp:x:1"])
    assert (refused["level"], refused["event"]) == ("warning", "client x:2 was refused")
    assert (refused["client"], refused["logger"]) == ("x:2", "replog.transports.tcp")
    assert "beware" in warned["event"]
    assert "ValueError: why" in failed["exception"]
    assert {each["bookie"] for each in (served, refused, warned, failed)} == {BOOKIE}
    assert not logging.getLogger().handlers or all(
        not isinstance(each, LineHandler) for each in logging.getLogger().handlers
    )


def test_fields_may_be_called_as_those_of_logging_are(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logs(path) as made:
        made.log.info("100 %s", name="a", message="b", args=(1,), exc_info=None)
    (line,) = lines(path)
    assert (line["event"], line["name"], line["message"], line["args"]) == ("100 %s", "a", "b", [1])


def test_lines_for_people_show_exceptions_and_fields_of_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logs(path, "text") as made:
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("elsewhere").exception("failed", extra={"client": "x:2"})
        made.log.warning("after")
    said = path.read_text()
    assert "client=x:2" in said
    assert "logger=elsewhere" in said or "[elsewhere]" in said
    assert "ValueError: why" in said
    assert "warning" in said.splitlines()[-1]


def test_the_level(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logs(path, level="warning") as made:
        made.log.info("no")
        logging.getLogger("replog.x").info("no")
        made.log.warning("yes")
    assert [each["event"] for each in lines(path)] == ["yes"]


def test_lines_for_people_have_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logs(path, "text") as made:
        made.log.info("serving", listen=["tcp:x:1"])
        logging.getLogger("replog.x").warning("client said \x1b[2J\nand more")
    first, second = path.read_text().splitlines()
    assert "serving" in first
    assert "listen=['tcp:x:1']" in first
    assert "\x1b" not in second
    assert r"client said \x1b[2J\nand more" in second


def test_events_of_bookies_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logs(path) as made:
        observer = Observer(made.log)
        observer.replog_observe(StorageFailed(BOOKIE, StorageFullError("no space")))
        assert observer.failure is None
        observer.replog_observe(DamageFound(BOOKIE, 17, 1, 2, 3, "a bit flipped"))
        failure = StorageFailed(BOOKIE, StorageFailedError("gone", "Buy another"))
        observer.replog_observe(failure)
        assert observer.failure is failure
    full, damaged, failed = lines(path)
    assert (full["level"], full["problem"]) == ("warning", "no space")
    assert (damaged["level"], damaged["ledger_id"], damaged["description"]) == ("error", 17, "a bit flipped")
    assert (failed["level"], failed["problem"]) == ("error", "gone. Buy another")


def fill(pipe: int) -> int:
    """Writes to a pipe until it takes no more; how many bytes these were."""
    os.set_blocking(pipe, False)
    written_bytes = 0
    try:
        while True:
            written_bytes += os.write(pipe, b"-" * 512)
    except BlockingIOError:
        os.set_blocking(pipe, True)
    return written_bytes


def test_logging_does_not_wait_for_a_slow_reader() -> None:
    """Lines beyond the bound are lost, the others come in order, and the loss is told."""
    reading, writing = os.pipe()
    filled_bytes = fill(writing)
    handler = LineHandler(writing, waiting_bytes_max=300_000)
    log = logging.Logger("test")
    log.addHandler(handler)
    try:
        for number in range(10_000):
            log.info("%d %s", number, "x" * 90)
        assert handler.lost > 1000
        received = bytearray()

        def read() -> None:
            while data := os.read(reading, 1 << 20):
                received.extend(data)

        reader = threading.Thread(target=read)
        reader.start()
        while handler._waiting_bytes:
            time.sleep(0.001)  # it is being read
        log.info("after")
        handler.close()
        os.close(writing)
        reader.join(30)
        assert not reader.is_alive()
    finally:
        os.close(reading)
    *numbered, lost, after = received[filled_bytes:].decode().splitlines()
    assert [int(line.split()[0]) for line in numbered] == list(range(len(numbered)))
    assert lost == f"{10_000 - len(numbered)} lines before this one were lost"
    assert after == "after"


def test_logging_goes_on_when_the_reader_has_left() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = LineHandler(writing)
    log = logging.Logger("test")
    log.addHandler(handler)
    log.info("heard by nobody")
    handler.close()
    os.close(writing)


CRASH = """
import sys
from replog import cli
from replog.cli.serving import process

async def crash(*arguments):
    raise RuntimeError("what nobody expected")

process.run_bookie = crash
sys.argv = ["replog", "bookie", "--metastore", "memory:", "--data", "nowhere"]
cli.main()
"""


def test_crash_is_logged_as_a_line() -> None:
    done = run([sys.executable, "-c", CRASH])
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, done.stdout) == (1, "")
    assert (line["level"], line["event"]) == ("critical", "crashed")
    assert "RuntimeError: what nobody expected" in line["exception"]
