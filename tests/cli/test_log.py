"""`replog log` on an embedded log: what people and programs get, and the exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import replog
from replog.cli import entries
from replog.cli.log.appending import Tally
from replog.protocol.model import Position
from tests.cli.logs import SIX, entries_of, finish, make_log
from tests.cli.test_inspect import lines_of, run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def replog_log(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs `replog log` in this process, on the directory of this test; `given` is what its standard input has."""
    for name in ("REPLOG_METASTORE", "REPLOG_PASSWORD", "REPLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run_it(*arguments: str | Path, given: bytes = b"") -> tuple[int, str, str]:
        (tmp_path / "given").write_bytes(given)
        with open(tmp_path / "given") as file:
            monkeypatch.setattr(sys, "stdin", file)
            return run(capfd, "log", *arguments, "--dir", tmp_path / "wal")

    return run_it


# -- append -------------------------------------------------------------------------------------------------------


def test_lines_are_appended(replog_log: Run, tmp_path: Path) -> None:
    status, output, errors = replog_log("append", "log", given=b"one\ntwo\n\nfour")
    assert (status, output, errors) == (0, "log log: 4 entries appended from 1:0 to 1:3, 10 B\n", "")
    status, output, _ = replog_log("append", "log", "five", "six", "--positions")
    assert (status, output) == (0, "2:0\n2:1\n")
    assert entries_of(tmp_path / "wal") == [b"one", b"two", b"", b"four", b"five", b"six"]
    assert replog_log("append", "log")[:2] == (0, "log log: nothing to append\n")
    assert replog_log("append", "log", "x")[1] == "log log: 1 entry appended at 4:0, 1 B\n"


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        (["--null"], b"one\ntwo\0\0three", [b"one\ntwo", b"", b"three"]),
        (["--delimiter", "--"], b"one--two\n--", [b"one", b"two\n"]),
        (["--whole"], b"one\ntwo\n", [b"one\ntwo\n"]),
        (["--length-prefixed"], b"\0\0\0\4one\n\0\0\0\0", [b"one\n", b""]),
    ],
    ids=str,
)
def test_entries_are_separated_as_asked(
    replog_log: Run, tmp_path: Path, options: list[str], given: bytes, expected: list[bytes]
) -> None:
    assert replog_log("append", "log", *options, given=given)[0] == 0
    assert entries_of(tmp_path / "wal") == expected


def test_appending_for_programs(replog_log: Run) -> None:
    _, output, _ = replog_log("append", "log", "--json", given=b"one\ntwo\n")
    found = json.loads(output)
    assert found.pop("duration_s") > 0
    assert found == {
        "log": "log",
        "entries": 2,
        "first_position": "1:0",
        "last_position": "1:1",
        "unknown_entries": 0,
        "first_unknown_position": None,
        "last_unknown_position": None,
        "pushed_bytes": 6,
        "unfinished_bytes": 0,
        "error": None,
    }
    _, output, _ = replog_log("append", "log", "--json", "--positions", given=b"one\nthree\n")
    first, second, summary = lines_of(output)
    assert first == {"kind": "entry", "position": "2:0", "size_bytes": 3}
    assert second == {"kind": "entry", "position": "2:1", "size_bytes": 5}
    assert (summary["kind"], summary["entries"]) == ("summary", 2)


def test_positions_go_on_across_a_roll(replog_log: Run, tmp_path: Path) -> None:
    # Two entries at a time, five hundred times: a roll goes on beside them, and is to end before they do.
    given = b"".join(b"%0100d\n" % number for number in range(1000))
    options = ("--option", "roll_bytes=300", "--option", "in_flight_bytes_max=200")
    _, output, _ = replog_log("append", "log", "--positions", *options, given=given)
    positions = [Position.parse(line) for line in output.splitlines()]
    assert len(positions) == len(set(positions)) == 1000
    assert positions == sorted(positions)
    assert positions[-1].segment > 1
    assert entries_of(tmp_path / "wal") == given.splitlines()


