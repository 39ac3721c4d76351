"""`replog ledger` on unbounded ledgers of several terms: what is shown of them, and what an operator does after a restore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

import replog
from replog.records.paths import ledger_key_path
from tests import forks
from tests.cli.cluster.test_cluster import cluster
from tests.cli.test_inspect import COMMAND, lines_of, run


async def _write_three_terms(client: replog.Client) -> int:
    """Entries 0 to 5: two of term 1, three of term 3 in two fragments, one of term 4. Nothing was written in term 2."""
    async with client.create_ledger(unbounded=True) as writer:
        await writer.extend([b"a" * 10, b"b" * 20])
    ledger_id = writer.ledger_id
    async with client.take_over_ledger(ledger_id):
        pass
    async with client.take_over_ledger(ledger_id) as writer:
        await writer.append(b"c" * 300)
        await writer.roll()
        await writer.extend([b"d" * 4000, b"e" * 5000])
    async with client.take_over_ledger(ledger_id) as writer:
        await writer.append(b"f" * 60000)
    return ledger_id


def _made(path: Path, trim_before: int = 0) -> str:
    async def make() -> int:
        async with replog.embed(path) as client:
            ledger_id = await _write_three_terms(client)
            if trim_before:
                await client.trim_ledger(ledger_id, before=trim_before)
            return ledger_id

    return str(trio.run(make))


def test_ledger_show_lists_writers_and_their_entries(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each writer counts its own bytes (T2): the size of the ledger is their sum."""
    ledger_id = _made(tmp_path / "wal")
    status, output, errors = run(capfd, "ledger", "show", ledger_id, "--json", "--dir", tmp_path / "wal")
    found = json.loads(output)
    assert (status, errors) == (0, "")
    assert (found["unbounded"], found["term"], found["entries"], found["size_bytes"]) == (True, 4, 6, 69330)
    assert [tuple(each.values()) for each in found["writers"]] == [(1, 0, 1, 30), (3, 2, 4, 9300), (4, 5, 5, 60000)]
    assert [(each["first_entry_id"], each["term"]) for each in found["fragments"]] == [(0, 1), (2, 3), (3, 3), (5, 4)]
    _, output, _ = run(capfd, "ledger", "show", ledger_id, "--dir", tmp_path / "wal")
    rows = {line.strip("│ ").partition("  ")[0]: line for line in output.splitlines()}
    assert "entries 2 to 4, 9.1 KiB" in rows["written in term 3"]
    assert "entries 5 to 5, 58.6 KiB" in rows["written in term 4"]
    assert "written in term 2" not in rows
    assert "67.7 KiB" in rows["payloads"]


def test_size_leaves_out_trimmed_entries(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ledger_id = _made(tmp_path / "wal", trim_before=3)
    _, output, _ = run(capfd, "ledger", "show", ledger_id, "--json", "--dir", tmp_path / "wal")
    found = json.loads(output)
    assert (found["trimmed_before"], found["entries"], found["size_bytes"]) == (3, 3, 69000)
    assert [tuple(each.values()) for each in found["writers"]] == [(3, 3, 4, 9000), (4, 5, 5, 60000)]


def test_size_is_unknown_when_bookies_tell_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def make() -> int:
        async with replog.embed(tmp_path / "wal") as client:
            async with client.create_ledger(unbounded=True, password=b"secret") as writer:
                await writer.append(b"hidden")
            return writer.ledger_id

    ledger_id = trio.run(make)
    _, output, _ = run(capfd, "ledger", "show", str(ledger_id), "--json", "--dir", tmp_path / "wal")
    found = json.loads(output)
    assert (found["size_bytes"], found["entries"], found["writers"]) == (None, None, [])
    assert "the password is not this ledger's" in found["problem"]


def test_inspect_shows_the_stamp_of_each_batch(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ledger_id = _made(tmp_path / "wal")
    (storage,) = (tmp_path / "wal").glob("bookie-*")
    status, output, _ = run(capfd, "inspect", "ledger", storage, ledger_id, "--json")
    batches = [line for line in lines_of(output) if line["kind"] == "batch"]
    assert status == 0
    assert [(each["first_entry_id"], each["last_entry_id"], each["stamp"]) for each in batches] == [
        (0, 1, 1),
        (2, 2, 3),
        (3, 4, 3),
        (5, 5, 4),
    ]
    _, output, _ = run(capfd, "inspect", "ledger", storage, ledger_id, "--entries")
    heading, *rows = (line.split() for line in output.splitlines())
    assert heading[:2] == ["entry", "stamp"]
    assert [tuple(row[:2]) for row in rows[:6]] == [
        ("0", "1"),
        ("1", "1"),
        ("2", "3"),
        ("3", "3"),
        ("4", "3"),
        ("5", "4"),
    ]
    _, output, _ = run(capfd, "inspect", "ledger", storage, ledger_id, "--raw", "2", "--stamp", "3")
    assert output == "c" * 300


@pytest.mark.slow
async def test_operator_raises_the_term_after_an_old_back_up(tmp_path: Path) -> None:
    """T1: bookies that know a later term than the record refuse, until the operator has raised it. All by the command."""

    def command(*arguments: str, status: int = 0) -> str:
        done = forks.run([*COMMAND, "ledger", *arguments, "--metastore", metastore], timeout=120)
        assert done.returncode == status, done.stderr
        return str(done.stdout if status == 0 else done.stderr)

    with cluster("--dir", tmp_path) as running:
        metastore = running.wait_for(kind="cluster", state="serving")["metastore"]
        ledger_id = (await trio.to_thread.run_sync(command, "create", "--unbounded")).strip()
        key = ledger_key_path(int(ledger_id))
        async with replog.connect(metastore) as client:
            async with client.take_over_ledger(int(ledger_id)) as writer:
                await writer.append(b"kept")
            store = client._opened.ledgers.records.metastore
            backup = (await store.get(key)).value
            for _ in range(2):
                async with client.take_over_ledger(int(ledger_id)) as writer:
                    await writer.append(b"lost with the metadata")
            await store.put(key, backup, (await store.get(key)).version)
        refused = await trio.to_thread.run_sync(lambda: command("take-over", ledger_id, status=1))
        assert f"replog ledger raise-term {ledger_id}" in refused
        assert command("raise-term", ledger_id) == f"ledger {ledger_id}: its term is 4 now\n"
        assert command("raise-term", ledger_id) == f"ledger {ledger_id}: its term is 4 now\n", "once is enough"
        assert command("take-over", ledger_id) == f"ledger {ledger_id}: open in term 5, behind entry 0\n"
        assert command("read", ledger_id) == "kept\n"
        found = json.loads(command("show", ledger_id, "--json"))
        assert (found["term"], found["open_term"], found["size_bytes"]) == (5, 5, len(b"kept"))
