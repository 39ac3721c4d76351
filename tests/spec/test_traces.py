"""Traces of the simulator's machines, which TLC reads: 50 seeds in the long lane, and the known bugs."""

from __future__ import annotations

import pytest

from tests.simulator.mutants import MUTANTS, mutant_named
from tests.spec import tlc
from tests.spec.traces import MUTANTS_REJECTED_MIN, check, check_mutants, record, record_mutant


@pytest.fixture
def fetched_checker() -> None:
    try:
        tlc.fetch()
    except tlc.CheckerError as error:
        pytest.skip(str(error))


def test_trace_names_what_writer_recovery_and_bookies_did() -> None:
    traces = record(range(6), scenario="ledger")
    kinds = {event[0] for named in traces for event in named.trace.events}
    assert {"send", "stored", "confirmed", "fences", "heard fence", "finds end", "wrote"} <= kinds
    names = {event[1] for named in traces for event in named.trace.events if event[0] == "send"}
    assert names <= {"creator", *(f"r{number}" for number in range(1, 100))}


def test_recording_changes_nothing_for_the_code() -> None:
    before = [each.trace for each in record(range(1))]
    assert [each.trace for each in record(range(1))] == before


def test_mutant_ends_its_record_at_the_seed_that_shows_it() -> None:
    [first, *_] = record_mutant(mutant_named("confirmed-out-of-order"), 20)
    assert first.violation


@pytest.mark.long
def test_traces_of_the_simulator_are_accepted(fetched_checker: None) -> None:
    traces = record(range(50))
    assert len(traces) > 50
    assert check(traces) == []


@pytest.mark.long(is_sampled=False)
def test_known_bugs_are_rejected_by_tlc_or_the_oracle(fetched_checker: None) -> None:
    lines = check_mutants([mutant.name for mutant in MUTANTS], 1500)
    assert sum(bool(oracle or event) for _, oracle, event in lines) >= MUTANTS_REJECTED_MIN
    assert sum(bool(event) for _, _, event in lines) >= 10
