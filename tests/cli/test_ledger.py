"""`replog ledger` on an embedded log: what people and programs get, and the exit status."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import replog
from tests import forks
from tests.cli.logs import SIX, make_log
from tests.cli.test_inspect import lines_of, run

Run = Callable[..., tuple[int, str, str]]


CRASH = """
import os, sys, trio, replog
async def main():
    async with replog.embed(sys.argv[1]) as client:
        async with client.create_ledger() as writer:
            await writer.extend([b"zero", b"one"])
            os._exit(0)
trio.run(main)
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ledgers of a log, one whose writer crashed, and one with a password: 1 to 4. To copy."""
    wal = make_log(tmp_path_factory.mktemp("crashed") / "wal", SIX[:3], SIX[3:])
    forks.run([sys.executable, "-c", CRASH, str(wal)]).check_returncode()

    async def write() -> None:
        async with (
            replog.embed(wal) as client,
            client.create_ledger(password=b"secret", custom={"made": "here"}) as writer,
        ):
            await writer.append(b"hidden \xff")

    trio.run(write)
    return wal


@pytest.fixture
def ledger(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, crashed: Path, tmp_path: Path) -> Run:
    """Runs `replog ledger` in this process on a copy of these."""
    for name in ("REPLOG_METASTORE", "REPLOG_PASSWORD", "REPLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(crashed, tmp_path / "wal")
    return lambda *arguments: run(capfd, "ledger", *arguments, "--dir", tmp_path / "wal")


def test_ledgers_are_listed(ledger: Run) -> None:
    assert ledger("list")[1] == "1\n2\n3\n4\n"
    assert ledger("list", "--state", "open")[1] == "3\n"
    assert ledger("list", "--state", "closed")[1] == "1\n2\n4\n"
    assert ledger("list", "--state", "in-recovery")[1] == ""
    assert ledger("list", "--state", "nonsense")[0] == 2
    assert lines_of(ledger("list", "--json")[1])[0] == {"kind": "ledger", "ledger_id": 1}
    found = lines_of(ledger("list", "--long", "--json")[1])
    shown = [(each["ledger_id"], each["state"], each["entries"], each["has_password"]) for each in found]
    assert shown == [(1, "closed", 3, False), (2, "closed", 3, False), (3, "open", None, False), (4, "closed", 1, True)]
    heading, first, *_ = ledger("list", "--long")[1].splitlines()
    assert heading.split() == ["ledger", "state", "entries", "quorum", "fragments", "created", "log"]
    assert first.split()[:5] == ["1", "closed", "3", "1,1,1", "1"]
    assert first.split()[-1] == "log"


def test_a_ledger_is_shown(ledger: Run) -> None:
    status, output, errors = ledger("show", "2", "--json")
    found = json.loads(output)
    assert (status, errors) == (0, "")
    assert found.pop("created_at").startswith("20")
    (fragment,) = found.pop("fragments")
    assert (fragment["first_entry_id"], fragment["last_entry_id"], len(fragment["ensemble"])) == (0, 2, 1)
    assert found == {
        "ledger_id": 2,
        "state": "closed",
        "entries": 3,
        "last_entry_id": 2,
        "size_bytes": len(b"".join(SIX[3:])),
        "quorum": {"ensemble": 1, "write": 1, "ack": 1},
        "digest_type": "crc32c",
        "has_password": False,
        "custom": {"log": "log"},
        "writers": [
            {"term": 1, "first_entry_id": 0, "last_entry_id": 2, "size_bytes": len(b"".join(SIX[3:]))},
        ],
        "gaps": [],
        "unbounded": False,
        "term": 1,
        "open_term": 1,
        "trimmed_before": 0,
        "durability": "ack-quorum",
        "problem": None,
    }
    status, output, _ = ledger("show", "2")
    for each in ("closed", "ensemble 1, write 1, ack 1", "7 B", "custom: log", "from entry 0", "bookie-"):
        assert each in output
    _, output, _ = ledger("show", "4", "--json")
    found = json.loads(output)
    assert (found["has_password"], found["entries"], found["size_bytes"]) == (True, 1, None)
    assert "the password is not this ledger's" in found["problem"]
    assert "key_check" not in output
    status, output, errors = ledger("show", "77")
    assert (status, output, errors) == (
        1,
        "",
        "replog: ledger 77: there is no such ledger: never created, or deleted\n",
    )


def test_a_ledger_is_read(ledger: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger("read", "2")[1] == "four\n\nsix\n"
    assert ledger("read", "1", "--first", "1")[1] == "two\nthree\n"
    assert ledger("read", "1", "--first", "1", "--last", "1", "--null")[1] == "two\0"
    assert ledger("read", "1", "--first", "7")[1] == ""
    assert ledger("read", "1", "--first", "2", "--last", "1")[0] == 2
    status, output, errors = ledger("read", "1", "--last", "3")
    assert (status, output) == (1, "")
    assert "ledger 1: entry 3: 2 is the last that may be read" in errors
    assert ledger("read", "4")[0] == 1
    monkeypatch.setenv("REPLOG_PASSWORD", "secret")
    (found,) = lines_of(ledger("read", "4", "--json")[1])
    assert (found["kind"], found["entry_id"], found["data"], found["data_base64"]) == (
        "entry",
        0,
        None,
        "aGlkZGVuIP8=",
    )


def test_a_ledger_is_recovered(ledger: Run) -> None:
    assert json.loads(ledger("show", "3", "--json")[1])["state"] == "open"
    assert ledger("recover", "3") == (0, "ledger 3: closed, its last entry is 1\n", "")
    found = json.loads(ledger("recover", "3", "--json")[1])
    assert (found["state"], found["entries"], found["last_entry_id"]) == ("closed", 2, 1)
    assert ledger("read", "3")[1] == "zero\none\n"
    assert ledger("recover", "77")[0] == 1


def test_a_ledger_is_deleted_but_not_from_a_log(ledger: Run) -> None:
    assert ledger("delete", "3")[0] == 2
    assert ledger("delete", "3", "--yes") == (0, "ledger 3: deleted\n", "")
    assert ledger("delete", "3", "--yes")[0] == 1
    status, _, errors = ledger("delete", "1", "--yes")
    assert status == 2
    assert "ledger 1 is part of log 'log', which cannot be read without it" in errors
    assert json.loads(ledger("delete", "1", "--yes", "--force", "--json")[1]) == {"ledger_id": 1, "deleted": True}
    assert ledger("list")[1] == "2\n4\n"


def test_ledger_named_in_a_page_is_part_of_the_log(ledger: Run, tmp_path: Path) -> None:
    make_log(tmp_path / "wal", *([b"one"] for _ in range(7)), name="paged", page_segments=2)
    for ledger_id in range(5, 12):
        status, _, errors = ledger("delete", str(ledger_id), "--yes")
        assert (status, f"ledger {ledger_id} is part of log 'paged'" in errors) == (2, True)


def test_unbounded_ledger_is_created_taken_over_and_trimmed(ledger: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger("create")[0] == 2, "a bounded one is of no use"
    status, said, _ = ledger("create", "--unbounded")
    assert status == 0
    ledger_id = said.strip()
    assert ledger("take-over", ledger_id)[1] == f"ledger {ledger_id}: open in term 2, behind entry -1\n"
    assert "2, opened in 2" in ledger("show", ledger_id)[1]
    assert ledger("trim", ledger_id, "--before", "9")[1] == f"ledger {ledger_id}: begins at entry 0 now\n"
    assert ledger("raise-term", ledger_id)[1] == f"ledger {ledger_id}: its term is 2 now\n"
    finished = json.loads(ledger("take-over", ledger_id, "--finish", "--json")[1])
    assert (finished["term"], finished["state"]) == (3, "closed")
    status, _, said = ledger("take-over", ledger_id)
    assert status != 0
    assert "finished" in said
    monkeypatch.setenv("REPLOG_PASSWORD", "secret")
    assert "is bounded" in ledger("take-over", "4")[2]
