"""A compare-and-set whose answers get lost (M1), in every interleaving of a small scope."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replog.protocol.compare_and_set import Change, Settled
from replog.protocol.model import LogMetadata

Choose = Callable[[int], int]


def every_run(run: Callable[[Choose], None]) -> int:
    """Runs once for each sequence of choices, and returns how many there were."""
    tape: list[tuple[int, int]] = []  # (what was chosen, out of how many)
    runs = 0
    while True:
        place = 0

        def choose(options: int) -> int:
            nonlocal place
            if place == len(tape):
                tape.append((0, options))
            place += 1
            return tape[place - 1][0]

        run(choose)
        runs += 1
        while tape and tape[-1][0] + 1 == tape[-1][1]:
            tape.pop()
        if not tape:
            return runs
        tape[-1] = (tape[-1][0] + 1, tape[-1][1])


class Store:
    """One record under CAS, copies of writes that are still on their way, and somebody else who writes too."""

    def __init__(self, exists: bool) -> None:
        self.record = LogMetadata("log", token="first" if exists else "")
        self.version: int | None = 0 if exists else None
        self.applied: list[str] = []
        self.late: list[tuple[LogMetadata, int | None]] = []
        self.others_left = 1

    def cas(self, record: LogMetadata, expected: int | None) -> bool:
        if expected != self.version:
            return False
        self.record, self.version = record, 0 if self.version is None else self.version + 1
        self.applied.append(record.token)
        return True

    def environment(self, choose: Choose) -> None:
        """Nothing, or somebody else's change, or a late copy arrives."""
        deed = choose(3)
        if deed == 1 and self.others_left:
            self.others_left -= 1
            assert self.cas(LogMetadata("log", token="somebody else's"), self.version)
        elif deed == 2 and self.late:
            self.cas(*self.late.pop(0))


@pytest.mark.parametrize("exists", [True, False])
def test_m1_every_interleaving_of_lost_and_late_answers(exists: bool) -> None:
    """M1: written once at most; WRITTEN is true; LOST means that nothing of ours can apply any more."""
    seen: set[Settled] = set()

    def run(choose: Choose) -> None:
        store = Store(exists)
        change: Change[LogMetadata] = Change(store.record, store.version, "nonce")
        token = change.propose(LogMetadata("log")).token
        for _ in range(4):
            proposed, expected = change.proposed, change.version
            assert proposed is not None
            assert proposed.token == token
            outcome = choose(4)  # answered, answer lost, request lost, request late
            if outcome in (0, 1) and store.cas(proposed, expected) and outcome == 0:
                assert store.version is not None
                change.written(store.version)
                break
            if outcome == 3:
                store.late.append((proposed, expected))
            store.environment(choose)
            settled = change.read_back(store.record, store.version)
            seen.add(settled)
            if settled is Settled.REPEAT:
                assert token not in store.applied
                store.environment(choose)
                continue
            assert (settled is Settled.WRITTEN) == (store.record.token == token)
            assert (change.record, change.version) == (store.record, store.version)
            break
        settled_now = list(store.applied)
        open_ended = change.proposed is not None
        for late in store.late:
            store.cas(*late)
        assert store.applied.count(token) <= 1
        assert open_ended or store.applied == settled_now

    assert every_run(run) > 1000
    assert seen == set(Settled)


def test_one_change_at_a_time() -> None:
    """C1: a second proposal before the first is settled is a bug."""
    change: Change[LogMetadata] = Change(LogMetadata("log"), 3, "nonce")
    change.propose(LogMetadata("log"))
    with pytest.raises(AssertionError):
        change.propose(LogMetadata("log"))


def test_a_lost_change_can_be_proposed_again_on_the_new_record() -> None:
    """C4: under another token, and the version that was read."""
    change: Change[LogMetadata] = Change(LogMetadata("log"), 3, "nonce")
    first = change.propose(LogMetadata("log"))
    assert change.read_back(LogMetadata("log", token="other"), 5) is Settled.LOST
    second = change.propose(change.record)
    assert (change.version, second.token != first.token) == (5, True)