def test_entries_before_a_too_long_line_are_confirmed(
    replog_log: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", 10)
    status, output, errors = replog_log("append", "log", "--json", given=b"one\ntwo\n" + b"x" * 11 + b"\nfour\n")
    assert status == 1
    assert "standard input, line 3: is longer than an entry can be, 10 B" in errors
    assert "2 entries are confirmed (1:0..1:1)" in errors
    assert "unknown" not in errors
    assert (json.loads(output)["entries"], json.loads(output)["unknown_entries"]) == (2, 0)
    assert "line 3" in json.loads(output)["error"]
    assert entries_of(tmp_path / "wal") == [b"one", b"two"]


def test_more_is_appended_than_may_be_in_flight(
    replog_log: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The bytes are bounded by the client, the number of entries here."""
    monkeypatch.setattr("replog.cli.log.appending._UNSETTLED_MAX", 7)
    lines = b"".join(b"%d\n" % number for number in range(300))
    options = ("--option", "in_flight_bytes_max=40")
    status, output, _ = replog_log("append", "log", "--positions", *options, given=lines)
    assert (status, len(output.splitlines())) == (0, 300)
    assert entries_of(tmp_path / "wal") == lines.splitlines()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["append", "log", "x", "--null"], "entries are given as arguments"),
        (["append", "log", "--quorum", "3"], "--quorum 3: it is written ENSEMBLE,WRITE,ACK"),
        (["append", "log", "--quorum", "1,2,3", "x"], "ensemble >= write >= ack >= 1"),
        (["append", "log", "--digest", "md5"], "there are crc32c and hmac-sha256"),
        (["append", "bad\nname", "x"], "cannot be the name of a log"),
        (["read", "log", "--after", "seventeen"], "invalid position"),
        (["read", "log", "--since", "yesterday"], "is not a time: write how long ago"),
        (["read", "log", "--since", "2026-11-23T08:00"], "has no time zone: write it as 2026-11-23T08:00:00Z"),
        (["read", "log", "--json", "--null"], "--json includes everything"),
        (["read", "log", "--option", "x"], "name=value"),
        (["trim", "log", "--before", "17"], "invalid position"),
        (["retain", "log"], "nothing says what to keep: give --age, --bytes or --committed"),
        (["retain", "log", "--bytes", "much"], "write a size as"),
        (["delete", "log"], "use --yes"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_invalid_requests_are_status_2_and_make_nothing(
    replog_log: Run, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    status, output, errors = replog_log(*arguments)
    assert (status, output) == (2, "")
    assert problem in errors
    made = tmp_path / "wal"
    assert not made.exists() or "bad\nname" in arguments or "1,2,3" in arguments


def test_tally_counts_confirmed_entries() -> None:
    tally = Tally()
    for position in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)):
        tally.push(Position(*position), 10)
    assert tally.confirm(None) == []
    assert tally.unknown == (Position(1, 0), Position(3, 0))
    assert tally.confirm(Position(1, 1)) == [Position(1, 0), Position(1, 1)]
    assert tally.confirm(Position(1, 1)) == []
    assert tally.confirm(Position(2, 0)) == [Position(1, 2), Position(2, 0)]
    assert tally.confirmed == 4
    assert tally.unknown == (Position(2, 1), Position(3, 0))
    assert tally.confirm(Position(3, 0)) == [Position(2, 1), Position(3, 0)]
    assert (tally.confirmed, tally.pushed, tally.pushed_bytes) == (6, 6, 60)
    assert not tally.unknown
    assert (tally.first, tally.last_confirmed) == (Position(1, 0), Position(3, 0))


# -- read and tail ------------------------------------------------------------------------------------------------


def test_a_log_is_read(replog_log: Run, tmp_path: Path) -> None:
    make_log(tmp_path / "wal", SIX[:3], [], SIX[3:])
    assert replog_log("read", "log") == (0, "one\ntwo\nthree\nfour\n\nsix\n", "")
    assert replog_log("read", "log", "--after", "1:1", "--limit", "3")[1] == "three\nfour\n\n"
    assert replog_log("read", "log", "--limit", "0")[1] == ""
    assert replog_log("read", "log", "--positions", "--limit", "4")[1] == "1:0\tone\n1:1\ttwo\n1:2\tthree\n3:0\tfour\n"
    assert replog_log("read", "log", "--delimiter", ";", "--limit", "2")[1] == "one;two;"
    assert replog_log("read", "log", "--after", "3:2")[1] == ""
    status, _, errors = replog_log("read", "log", "--after", "9:0")
    assert (status, "is not a position of log 'log': its last segment is 3" in errors) == (2, True)
    assert replog_log("read", "log", "--since", "1h", "--limit", "1")[1] == "one\n"
    assert replog_log("read", "log", "--since", "2020-01-01T00:00:00+02:00", "--limit", "1")[1] == "one\n"
    assert replog_log("read", "log", "--since", "2120-01-01T00:00Z")[1] == ""
    status, _, errors = replog_log("read", "log", "--since", "1h", "--after", "1:1")
    assert (status, "exclude each other" in errors) == (2, True)
    status, output, errors = replog_log("read", "another")
    assert (status, output, "there is no such log" in errors) == (1, "", True)
    _, output, _ = replog_log("read", "log", "--json", "--after", "1:2", "--limit", "2")
    found = lines_of(output)
    assert [(each["kind"], each["position"], each["data"]) for each in found] == [
        ("record", "3:0", "four"),
        ("record", "3:1", ""),
    ]
    assert str(found[0]["timestamp"]).startswith("20")


def test_any_bytes_are_read_back(replog_log: Run, tmp_path: Path) -> None:
    payloads = [bytes(range(256)), b"", b"\n\0\n", b"x" * 100_000]
    make_log(tmp_path / "wal", payloads)
    status, written, _ = finish("log", "read", "log", "--length-prefixed", "--dir", tmp_path / "wal")
    assert status == 0
    assert replog_log("append", "copy", "--length-prefixed", given=written)[0] == 0
    assert entries_of(tmp_path / "wal", "copy") == payloads


def test_keys_and_headers_are_appended_and_shown(replog_log: Run) -> None:
    keyed = ["--key", "k", "--header", "a=1", "--header", "b=x=y"]
    assert replog_log("append", "log", "one", "two", *keyed)[0] == 0
    assert replog_log("append", "log", "plain")[0] == 0
    assert replog_log("read", "log")[1] == "one\ntwo\nplain\n"
    assert replog_log("read", "log", "--keys", "--positions")[1] == "1:0\tk\tone\n1:1\tk\ttwo\n2:0\t\tplain\n"
    assert replog_log("tail", "log", "-n", "2", "--keys")[1] == "k\ttwo\n\tplain\n"
    first, _, plain = lines_of(replog_log("read", "log", "--json")[1])
    assert (first["key"], first["headers"], first["data"]) == ("k", {"a": "1", "b": "x=y"}, "one")
    assert (first["key_base64"], first["headers_base64"]) == (None, {"a": None, "b": None})
    assert "key" not in plain
    for invalid in (["--header", "a"], ["--header", "a=1", "--header", "a=2"]):
        assert replog_log("append", "log", "no", *invalid)[0] == 2
    assert replog_log("read", "log", "--keys", "--length-prefixed")[0] == 2
    assert replog_log("read", "log", "--keys", "--json")[0] == 2


def test_a_log_is_compacted_into_another(replog_log: Run) -> None:
    for key, entry in (("a", "1"), ("b", "2"), ("a", "3")):
        assert replog_log("append", "log", entry, "--key", key)[0] == 0
    done = "log new: 2 of 3 entries kept, of 2 keys; log log was read, up to 3:0\n"
    assert replog_log("compact", "log", "--into", "new") == (0, done, "")
    assert replog_log("read", "new", "--keys")[1] == "b\t2\na\t3\n"
    found = json.loads(replog_log("compact", "log", "--into", "newer", "--json")[1])
    assert found == {"log": "log", "into": "newer", "read_entries": 3, "kept_entries": 2, "keys": 2, "through": "3:0"}
    status, _, errors = replog_log("compact", "log", "--into", "new")
    assert (status, "there is a log 'new' already" in errors) == (2, True)


def test_the_last_entries_are_found_without_reading_the_rest(
    replog_log: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_log(tmp_path / "wal", SIX[:3], [], SIX[3:])
    asked: list[object] = []
    read_log = replog.Client.read_log

    def noted(client: replog.Client, name: str, *, after: Position | None, **options: bool | bytes) -> object:
        asked.append(after)
        return read_log(client, name, after=after, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(replog.Client, "read_log", noted)
    expected = [*(f"{each.decode()}\n" for each in SIX)]
    for count, after in ((0, (3, 2)), (1, (3, 1)), (3, (3, -1)), (4, (1, 1)), (6, (1, -1)), (7, None)):
        assert replog_log("tail", "log", "-n", str(count))[1] == "".join(
            expected[6 - count :] if count < 6 else expected
        )
        assert asked.pop() == after
    assert replog_log("tail", "log")[1] == "".join(expected)
    status, _, errors = replog_log("tail", "another")
    assert (status, "there is no such log" in errors) == (1, True)


# -- list, show, trim, delete -------------------------------------------------------------------------------------


def test_logs_are_listed(replog_log: Run, tmp_path: Path) -> None:
    make_log(tmp_path / "wal", [b"one"], [b"two"], name="b")
    make_log(tmp_path / "wal", [b"one"], name="a log")
    assert replog_log("list")[1] == "a log\nb\n"
    assert lines_of(replog_log("list", "--json")[1]) == [{"kind": "log", "log": name} for name in ("a log", "b")]
    heading, first, second = replog_log("list", "--long")[1].splitlines()
    assert heading.split()[:7] == ["log", "segments", "entries", "payloads", "archived", "begins", "at"]
    assert first.split()[:9] == ["a", "log", "1", "1", "3", "B", "0", "B", "1:0"]
    assert second.split()[:8] == ["b", "2", "2", "6", "B", "0", "B", "1:0"]
    found = lines_of(replog_log("list", "--long", "--json")[1])
    assert [(each["entries"], each["size_bytes"], each["end"], each["cursors"]) for each in found] == [
        (1, 3, "1:1", []),
        (2, 6, "2:1", []),
    ]
    assert [(each["log"], each["segment_count"], each["begins_at"]) for each in found] == [
        ("a log", 1, "1:0"),
        ("b", 2, "1:0"),
    ]


def test_a_log_is_shown_trimmed_and_deleted(replog_log: Run, tmp_path: Path) -> None:
    make_log(tmp_path / "wal", SIX[:3], [b"x" * 5000], [])
    assert replog_log("append", "log", "last")[0] == 0
    status, output, _ = replog_log("show", "log", "--json")
    found = json.loads(output)
    assert status == 0
    assert (found["log"], found["segment_count"], found["begins_at"], found["next_segment"]) == ("log", 4, "1:0", 5)
    shown = [(each["number"], each["state"], each["entries"], each["size_bytes"]) for each in found["segments"]]
    assert shown == [(1, "closed", 3, 11), (2, "closed", 1, 5000), (3, "closed", 0, 0), (4, "closed", 1, 4)]
    assert [each["last_position"] for each in found["segments"]] == ["1:2", "2:0", None, "4:0"]
    assert "replog log append, process " in found["segments"][-1]["writer"]
    assert found["segments"][0]["writer"] is None
    _, output, _ = replog_log("show", "log")
    assert "log log: 4 segments, 5 entries, 4.9 KiB; closed: nobody writes to it" in output
    assert json.loads(replog_log("show", "log", "--no-sizes", "--json")[1])["segments"][0]["size_bytes"] is None

    assert replog_log("retain", "log", "--age", "1d")[1] == "log log: no segments dropped; it begins at 1:0\n"
    assert replog_log("trim", "log", "--before", "1:2")[1] == "log log: no segments dropped; it begins at 1:0\n"
    assert replog_log("trim", "log", "--before", "3:0")[1] == "log log: 2 segments dropped; it begins at 3:0\n"
    trimmed = json.loads(replog_log("trim", "log", "--before", "4:0", "--json")[1])
    assert trimmed == {"log": "log", "dropped_segments": 1, "begins_at": "4:0"}
    status, _, errors = replog_log("read", "log", "--after", "1:1")
    assert (status, "was trimmed away; the log begins at 4:0" in errors) == (1, True)
    assert replog_log("delete", "log", "--yes") == (0, "log log: deleted\n", "")
    assert replog_log("list") == (0, "", "")
    assert replog_log("delete", "log", "--yes")[0] == 1


def test_a_log_is_swept(replog_log: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with replog.embed(tmp_path / "wal") as client:
            for job, is_handed_in in (("a", True), ("a", False), ("b", False), ("c", False)):
                async with client.create_ledger(custom={"log": "log", "job": job}) as writer:
                    await writer.append(job.encode())
                if is_handed_in:
                    await client.jobs.append_ledgers("log", [writer.ledger_id], job=job)

    trio.run(main)
    status, _, errors = replog_log("sweep", "log", "--grace", "soon")
    assert (status, "'soon' is not a duration" in errors) == (2, True)
    assert replog_log("sweep", "log") == (0, "log log: 1 ledger deleted that it does not need\n", "")
    assert len(json.loads(replog_log("sweep", "log", "--job", "b", "--json")[1])["deleted_ledgers"]) == 1
    assert replog_log("sweep", "log") == (0, "log log: no ledgers deleted that it does not need\n", "")
    found = json.loads(replog_log("sweep", "log", "--grace", "0s", "--json")[1])
    assert (found["log"], len(found["deleted_ledgers"])) == ("log", 1)
    assert replog_log("read", "log")[1] == "a\n"


def test_transactions_are_listed_and_retired(replog_log: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with replog.embed(tmp_path / "wal") as client:
            for transaction in (("query:7", 3), ("txn:nightly", 1)):
                await client.jobs.append_ledgers("log", [], transaction=transaction)

    trio.run(main)
    lines = replog_log("transactions", "log")[1].splitlines()
    assert [line.split()[:3] for line in lines[1:] if line] == [["query:7", "3", "stream"], ["txn:nightly", "1", "job"]]
    found = json.loads(replog_log("transactions", "log", "--json")[1])["transactions"]
    assert [(each["id"], each["number"], each["of"]) for each in found] == [
        ("query:7", 3, "stream"),
        ("txn:nightly", 1, "job"),
    ]
    assert replog_log("transactions", "log", "--retire", "query:7", "--yes")[1] == "log log: 1 transaction retired\n"
    retired = replog_log("transactions", "log", "--older-than", "0s", "--yes", "--json")[1]
    assert json.loads(retired) == {"log": "log", "retired": ["txn:nightly"]}
    assert replog_log("transactions", "log", "--older-than", "soon", "--yes")[0] == 2


def test_producers_are_listed_and_retired(replog_log: Run, tmp_path: Path) -> None:
    assert replog_log("append", "log", "--id", "till:1", "a", "b")[0] == 0
    assert replog_log("append", "log", "--id", "x:y:7", "c")[0] == 0
    lines = replog_log("producers", "log")[1].splitlines()
    assert [line.split()[:2] for line in lines[1:] if line] == [["till", "2"], ["x:y", "7"]]
    found = json.loads(replog_log("producers", "log", "--json")[1])["producers"]
    assert [(each["producer"], each["last_sequence"]) for each in found] == [("till", 2), ("x:y", 7)]
    assert replog_log("producers", "log", "--retire", "till", "--yes")[1] == "log log: 1 producer retired\n"
    retired = replog_log("producers", "log", "--older-than", "0s", "--yes", "--json")[1]
    assert json.loads(retired) == {"log": "log", "retired": ["x:y"]}


def test_entries_with_ids_are_appended_once(replog_log: Run) -> None:
    words = ("append", "log", "--id", "till:1", "--positions")
    assert replog_log(*words, "a", "b")[1] == "1:0\n1:1\n"
    assert replog_log(*words, "a", "b", "c")[1] == "1:0\n1:1\n2:0\n"
    found = json.loads(replog_log("append", "log", "--id", "till:2", "b", "--json")[1])
    assert (found["entries"], found["first_position"], found["last_position"]) == (1, "1:1", "1:1")
    assert replog_log("read", "log")[1] == "a\nb\nc\n"
    for wrong in ("till", ":1", "till:-1", "till:x", "till:"):
        assert replog_log("append", "log", "--id", wrong, "d")[0] == 2


def test_a_log_without_segments(replog_log: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with replog.embed(tmp_path / "wal") as client:
            await client.jobs.append_ledgers("log", [], transaction=("t", 1))

    trio.run(main)
    assert replog_log("list")[1] == "log\n"
    assert "0" in replog_log("list", "--long")[1].splitlines()[1].split()
    assert "log log: 0 segments, 0 entries" in replog_log("show", "log")[1]
    assert json.loads(replog_log("show", "log", "--json")[1])["segments"] == []
    for arguments in (["read", "log"], ["tail", "log"], ["tail", "log", "-n", "3"]):
        assert replog_log(*arguments) == (0, "", "")
    assert replog_log("append", "log", "one")[0] == 0
    assert replog_log("read", "log")[1] == "one\n"


def test_segments_in_pages_are_shown_too(replog_log: Run, tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(1, 10)]
    make_log(tmp_path / "wal", *([line] for line in lines), page_segments=2)
    found = json.loads(replog_log("show", "log", "--json")[1])
    assert [each["number"] for each in found["segments"]] == list(range(1, 10))
    assert (found["segment_count"], found["begins_at"]) == (9, "1:0")
    assert "log log: 9 segments, 9 entries" in replog_log("show", "log")[1]
    for count in range(11):
        assert replog_log("tail", "log", "-n", str(count))[1].split() == [
            f"{number}" for number in range(max(1, 10 - count), 10)
        ]
    assert replog_log("trim", "log", "--before", "6:0")[1] == "log log: 5 segments dropped; it begins at 6:0\n"
    assert [line["segment_count"] for line in lines_of(replog_log("list", "--long", "--json")[1])] == [4]


def test_a_log_with_a_password(replog_log: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    assert replog_log("append", "log", "one", "--password-file", file, "--digest", "hmac-sha256")[0] == 0
    for arguments in (["read", "log"], ["tail", "log"], ["append", "log", "two"]):
        status, output, errors = replog_log(*arguments)
        assert (status, output) == (1, "")
        assert "the password is not this ledger's" in errors
    # The record says how many bytes a closed ledger has; an open one's bookies would have to be asked.
    status, output, _ = replog_log("show", "log")
    assert (status, "log log: 1 segment, 1 entry, 3 B; closed" in output) == (0, True)
    monkeypatch.setenv("REPLOG_PASSWORD", "secret")
    assert replog_log("read", "log")[1] == "one\n"
    assert entries_of(tmp_path / "wal", password=b"secret") == [b"one"]


def test_logs_are_listed_page_by_page(replog_log: Run) -> None:
    for name in ("eu/a", "eu/b", "eu/c", "us/a"):
        replog_log("append", name, "x")
    assert replog_log("list", "--limit", "2")[1] == "eu/a\neu/b\n"
    assert replog_log("list", "--limit", "2", "--after", "eu/b")[1] == "eu/c\nus/a\n"
    assert replog_log("list", "--prefix", "eu/", "--after", "eu/b")[1] == "eu/c\n"
    assert replog_log("list", "--limit", "0")[0] == 2


def test_directory_open_elsewhere_is_refused(replog_log: Run, tmp_path: Path) -> None:
    async def hold() -> tuple[int, bytes, str]:
        async with replog.embed(tmp_path / "wal"):
            return await trio.to_thread.run_sync(lambda: finish("log", "list", "--dir", tmp_path / "wal"))

    status, output, errors = trio.run(hold)
    assert (status, output) == (1, b"")
    assert errors.startswith(f"replog: {tmp_path}/wal/bookie-0 is open in process ")
