"""A member's directory: its name stays its own, and a disk that lost anything has a new one (Q11)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from replog.errors import MetastoreCorruptError, MetastoreError, MetastoreUnavailableError, RemoteProtocolError
from replog.metastores.quorum.directory import MemberDirectory
from replog.metastores.quorum.rescuing import look
from replog.metastores.quorum.running import MemberConfig, running_member
from replog.metastores.quorum.store import MemberStore, Stored
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base, Kind, LogEntry
from replog.protocol.consensus.outbox import Write
from replog.registry import Registry

BASE = Base(1, 1, Membership((("first",),), {"first": "m1:3181"}))


def made(path: Path, name: str = "first", entries: int = 3) -> None:
    opened = MemberDirectory(path, name)
    opened.store.put_cluster("c1", BASE)
    for number in range(entries):
        entry = LogEntry(1, Kind.COMMANDS, b"%d" % number)
        opened.store.write(Write(number + 1, 1, None, None, number + 2, (entry,)), {}, 1)
    opened.close()


def test_name_stays(tmp_path: Path) -> None:
    made(tmp_path)
    for other in ("second", "third"):
        opened = MemberDirectory(tmp_path, other)
        assert (opened.name, opened.store.cluster, opened.store.load().log.last) == ("first", "c1", 4)
        opened.close()
    assert not list(tmp_path.glob("left-*"))


def lose_name(path: Path) -> None:
    (path / "member.json").unlink()


def lose_state(path: Path) -> None:
    shutil.rmtree(path / "state")


def lose_mark(path: Path) -> None:
    (path / "state" / "durable-mark").unlink()


def damage_mark(path: Path) -> None:
    (path / "state" / "durable-mark").write_bytes(bytes(12))


def damage_name(path: Path) -> None:
    (path / "member.json").write_text("{")


def mix(path: Path) -> None:
    made(path / "other", "other")
    shutil.rmtree(path / "state")
    (path / "other" / "state").rename(path / "state")


def lose_data(path: Path) -> None:
    (path / "state" / "data.mdb").unlink()


@pytest.mark.parametrize("lose", [lose_name, lose_state, lose_mark, damage_mark, damage_name, mix, lose_data])
def test_directory_that_lost_something_is_a_new_member(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    made(tmp_path)
    lose(tmp_path)
    opened = MemberDirectory(tmp_path, "second")
    assert (opened.name, opened.store.cluster, opened.store.load().log.last) == ("second", "", 0)
    opened.close()
    assert list(tmp_path.glob("left-second"))
    again = MemberDirectory(tmp_path, "third")
    assert again.name == "second"
    again.close()


@pytest.mark.parametrize(("file", "name"), [("data.mdb", "second"), ("durable-mark", "first")])
def test_store_that_went_back_is_a_new_member_and_a_mark_may_lag_behind(tmp_path: Path, file: str, name: str) -> None:
    """The first as after a lost meta page, or a file that was put back without its mark. After a power loss a mark is a lower
    bound."""
    made(tmp_path)
    path = tmp_path / "state" / file
    before = path.read_bytes()
    opened = MemberDirectory(tmp_path, "x")
    opened.store.write(Write(1, 2, "first", None, 0, ()), {}, 1)
    opened.close()
    path.write_bytes(before)
    opened = MemberDirectory(tmp_path, "second")
    assert opened.name == name
    opened.close()


def test_damaged_data_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    made(tmp_path)
    data = tmp_path / "state" / "data.mdb"
    data.write_bytes(b"\xff" * 8192)
    for _ in range(2):
        with pytest.raises(MetastoreCorruptError, match=r"move .* away and start again"):
            MemberDirectory(tmp_path, "second")
    assert data.read_bytes() == b"\xff" * 8192


def test_format_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """Q20."""
    made(tmp_path)
    (tmp_path / "member.json").write_text('{"format": 2, "name": "first"}')
    with pytest.raises(MetastoreError, match="update replog"):
        MemberDirectory(tmp_path, "second")


async def test_disk_that_fails_while_a_member_begins_raises_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error of LMDB's leaves the package, and neither does one about an entry that was damaged."""
    made(tmp_path)
    config = MemberConfig(tmp_path, "memory:m0", ("memory:m0",))
    failures = {
        lmdb.Error("MDB_PANIC"): MetastoreUnavailableError,
        RemoteProtocolError("damaged"): MetastoreCorruptError,
    }
    for raised, expected in failures.items():

        def fail(_store: MemberStore, raised: Exception = raised) -> Stored:
            raise raised

        monkeypatch.setattr(MemberStore, "load", fail)
        async with running_member(config, Registry().open_transport, None) as member:
            with pytest.raises(expected, match=str(tmp_path)):
                await member.begin()
        with pytest.raises(expected, match=str(tmp_path)):
            look(tmp_path)
