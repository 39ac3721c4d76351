"""The state that members agree on: versions, children, repetitions, and sums that tell states apart (Q13, Q19)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.commands import LEASE, Command, Outcome, Status, What, encode_commands
from replog.protocol.consensus.registers import Registers
from tests.simulator.council.rows import MemoryRows

KEYS = ("a", "a/b", "a/b/c", "a/d", "ab", "b")


class State:
    """A state that is told one command at a time."""

    def __init__(self, outcomes_max: int = 10) -> None:
        self.registers = Registers(MemoryRows({}), outcomes_max=outcomes_max, outcomes_ms=0)
        self.index = 0

    def do(self, what: What, key: str, expected: int | None = None, *, token: int = 0, known: int = 0) -> Outcome:
        self.index += 1
        name = (token or self.index).to_bytes(16, "big")
        value = LEASE.pack(1) + key.encode()  # as an announcement's is
        command = Command(name, known or self.index, what, key, value, expected)
        ((_, outcome),) = self.registers.apply(self.index, encode_commands(0, [command]))
        return outcome


def test_versions_never_repeat_even_over_a_deletion() -> None:
    state = State()
    assert state.do(What.CREATE, "a") == Outcome(Status.DONE, 1)
    assert state.do(What.CREATE, "a") == Outcome(Status.EXISTS, 1)
    assert state.do(What.PUT, "a", 7) == Outcome(Status.CONFLICT, 1)
    assert state.do(What.PUT, "a", 1) == Outcome(Status.DONE, 2)
    assert state.do(What.DELETE, "a", 1) == Outcome(Status.CONFLICT, 2)
    assert state.do(What.DELETE, "a").status is Status.DONE
    assert state.do(What.PUT, "a").status is Status.MISSING
    assert state.do(What.CREATE, "a") == Outcome(Status.DONE, 3)


def test_repetition_has_the_first_outcome() -> None:
    """Q13."""
    state = State(outcomes_max=2)
    first = state.do(What.CREATE, "a", token=100)
    assert state.do(What.CREATE, "a", token=100) == first
    for key in ("b", "c", "d"):
        state.do(What.CREATE, key)
    refused = state.do(What.CREATE, "a", token=100, known=1)
    assert refused == Outcome(Status.UNKNOWN, state.index), "its outcome may be forgotten"
    assert state.do(What.DELETE, "a", token=200).status is Status.DONE


def test_leader_whose_clock_was_ahead_does_not_keep_outcomes() -> None:
    """Q13: the outcomes of its time would otherwise be kept, and all behind them, until that time has come."""
    rows = MemoryRows({})
    registers = Registers(rows, outcomes_max=2, outcomes_ms=30_000)

    def put(index: int, stamp_ms: int) -> None:
        command = Command(index.to_bytes(16, "big"), index, What.CREATE, str(index), b"")
        registers.apply(index, encode_commands(stamp_ms, [command]))

    for index in range(1, 6):
        put(index, 10**12)
    assert sum(1 for row, _ in rows.rows_from(b"t") if row.startswith(b"t")) == 5, "they are of the last 30 s"
    for index in range(6, 9):
        put(index, 1_000_000)
    assert sum(1 for row, _ in rows.rows_from(b"t") if row.startswith(b"t")) == 3, (
        "those of the wrong time are forgotten"
    )
    put(9, 1_000_000 + 30_000)
    assert sum(1 for row, _ in rows.rows_from(b"t") if row.startswith(b"t")) == 2


@given(st.sets(st.sampled_from(KEYS)))
def test_children_are_the_next_words(keys: set[str]) -> None:
    state = State()
    for key in keys:
        state.do(What.CREATE, key)
    for parent in KEYS:
        below = {key.removeprefix(f"{parent}/").split("/")[0] for key in keys if key.startswith(f"{parent}/")}
        assert state.registers.children(parent) == sorted(below)


@given(st.lists(st.tuples(st.sampled_from(What), st.sampled_from(KEYS)), max_size=20))
def test_sums_are_equal_where_states_are(changes: list[tuple[What, str]]) -> None:
    """Q19: and a state that lacks one key has another sum."""
    one, other = State(), State()
    for what, key in changes:
        one.do(what, key)
        other.do(what, key)
        assert one.registers.sum == other.registers.sum
    left = [key for key in KEYS if one.registers.get(key) is not None]
    assert (one.registers.sum == 0) == (not left)
    for key in left[:1]:
        other.do(What.DELETE, key)
        assert one.registers.sum != other.registers.sum


def test_another_state_is_noticed_with_the_next_entry() -> None:
    """Q19: the entry that follows a difference has the sum of the state before; nothing of it is applied."""
    one, other = State(), State()
    for state in (one, other):
        state.do(What.CREATE, "a")
    index, _ = one.registers.as_of
    other.registers.apply(2, encode_commands(0, [Command(bytes(16), 2, What.PUT, "a", b"different")]))
    one.registers.apply(2, encode_commands(0, [Command(bytes(16), 2, What.PUT, "a", b"right")]))
    following = encode_commands(0, [Command(b"f" * 16, 2, What.CREATE, "b")], one.registers.as_of)
    with pytest.raises(RemoteProtocolError, match=f"behind entry {index + 1}"):
        other.registers.apply(3, following)
    assert other.registers.get("b") is None
    one.registers.apply(3, following)
    assert one.registers.get("b") is not None


def test_state_that_was_copied_compares_from_then_on() -> None:
    """Q19: sums from before a start are not known: they are not compared."""
    state = State()
    state.registers.apply(7, encode_commands(0, [Command(bytes(16), 7, What.CREATE, "a")], (6, 1234)))
    assert state.registers.as_of == (7, state.registers.sum)


class CountedRows(MemoryRows):
    """Rows that count how many of them were read in order."""

    def __init__(self) -> None:
        super().__init__({})
        self.read = 0

    def rows_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        for each in super().rows_from(first):
            self.read += 1
            yield each


def test_listing_reads_each_row_once_and_nothing_deeper() -> None:
    rows = CountedRows()
    registers = Registers(rows)
    keys = [f"d/{number:04}" for number in range(500)] + [f"d/0007/{number:04}" for number in range(500)]
    keys += [f"e/only/{number}" for number in range(9)]
    commands = [Command(key.encode().rjust(16), 0, What.CREATE, key, b"v") for key in keys]
    registers.apply(1, encode_commands(0, commands))
    rows.read = 0
    assert registers.children("d") == [f"{number:04}" for number in range(500)]
    assert rows.read < 510
    rows.read = 0
    assert list(registers.values("d")) == [(f"{number:04}", number + 1, b"v") for number in range(500)]
    assert rows.read < 510
    assert (registers.children("e"), list(registers.values("e"))) == (["only"], [])
    rows.read = 0
    assert next(registers.values("d", "0400")) == ("0400", 401, b"v")
    assert rows.read < 10, "what is before a page is not read"


def test_forgetting_many_looks_at_each_once() -> None:
    rows = CountedRows()
    registers = Registers(rows, outcomes_max=1, outcomes_ms=1)
    for index in (1, 2):
        commands = [Command(b"%16d" % (1000 * index + each), 0, What.CREATE, str(each), b"") for each in range(300)]
        rows.read = 0
        registers.apply(index, encode_commands(1000 * index, commands))
    assert sum(1 for row, _ in rows.rows_from(b"t") if row.startswith(b"t")) == 300, "the last ones are of this moment"
    registers.apply(3, encode_commands(9000, [Command(bytes(16), 2, What.CREATE, "x", b"")]))
    assert sum(1 for row, _ in rows.rows_from(b"t") if row.startswith(b"t")) == 1
