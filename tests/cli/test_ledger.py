"""`replog ledger` on an embedded log: what people and programs get, and the exit status."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
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
            print(writer.ledger_id, flush=True)
            os._exit(0)
trio.run(main)
"""


@attrs.frozen
class Made:
    """Two ledgers of a log, one whose writer crashed, and one with a password. Which ids they have is nobody's promise (M2)."""

    wal: Path
    first: int
    second: int
    crashed: int
    secret: int

    @property
    def absent(self) -> int:
        """An id that no ledger has."""
        return self.secret + 70


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """To copy. Some ids are lost in between, as they are when a creation fails."""
    wal = make_log(tmp_path_factory.mktemp("crashed") / "wal", SIX[:3], SIX[3:])

    async def lose_id(client: replog.Client) -> None:
        async with client.create_ledger() as writer:
            pass
        await client.delete_ledger(writer.ledger_id)

    async def of_log() -> list[int]:
        async with replog.embed(wal) as client:
            await lose_id(client)
            return [each.ledger_id for each in await client.log_segments("log")]

    async def write() -> int:
        async with replog.embed(wal) as client:
            await lose_id(client)
            async with client.create_ledger(password=b"secret", custom={"made": "here"}) as writer:
                await writer.append(b"hidden \xff")
            return writer.ledger_id

    first, second = trio.run(of_log)
    done = forks.run([sys.executable, "-c", CRASH, str(wal)])
    done.check_returncode()
    return Made(wal, first, second, int(done.stdout), trio.run(write))


