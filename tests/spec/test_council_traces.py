"""Traces of the metastore's simulated members, which TLC reads: some in the long lane, and known bugs."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.simulator.council.mutants import MUTANTS
from tests.simulator.mutation import Mutant
from tests.spec import tlc
from tests.spec.council_processes import record as record_processes
from tests.spec.council_traces import Named, check, check_mutant, record

REJECTED_SOON = {"minority", "leader-counts-unsynced", "any-log-gets-vote"}  # within 20 seeds, and after a few events


@pytest.fixture
def fetched_checker() -> None:
    try:
        tlc.fetch()
    except tlc.CheckerError as error:
        pytest.skip(str(error))


def test_trace_names_every_kind_of_step() -> None:
    kinds = {event[0] for named in record(range(40)) for event in named.trace.events}
    steps = {"stands", "votes", "sees", "leads", "steps down"}
    assert kinds == steps | {"appends", "follows", "commits", "takes copy", "wrote", "restarts"}


def test_recording_changes_nothing_for_the_members() -> None:
    before = [each.trace for each in record(range(2))]
    assert [each.trace for each in record(range(2))] == before


def test_unwritten_step_of_a_killed_member_is_left_out() -> None:
    """What nobody could hear of has not happened: no event of a name is behind its crash and before its restart."""
    [named] = [each for each in record(range(40)) if each.seed == 14]
    assert [event[:2] for event in named.trace.events] == [("sees", "2.0")]


@pytest.mark.long(is_sampled=False)
def test_traces_of_members_are_accepted(fetched_checker: None) -> None:
    assert check(record(range(200))) == []


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in REJECTED_SOON], ids=lambda each: each.name)
def test_trace_of_a_known_bug_is_rejected(fetched_checker: None, mutant: Mutant) -> None:
    assert check_mutant(mutant, 20)


@pytest.mark.long(is_sampled=False)
def test_trace_of_processes_is_accepted(fetched_checker: None, tmp_path: Path) -> None:
    trace, faults = trio.run(record_processes, tmp_path, 0)
    kinds = {event[0] for event in trace.events}
    assert {"leads", "appends", "follows", "commits", "wrote"} <= kinds
    assert faults
    assert check([Named(0, trace)]) == []
