"""The verdict of the demonstration is worth nothing unless it fails: so each kind of fault is put before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.demo.reports import Confirmed
from replog.demo.verdict import EntriesDigest, Findings, Verification
from replog.protocol.model import Position

LINES = [b"line %d\n" % number for number in range(1000)]
Log = list[tuple[Position, bytes]]


def log_of(lines: list[bytes], *, first_segment: int = 400) -> Log:
    """The entries where leaders would have put them: segment 1 up to the takeover, segment 2 from there on."""
    return [
        (Position(1, index) if index < first_segment else Position(2, index - first_segment), line)
        for index, line in enumerate(lines)
    ]


def told(log: Log) -> list[Confirmed]:
    """Confirmations in steps, and for the last entry."""
    counts = [*range(1, len(log), 37), len(log)]
    return [Confirmed(count, log[count - 1][0], count) for count in counts]


def judge(log: Log, confirmed: list[Confirmed], lines: list[bytes] = LINES, *, batch: int = 64) -> Findings:
    """Feeds the log in batches of consecutive entries of one segment."""
    verification = Verification(itertools.cycle(lines), confirmed)
    for _, segment in itertools.groupby(log, key=lambda each: each[0].segment):
        records = list(segment)
        for start in range(0, len(records), batch):
            some = records[start : start + batch]
            verification.feed(some[0][0], [data for _, data in some])
    return verification.finish()


GOOD = log_of(LINES)


@pytest.mark.parametrize("batch", [1, 7, 64, 5000])
def test_the_input_in_its_place_passes(batch: int) -> None:
    findings = judge(GOOD, told(GOOD), batch=batch)
    assert findings.faults == ()
    assert (findings.confirmed, findings.read) == (1000, 1000)
    assert findings.digest_expected == findings.digest_read


def missing(index: int) -> Log:
    return log_of(LINES[:index] + LINES[index + 1 :])


def doubled(index: int) -> Log:
    return log_of(LINES[: index + 1] + LINES[index:])


def changed(index: int) -> Log:
    return log_of([*LINES[:index], LINES[index][:-2] + b"!\n", *LINES[index + 1 :]])


def swapped(index: int) -> Log:
    index = min(index, len(LINES) - 2)
    return log_of([*LINES[:index], LINES[index + 1], LINES[index], *LINES[index + 2 :]])


@pytest.mark.parametrize("batch", [1, 7, 64, 5000])
@pytest.mark.parametrize("index", [0, 1, 399, 400, 500, 997, 998, 999])
@pytest.mark.parametrize(
    ("spoil", "kind"),
    [(missing, "missing"), (doubled, "doubled"), (changed, "changed"), (swapped, "out of order")],
)
def test_one_bad_entry_fails_and_is_called_by_its_name(
    spoil: Callable[[int], Log], kind: str, index: int, batch: int
) -> None:
    findings = judge(spoil(index), told(GOOD), batch=batch)
    assert any(fault.startswith(kind) for fault in findings.faults), findings.faults
    assert findings.digest_expected != findings.digest_read


def test_an_entry_of_nobodys_fails() -> None:
    findings = judge(log_of([*LINES[:500], b"who wrote this?", *LINES[500:]]), told(GOOD))
    assert any(fault.startswith("foreign") for fault in findings.faults)


def test_a_block_that_moved_fails() -> None:
    findings = judge(log_of([*LINES[:100], *LINES[110:120], *LINES[100:110], *LINES[120:]]), told(GOOD))
    assert any(fault.startswith("out of order") for fault in findings.faults)


def test_an_entry_that_was_lost_and_appended_again_fails() -> None:
    """The bytes are the input, so only the place gives it away: the recovery cut a confirmed entry off."""
    again = log_of(LINES, first_segment=399)
    findings = judge(again, told(GOOD))
    assert findings.digest_expected == findings.digest_read
    assert [fault.split(":")[0] for fault in findings.faults] == ["missing or out of order"]


@pytest.mark.parametrize("read", [0, 1, 999])
def test_a_log_that_ends_early_fails(read: int) -> None:
    findings = judge(GOOD[:read], told(GOOD))
    assert any(fault.startswith("missing") for fault in findings.faults)


def test_equal_lines_are_counted() -> None:
    blank = [b"\n"] * 100
    good = log_of(blank)
    assert judge(good, told(good), blank).faults == ()
    assert any("missing" in fault for fault in judge(good[:-1], told(good), blank).faults)
    assert any("doubled" in fault for fault in judge(log_of([*blank, b"\n"]), told(good), blank).faults)


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=40), st.data())
def test_no_spoilt_log_ever_passes(lines: list[bytes], data: st.DataObject) -> None:
    good = log_of(lines, first_segment=data.draw(st.integers(1, 40)))
    spoilt = list(lines)
    index = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["missing", "doubled", "changed", "moved"])):
        case "missing":
            del spoilt[index]
        case "doubled":
            spoilt.insert(index, spoilt[index])
        case "changed":
            spoilt[index] += b"x"
        case "moved":
            spoilt.insert(data.draw(st.integers(0, len(lines) - 1)), spoilt.pop(index))
    same = spoilt == lines
    findings = judge(log_of(spoilt), [Confirmed(len(good), good[-1][0], len(good))], lines, batch=3)
    if not same:
        assert findings.faults
    assert judge(good, told(good), lines, batch=3).faults == ()


def test_the_digest_knows_where_entries_end() -> None:
    one, other = EntriesDigest(), EntriesDigest()
    one.update([b"ab", b"c"])
    other.update([b"a", b"bc"])
    assert one.hexdigest() != other.hexdigest()
