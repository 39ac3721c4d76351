"""Traces of the simulator's machines and of real processes, which TLC reads: some in the long lane, and the known bugs."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import trio

import replog
from tests.simulator.mutants import MUTANTS, mutant_named
from tests.spec import process_traces, tlc
from tests.spec.recording import Recorder, Trace, recording_machines
from tests.spec.traces import MUTANTS_REJECTED_MIN, Named, check, check_mutants, record, record_mutant


@pytest.fixture
def fetched_checker() -> None:
    try:
        tlc.fetch()
    except tlc.CheckerError as error:
        pytest.skip(str(error))


def test_trace_names_actions_of_writer_recovery_and_bookies() -> None:
    traces = record(range(6), scenario="ledger")
    kinds = {event[0] for named in traces for event in named.trace.events}
    assert {"send", "stored", "confirmed", "fences", "heard fence", "finds end", "wrote"} <= kinds
    names = {event[1] for named in traces for event in named.trace.events if event[0] == "send"}
    assert names <= {"creator", *(f"r{number}" for number in range(1, 100))}


def test_recording_changes_nothing_for_the_code() -> None:
    before = [each.trace for each in record(range(1))]
    assert [each.trace for each in record(range(1))] == before


def test_mutant_ends_its_record_at_the_revealing_seed() -> None:
    [first, *_] = record_mutant(mutant_named("confirmed-out-of-order"), 20)
    assert first.violation


def test_trace_follows_takeovers_of_an_unbounded_ledger() -> None:
    [named] = record(range(1), scenario="unbounded")
    assert named.trace.is_unbounded
    states = [event[2] for event in named.trace.events if event[0] == "wrote"]
    assert states.count("IN_RECOVERY") > 1
    took_over = {event[1] for event in named.trace.events if event[:1] == ("wrote",) and event[2] == "OPEN"}
    assert any(event[1] in took_over - {"creator"} for event in named.trace.events if event[0] == "confirmed")


def test_record_of_an_uncommitted_transaction_is_left_out(tmp_path: Path) -> None:
    begins = attrs.asdict(Trace(7, (2, 2, 2), ("bookie-x", "bookie-y")))
    lines = [
        {"ledger": 7, "begins": begins},
        {"ledger": 7, "event": ["wrote", "k", "IN_RECOVERY", [[0, ["bookie-x", "bookie-y"], 1]], -1], "process": 1},
        {"transaction": 2, "process": 1},
        {"ledger": 7, "event": ["wrote", "n", "IN_RECOVERY", [[0, ["bookie-x", "bookie-y"], 1]], -1], "process": 2},
        {"transaction": 2, "process": 2},
        {"request": 4, "bookie": "bookie-y", "sender": ["n", 1]},
        {"ledger": 7, "event": ["stored", "bookie-y", 4, [0]]},
    ]
    file = tmp_path / "events"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    [named] = process_traces.assembled(file)
    assert named.trace.ensemble == ("b1", "b2")
    assert named.trace.events == [
        ("wrote", "r1", "IN_RECOVERY", ((0, ("b1", "b2"), 1),), -1),
        ("stored", "b2", "r1", 1, (0,)),
    ]


async def test_recorded_client_creates_rolls_and_takes_over_ledgers(tmp_path: Path) -> None:
    """Real processes are recorded in the long lane only: this sees that the wrappers take what clients pass to machines."""
    recorder = Recorder()
    with recording_machines(recorder):
        async with replog.embed(tmp_path, bookies=3, storage="memory") as client:
            async with client.create_ledger(unbounded=True) as writer:
                await writer.append(b"1")
                await writer.roll()
                await writer.append(b"2")
            async with client.take_over_ledger(writer.ledger_id) as successor:
                await successor.append(b"3")
                await successor.finish()
            async with client.create_ledger() as writer:
                await writer.append(b"1")
            await client.recover_ledger(writer.ledger_id)
    kinds = {event[0] for trace in recorder.traces.values() for event in trace.events}
    assert {"send", "confirmed", "fences", "heard fence", "finds end"} <= kinds


@pytest.mark.long(is_sampled=False)
def test_traces_of_unbounded_ledgers_are_accepted(fetched_checker: None) -> None:
    assert check(record(range(10), scenario="unbounded")) == []


@pytest.mark.long(is_sampled=False)
def test_traces_of_killed_processes_are_accepted(fetched_checker: None, tmp_path: Path) -> None:
    traces, kills = trio.run(process_traces.record, 4, 0, tmp_path)
    assert min(kills["bookie"], kills["client"]) > 0
    assert len(traces) == 4
    assert all(_last_change(named)[2] == "CLOSED" for named in traces)
    changed = [_without_what_was_stored(named) for named in traces]
    forgetful = [named for named in changed if named is not None]
    assert forgetful, "a bookie that had entries was killed"
    assert {id(named) for named, _, kind in check([*traces, *forgetful]) if kind == "restarted"} == set(
        map(id, forgetful)
    )


def _last_change(named: Named) -> tuple[object, ...]:
    """The last change of the ledger's record."""
    return [event for event in named.trace.events if event[0] == "wrote"][-1]


def _without_what_was_stored(named: Named) -> Named | None:
    """The same trace of a bookie that lost what it had, when it was killed; None if it had nothing of this ledger."""
    events = list(named.trace.events)
    for place, event in enumerate(events):
        if event[0] == "restarted" and event[3] and any(each[:2] == ("stored", event[1]) for each in events[:place]):
            events[place] = (*event[:3], ())
            return attrs.evolve(named, trace=attrs.evolve(named.trace, events=events))
    return None


@pytest.mark.long(is_sampled=False)
def test_traces_of_the_simulator_are_accepted(fetched_checker: None) -> None:
    traces = record(range(50))
    assert len(traces) > 50
    assert check(traces) == []


@pytest.mark.long(is_sampled=False)
def test_known_bugs_are_rejected_by_tlc_or_the_oracle(fetched_checker: None) -> None:
    lines = check_mutants([mutant.name for mutant in MUTANTS], 1500)
    assert sum(bool(oracle or event) for _, oracle, event in lines) >= MUTANTS_REJECTED_MIN
    assert sum(bool(event) for _, _, event in lines) >= 10