@pytest.fixture
def ledger(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made: Made, tmp_path: Path) -> Run:
    """Runs `replog ledger` in this process on a copy of these."""
    for name in ("REPLOG_METASTORE", "REPLOG_PASSWORD", "REPLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(made.wal, tmp_path / "wal")
    return lambda *arguments: run(capfd, "ledger", *map(str, arguments), "--dir", tmp_path / "wal")


def test_ledgers_are_listed(ledger: Run, made: Made) -> None:
    assert ledger("list")[1] == f"{made.first}\n{made.second}\n{made.crashed}\n{made.secret}\n"
    assert ledger("list", "--state", "open")[1] == f"{made.crashed}\n"
    assert ledger("list", "--state", "closed")[1] == f"{made.first}\n{made.second}\n{made.secret}\n"
    assert ledger("list", "--state", "in-recovery")[1] == ""
    assert ledger("list", "--state", "nonsense")[0] == 2
    assert lines_of(ledger("list", "--json")[1])[0] == {"kind": "ledger", "ledger_id": made.first}
    found = lines_of(ledger("list", "--long", "--json")[1])
    shown = [(each["ledger_id"], each["state"], each["entries"], each["has_password"]) for each in found]
    assert shown == [
        (made.first, "closed", 3, False),
        (made.second, "closed", 3, False),
        (made.crashed, "open", None, False),
        (made.secret, "closed", 1, True),
    ]
    heading, first, *_ = ledger("list", "--long")[1].splitlines()
    assert heading.split() == ["ledger", "state", "entries", "quorum", "fragments", "created", "log"]
    assert first.split()[:5] == [str(made.first), "closed", "3", "1,1,1", "1"]
    assert first.split()[-1] == "log"


def test_a_ledger_is_shown(ledger: Run, made: Made) -> None:
    status, output, errors = ledger("show", made.second, "--json")
    found = json.loads(output)
    assert (status, errors) == (0, "")
    assert found.pop("created_at").startswith("20")
    (fragment,) = found.pop("fragments")
    assert (fragment["first_entry_id"], fragment["last_entry_id"], len(fragment["ensemble"])) == (0, 2, 1)
    assert found == {
        "ledger_id": made.second,
        "state": "closed",
        "entries": 3,
        "last_entry_id": 2,
        "size_bytes": len(b"".join(SIX[3:])),
        "archived_bytes": 0,
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
    status, output, _ = ledger("show", made.second)
    for each in ("closed", "ensemble 1, write 1, ack 1", "7 B", "custom: log", "from entry 0", "bookie-"):
        assert each in output
    _, output, _ = ledger("show", made.secret, "--json")
    found = json.loads(output)
    assert (found["has_password"], found["entries"], found["size_bytes"]) == (True, 1, 8)
    assert found["problem"] is None, "the record says what the ledger holds"
    assert "key_check" not in output
    status, output, errors = ledger("show", made.absent)
    assert (status, output, errors) == (
        1,
        "",
        f"replog: ledger {made.absent}: there is no such ledger: never created, or deleted\n",
    )


def test_a_ledger_is_read(ledger: Run, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger("read", made.second)[1] == "four\n\nsix\n"
    assert ledger("read", made.first, "--first", "1")[1] == "two\nthree\n"
    assert ledger("read", made.first, "--first", "1", "--last", "1", "--null")[1] == "two\0"
    assert ledger("read", made.first, "--first", "7")[1] == ""
    assert ledger("read", made.first, "--first", "2", "--last", "1")[0] == 2
    status, output, errors = ledger("read", made.first, "--last", "3")
    assert (status, output) == (1, "")
    assert f"ledger {made.first}: entry 3: 2 is the last that may be read" in errors
    assert ledger("read", made.secret)[0] == 1
    monkeypatch.setenv("REPLOG_PASSWORD", "secret")
    (found,) = lines_of(ledger("read", made.secret, "--json")[1])
    assert (found["kind"], found["entry_id"], found["data"], found["data_base64"]) == (
        "entry",
        0,
        None,
        "aGlkZGVuIP8=",
    )


def test_a_ledger_is_recovered(ledger: Run, made: Made) -> None:
    assert json.loads(ledger("show", made.crashed, "--json")[1])["state"] == "open"
    assert ledger("recover", made.crashed) == (0, f"ledger {made.crashed}: closed, its last entry is 1\n", "")
    found = json.loads(ledger("recover", made.crashed, "--json")[1])
    assert (found["state"], found["entries"], found["last_entry_id"]) == ("closed", 2, 1)
    assert ledger("read", made.crashed)[1] == "zero\none\n"
    assert ledger("recover", made.absent)[0] == 1


def test_a_ledger_is_deleted_but_not_from_a_log(ledger: Run, made: Made) -> None:
    assert ledger("delete", made.crashed)[0] == 2
    assert ledger("delete", made.crashed, "--yes") == (0, f"ledger {made.crashed}: deleted\n", "")
    assert ledger("delete", made.crashed, "--yes")[0] == 1
    status, _, errors = ledger("delete", made.first, "--yes")
    assert status == 2
    assert f"ledger {made.first} is part of log 'log', which cannot be read without it" in errors
    deleted = json.loads(ledger("delete", made.first, "--yes", "--force", "--json")[1])
    assert deleted == {"ledger_id": made.first, "deleted": True}
    assert ledger("list")[1] == f"{made.second}\n{made.secret}\n"


def test_ledger_named_in_a_page_is_part_of_the_log(ledger: Run, tmp_path: Path) -> None:
    make_log(tmp_path / "wal", *([b"one"] for _ in range(7)), name="paged", page_segments=2)

    async def of_log() -> list[int]:
        async with replog.embed(tmp_path / "wal") as client:
            return [each.ledger_id for each in await client.log_segments("paged")]

    ledger_ids = trio.run(of_log)
    assert len(ledger_ids) == 7
    for ledger_id in ledger_ids:
        status, _, errors = ledger("delete", ledger_id, "--yes")
        assert (status, f"ledger {ledger_id} is part of log 'paged'" in errors) == (2, True)


def test_unbounded_ledger_is_created_taken_over_and_trimmed(
    ledger: Run, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "is bounded" in ledger("take-over", made.secret)[2]
