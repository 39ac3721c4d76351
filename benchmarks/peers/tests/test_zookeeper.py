"""ZooKeeper's client, against bytes that were written by hand from zookeeper.jute."""

from pathlib import Path

import attrs
import pytest

from benchmarks.peers.pump import pump
from benchmarks.peers.system import Load, NotMeasured, System
from benchmarks.peers.systems import zookeeper, zookeeper_session
from benchmarks.peers.systems import zookeeper_jute as jute
from benchmarks.peers.systems.zookeeper import SYSTEM, connections_for, purge
from tests.servers.zookeeper import Settings

needs_zookeeper = pytest.mark.skipif(SYSTEM.missing() is not None, reason=str(SYSTEM.missing()))

CREATE = bytes.fromhex(
    "00000035 00000001 00000001"  # length, xid, create
    "00000003" + b"/l/".hex() + "00000003 616263"  # path, data
    "00000001 0000001f 00000005 776f726c64 00000006 616e796f6e65"  # one rule: all, world, anyone
    "00000002"  # sequential
)


def answer(body: bytes = b"", *, xid: int = 1, error: int = 0) -> bytes:
    header = xid.to_bytes(4, "big", signed=True) + (77).to_bytes(8, "big") + error.to_bytes(4, "big", signed=True)
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


def text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def event(kind: int, path: bytes) -> bytes:
    return answer(kind.to_bytes(4, "big") + (3).to_bytes(4, "big") + text(path), xid=-1)


def make_quick(monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
    quick = attrs.evolve(zookeeper.SETTINGS, tick_ms=500, java_options=Settings().java_options)
    for name, value in {"SETTINGS": quick, "WARM_UP_ENTRIES": 1, "WARM_UP": Load(100, 1000, 0.05), **more}.items():
        monkeypatch.setattr(zookeeper, name, value)


def test_requests() -> None:
    assert jute.create(b"/l/", b"abc", jute.SEQUENTIAL) == CREATE
    assert jute.create(b"/l/", b"abc") == CREATE[:-1] + b"\0"
    assert jute.connect(40_000) == bytes.fromhex(
        "0000002d 00000000 0000000000000000 00009c40 0000000000000000 00000010" + "00" * 16 + "00"
    )
    assert jute.get_data(b"/l") == bytes.fromhex("0000000f 00000001 00000004 00000002 2f6c 00")
    assert jute.get_children(b"/l") == bytes.fromhex("0000000f 00000001 00000008 00000002 2f6c 00")
    assert jute.add_watch(b"/l") == bytes.fromhex("00000012 00000001 0000006a 00000002 2f6c 00000001")


def test_nodes_are_deleted_in_one_request() -> None:
    one = "00000002 00 ffffffff 00000002 2f{} ffffffff"
    body = "00000001 0000000e" + one.format("61") + one.format("62") + "ffffffff 01 ffffffff"
    assert jute.delete([b"/a", b"/b"]) == text(bytes.fromhex(body))


def test_all_requests_of_a_load_are_the_same() -> None:
    assert jute.Creates(b"/l", b"abc").requests(3) == CREATE * 3


@pytest.mark.parametrize("cut_bytes", [1, 3, 19, 20, 21, 45, 1000])
def test_answers_are_understood_wherever_they_are_cut(cut_bytes: int) -> None:
    bodies = [b"", text(b"/l/0000000000"), b"x" * 50]
    received = answer(bodies[0]) + event(1, b"/l/new") + answer(bodies[1]) + event(3, b"/l") + answer(bodies[2])
    parts = [received[at : at + cut_bytes] for at in range(0, len(received), cut_bytes)]
    answers = jute.Answers()
    for part in parts:
        answers.receive(part)
    assert answers.bodies == bodies
    assert answers.created == [b"/l/new"]  # and not what was changed


@pytest.mark.parametrize("cut_bytes", [1, 3, 19, 20, 21, 45, 1000])
def test_confirmed_entries_are_counted_when_answers_are_cut(cut_bytes: int) -> None:
    received = b"".join(answer(text(b"/l/%010d" % number)) for number in range(5))
    creates = jute.Creates(b"/l", b"abc")
    parts = [received[at : at + cut_bytes] for at in range(0, len(received), cut_bytes)]
    counts = [creates.receive(part)[0] for part in parts]
    assert sum(counts) == 5
    assert counts[0] == cut_bytes // 37 or cut_bytes == 1000  # only whole answers count


def test_refusal_is_reported_with_its_number() -> None:
    with pytest.raises(NotMeasured, match="-101"):
        jute.Creates(b"/l", b"abc").receive(answer(text(b"/l/0")) + answer(error=jute.NO_NODE))
    with pytest.raises(jute.Refused) as refused:
        jute.Answers().receive(answer(error=jute.NODE_EXISTS))
    assert refused.value.error == jute.NODE_EXISTS


def test_texts_may_be_empty_or_absent() -> None:
    assert jute.text_at(text(b"abc") + b"more", 0) == b"abc"
    assert jute.text_at(b"\xff\xff\xff\xff", 0) == b""
    assert jute.texts(b"\0\0\0\3" + text(b"b") + text(b"") + text(b"a")) == [b"b", b"", b"a"]


def test_connections_share_requests_in_flight() -> None:
    assert [connections_for(in_flight) for in_flight in (1, 100, 1000, 10_000)] == [1, 5, 32, 32]
    assert [connections_for(in_flight, 1) for in_flight in (1, 100, 10_000)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("snapshots", "logs", "kept"),
    [
        # The oldest snapshot that stays began in the log of 30; what is older goes.
        ("5 20 3f 50 60", "1 10 30 40 58", "snapshot.3f snapshot.50 snapshot.60 log.30 log.40 log.58"),
        ("5 20 3f", "1 10", "snapshot.5 snapshot.20 snapshot.3f log.1 log.10"),
        ("", "1", "log.1"),
    ],
)
def test_only_files_no_kept_snapshot_needs_are_purged(snapshots: str, logs: str, kept: str, tmp_path: Path) -> None:
    names = [f"{kind}.{each}" for kind, zxids in (("snapshot", snapshots), ("log", logs)) for each in zxids.split()]
    for name in [*names, "currentEpoch"]:
        (tmp_path / name).touch()
    purge(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept.split(), "currentEpoch"}


@pytest.mark.slow
@needs_zookeeper
@pytest.mark.parametrize(("system", "sessions"), [(zookeeper.SYSTEM, {32}), (zookeeper_session.SYSTEM, {1})])
def test_a_load_has_as_many_sessions_as_it_says(
    system: System, sessions: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def pump_and_count(pairs: list[object], *arguments: object) -> object:
        asked.append(len(pairs))
        return pump(pairs, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(zookeeper, "pump", pump_and_count)
    make_quick(monkeypatch)
    with system.running(tmp_path) as running:
        assert running.append(Load(100, 1000, 0.05))["entries"] > 0
    assert set(asked) == sessions, "warm-ups too"


@pytest.mark.slow
@needs_zookeeper
def test_real_servers_support_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch, WARM_UP=Load(100, 10, 0.05))
    with SYSTEM.running(tmp_path) as running:
        assert len(running.process_ids) == 3
        for load in (Load(100, 1, 0.05), Load(1024, 100, 0.05), Load(65_536, 10, 0.05)):
            assert running.append(load)["entries"] > 0
        assert running.scan(100, 1500)["entries_per_s"] > 0
        assert running.tail(100, 20)["p50_us"] > 0
        assert running.take_over(100)["takeover_s"] > 0
        assert running.restart()["held_bytes"] > 0
