"""The parts of the demonstration that need no process: the input, the reports, the quota, and what a follower is told."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest

from replog.demo import input as demo_input
from replog.demo.appending import Quota
from replog.demo.errors import DemoFailedError
from replog.demo.input import Input, spool
from replog.demo.reports import (
    BookieReplaced,
    Closed,
    Confirmed,
    Connected,
    Fenced,
    Followed,
    Replayed,
    Report,
    TakenOver,
    decode,
    encode,
)
from replog.demo.results import Reading
from replog.demo.verdict import Findings
from replog.errors import ConfigError
from replog.protocol.model import Position


def test_the_standard_library_reads_the_same_each_time() -> None:
    first = list(itertools.islice(Input().lines(), 5000))
    assert first[2000:] == list(itertools.islice(Input().lines(2000), 3000))
    assert sum(map(len, first)) > 50_000


def test_lines_of_any_bytes_are_the_file_again_and_again(tmp_path: Path) -> None:
    data = b"one\r\n\n\x00\xff\x80two\nlast without an end"
    (tmp_path / "input").write_bytes(data)
    lines = list(itertools.islice(Input(tmp_path / "input").lines(), 8))
    assert b"".join(lines[:4]) == data
    assert lines[:4] == lines[4:]
    assert list(itertools.islice(Input(tmp_path / "input").lines(5), 3)) == lines[5:]


def test_a_line_of_great_length_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_input, "LINE_BYTES_MAX", 10)
    (tmp_path / "input").write_bytes(b"x" * 25)
    assert list(itertools.islice(Input(tmp_path / "input").lines(), 3)) == [b"x" * 10, b"x" * 10, b"x" * 5]


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_an_input_without_lines_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ConfigError, match=name):
        next(Input(tmp_path / name).lines())


def test_a_spooled_input_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_input, "SPOOLED_BYTES_MAX", 10)
    assert spool(io.BytesIO(b"x" * 10), tmp_path / "copy", "it")
    assert not spool(io.BytesIO(b"x" * 11), tmp_path / "copy", "it")
    assert (tmp_path / "copy").read_bytes() == b"x" * 10
    with pytest.raises(ConfigError, match="it: is empty"):
        spool(io.BytesIO(), tmp_path / "copy", "it")


@pytest.mark.parametrize(
    "report",
    [
        Connected(5),
        TakenOver(2, (1, 7), 0.25),
        Replayed(0),
        Confirmed(9, Position(2, 8), 12, 1.5),
        BookieReplaced(4, "one", "another", 2.5),
        Fenced(Position(2, 9), Position(2, 11), 3, 3.5),
        Closed(9),
        Followed(9, "abc", 4.5),
    ],
)
def test_reports_come_over_whole(report: Report) -> None:
    line = encode(report)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == report


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"\xff", b'{"report": "Nothing"}', b'{"report": "Replayed", "entries": "x"}']
)
def test_what_is_no_report_is_refused(line: bytes) -> None:
    with pytest.raises(DemoFailedError):
        decode(line)


def test_a_quota_ends_with_what_is_reached_first() -> None:
    assert Quota().fraction(10**9, 10**9) is None
    assert Quota(entries=100).fraction(50, 10**9) == 0.5
    assert Quota(entries=100, seconds=2.0).fraction(50, 1.5) == 0.75


def test_a_follower_that_read_something_else_is_a_fault() -> None:
    findings = Findings(9, 9, 90, "a", "a", ())
    assert Reading(findings, 9, "a", 0.1).faults == ()
    assert "checksums" in Reading(findings, 9, "b", 0.1).faults[0]
    assert "read 8 entries, and 9" in Reading(findings, 8, "a", 0.1).faults[0]
