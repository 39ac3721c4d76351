"""`replog bookies`: what is listed, who is meant, what is done, and what the exit status says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio.testing

import replog.blocking
from replog import cli
from replog.abc import Damage
from replog.cli import bookies
from replog.cli.connecting import Connection
from replog.client.administration import RemoteBookie
from replog.errors import AdministrationError, ConfigError
from replog.protocol.messages import AdminRequest
from tests.kit import cluster

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An embedded log of two bookies."""
    with replog.blocking.embed(tmp_path / "wal", bookies=2, storage="lmdb") as client:
        with client.create_ledger() as writer:
            writer.append(b"kept")
    return tmp_path / "wal"


@pytest.fixture
def replog_bookies(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command on that: its exit status, and what it printed."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["replog", "bookies", *arguments, "--dir", str(directory)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return command


def lines(shown: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.splitlines()]


def test_the_list_is_for_people(replog_bookies: Callable[..., tuple[int, str, str]]) -> None:
    status, shown, errors = replog_bookies()
    assert (status, errors) == (0, "")
    rows = [line for line in shown.splitlines() if "bookie-" in line]
    assert len(rows) == 2
    assert all("writable" in row and "GiB" in row for row in rows)


def test_the_list_is_for_programs(replog_bookies: Callable[..., tuple[int, str, str]]) -> None:
    status, shown, _ = replog_bookies("--json")
    found = lines(shown)
    assert (status, [each["kind"] for each in found], [each["state"] for each in found]) == (
        0,
        ["bookie"] * 2,
        ["writable"] * 2,
    )
    assert all(each["free_bytes"] > 0 and each["uptime_s"] >= 0 and each["version"] for each in found)


def test_a_bookie_is_drained(directory: Path, replog_bookies: Callable[..., tuple[int, str, str]]) -> None:
    bookie_id = lines(replog_bookies("--json")[1])[0]["bookie_id"]
    status, shown, errors = replog_bookies("drain", bookie_id[len("bookie-") : -2])
    assert (status, errors) == (1, "")
    assert shown.splitlines() == [
        f"{bookie_id}: it drains; don't stop it yet",
        "  1 ledgers have copies on it: 1",
        "  ledger 1 can't leave: no other bookie can take its place: start another one",
    ]
    listed = {row["bookie_id"]: row["state"] for row in lines(replog_bookies("--json")[1])}
    assert listed.pop(bookie_id) == "draining"
    assert list(listed.values()) == ["writable"]
    assert replog_bookies("undrain", bookie_id)[:2] == (0, f"{bookie_id}: gets new ledgers again\n")

    with replog.blocking.embed(directory, bookies=2, storage="lmdb") as client:
        client.delete_ledger(1)
        with client.create_ledger() as writer:
            writer.append(b"kept")
        client.delete_ledger(writer.ledger_id)
    status, shown, _ = replog_bookies("drain", bookie_id, "--json")
    (found,) = lines(shown)
    assert (status, found["is_safe_to_stop"], found["copies"], found["open_ledgers"]) == (0, True, [], [])
    assert replog_bookies("drain", bookie_id)[1] == f"{bookie_id}: it is safe to stop: no ledger has copies on it\n"


def test_a_bookie_is_rebalanced(replog_bookies: Callable[..., tuple[int, str, str]]) -> None:
    bookie_id = lines(replog_bookies("--json")[1])[0]["bookie_id"]
    status, shown, errors = replog_bookies("rebalance", bookie_id[:-2])
    assert (status, errors) == (0, "")
    assert shown.startswith(f"{bookie_id}: 0 of 0 fragments were moved there; it has ")
    (found,) = lines(replog_bookies("rebalance", bookie_id, "--json")[1])
    assert (found["bookie_id"], found["planned"], found["moved"]) == (bookie_id, 0, 0)


def test_drain_of_an_unknown_bookie_is_refused(replog_bookies: Callable[..., tuple[int, str, str]]) -> None:
    status, _, errors = replog_bookies("drain", "nobody")
    assert status == 2
    assert "the metastore knows no such bookie; there are bookie-" in errors


@pytest.mark.parametrize(
    ("command", "fact", "sentence"),
    [
        ("collect-garbage", {"dropped_ledgers": []}, "no deleted ledgers dropped"),
        ("compact", {}, "compacted: "),
        ("scrub", {"damage": []}, "scrubbed: all well"),
    ],
)
def test_work_is_done_by_all_bookies_or_the_named_one(
    replog_bookies: Callable[..., tuple[int, str, str]], command: str, fact: dict[str, object], sentence: str
) -> None:
    status, shown, errors = replog_bookies(command)
    assert (status, errors, shown.count(sentence)) == (0, "", 2)
    status, shown, _ = replog_bookies(command, "--json", "--at-once", "2")
    everybody = {each["bookie_id"] for each in lines(shown)}
    assert (status, len(everybody)) == (0, 2)
    for bookie_id in everybody:
        status, shown, _ = replog_bookies(command, bookie_id, "--json")
        (found,) = lines(shown)
        assert (status, found["bookie_id"], found["problem"]) == (0, bookie_id, None)
        assert {name: found[name] for name in fact} == fact
        assert found["duration_s"] > 0


def test_options_before_the_command_are_refused_and_not_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "argv", ["replog", "bookies", "--metastore", "lmdb:./x", "scrub"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "options come after the command" in capsys.readouterr().err


async def worked(
    monkeypatch: pytest.MonkeyPatch, world: Any, work: bookies.Work, *, for_programs: bool, at_once: int = 1
) -> bool:
    monkeypatch.setattr(bookies, "client_from", lambda _connection: world.client())
    return await bookies._work(Connection(), (), work, "working", at_once, for_programs)


async def test_failing_bookie_is_reported_and_others_go_on(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    async def work(bookie: RemoteBookie) -> bookies._Done:
        if bookie.bookie_id == "bookie-01":
            raise AdministrationError(bookie.bookie_id, "no room to work")
        await bookie.compact()
        return bookies._Done({"x": 1}, "well")

    async with cluster(3) as world:
        assert not await worked(monkeypatch, world, work, for_programs=False)
        shown = capsys.readouterr()
        assert [line.split(":")[0] for line in shown.out.splitlines()] == ["bookie-00", "bookie-02"]
        assert "bookie bookie-01: no room to work" in shown.err
        assert not await worked(monkeypatch, world, work, for_programs=True)
        found = lines(capsys.readouterr().out)
        assert [each["problem"] for each in found] == [None, "bookie bookie-01: no room to work", None]
        asked = [sum(isinstance(each, AdminRequest) for each in bookie.wire.seen) for bookie in world.bookies]
        assert asked == [2, 0, 2]


async def test_damage_is_a_failure_and_listed(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    found: list[bookies.Work] = []
    monkeypatch.setattr(bookies, "_have", lambda _connection, _ids, work, *_rest: found.append(work))
    bookies.scrub(ids=None, timeout_s=5.0, at_once=1, for_programs=False, **dict.fromkeys(CONNECTION))
    async with cluster(1) as world:
        world.bookies[0].storage.damage = lambda: [Damage(7, 1, 3, 4, "file x at byte 9")]  # type: ignore[method-assign]
        assert not await worked(monkeypatch, world, found[0], for_programs=False)
        assert "1 batch damaged\n  ledger 7, entries 3..4: file x at byte 9\n" in capsys.readouterr().out


CONNECTION = ("metastore", "directories", "storage", "config", "options", "password_file")


async def test_work_at_once_is_bounded(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = most = 0

    async def work(bookie: RemoteBookie) -> bookies._Done:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await trio.sleep(1)
        at_work -= 1
        return bookies._Done({}, "well")

    async with cluster(5) as world:
        assert await worked(monkeypatch, world, work, for_programs=True, at_once=2)
    assert (most, trio.current_time()) == (2, 3.0)


async def test_bookies_are_chosen_by_the_beginning_of_their_ids(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(12) as world, world.client() as client:

        async def ids(*wanted: str) -> list[str]:
            return [each.bookie_id for each in await bookies.chosen(client, wanted)]

        assert len(await ids()) == 12
        assert await ids("bookie-03", "11", "03") == ["bookie-03", "bookie-11"]
        with pytest.raises(ConfigError, match=r"more than one.*bookie-10, bookie-11"):
            await ids("1")
        with pytest.raises(ConfigError, match="no such bookie"):
            await ids("bookie-99")


async def test_error_reports_no_announced_bookie(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(0) as world, world.client() as client:
        with pytest.raises(ConfigError, match="no bookie is announced"):
            await bookies.chosen(client, ())


def test_permanently_gone_bookie_is_declared_lost(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """B8a: what may be gone is listed, and declared only once that is accepted; an unknown bookie is an error."""
    with replog.blocking.embed(directory, bookies=2, storage="lmdb") as client:
        ids = sorted(bookie.bookie_id for bookie in client.admin.bookies())

    def lost(*arguments: str) -> tuple[int, str, str]:
        command = ["replog", "bookies", "lost", *arguments, "--metastore", f"lmdb:{directory}/metadata"]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    status, _, errors = lost("bookie-nobody")
    assert status != 0
    assert ids[0] in errors
    status, shown, errors = lost(*ids)
    assert (status != 0, shown) == (True, "")
    assert "ledger 1: entries 0 to 0" in errors
    status, shown, errors = lost(*ids, "--accept-loss", "--json")
    assert (status, errors) == (0, "")
    (line,) = lines(shown)
    assert line["bookie_ids"] == ids
    assert [each["ledger_id"] for each in line["entries_at_risk"]] == [1]
