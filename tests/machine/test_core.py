"""The replicated core: each command is applied once, whatever is repeated, restored, expired or reordered."""

from __future__ import annotations

import json

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replog
from replog.errors import RemoteProtocolError, StateDivergedError, UnknownCommandError
from replog.machine import core as cores
from replog.machine.commands import MachineType
from replog.machine.core import BeginningGoneError, Core
from replog.machine.entries import Answer, Code, Kind, MachineEntry, decode_answer, decode_entry
from replog.protocol.model import Position
from tests.machine.counters import Counters

MACHINE = MachineType(Counters)
ADD, TAKE, TIME = MACHINE.find(Counters.add), MACHINE.find(Counters.take), MACHINE.find(Counters.time)


class Log:
    """Applies entries to a core, as a member does: encoded, each at the next position."""

    def __init__(self) -> None:
        self.entries: list[MachineEntry] = []
        self.core = Core(MACHINE)
        self.append(MachineEntry(Kind.BEGIN))

    def append(self, entry: MachineEntry) -> Answer | None:
        self.entries.append(entry)
        at_once = self.core.answer_at_once(entry)
        answer = self.core.apply(Position(1, len(self.entries)), decode_entry(entry.encode()))
        if at_once is not None:
            assert answer is not None
            assert (at_once.code, at_once.body) == (answer.code, answer.body), "what is not written has the same answer"
        return answer

    def add(self, session: int, sequence: int, floor: int = 0, amount: int = 1) -> tuple[int, bytes]:
        body = ADD.encode(("x", amount), {})
        answer = self.append(MachineEntry(Kind.COMMAND, session, sequence, floor, body=body))
        assert answer is not None
        return answer.code, answer.body


@pytest.fixture
def log() -> Log:
    made = Log()
    opened = made.append(MachineEntry(Kind.OPEN))
    assert opened is not None
    assert opened.body == b"1"
    return made


def test_repeated_command_is_answered_and_not_applied(log: Log) -> None:
    assert [log.add(1, 1), log.add(1, 1), log.add(1, 2), log.add(1, 1)] == [(1, b"1"), (1, b"1"), (1, b"2"), (1, b"1")]
    assert log.core.state.values == {"x": 2}
    assert log.core.commands == 2


def test_commands_of_one_session_are_applied_in_any_order(log: Log) -> None:
    assert [log.add(1, 5), log.add(1, 3), log.add(1, 5)] == [(1, b"1"), (1, b"2"), (1, b"1")]


def test_sequence_below_the_floor_is_never_applied(log: Log) -> None:
    log.add(1, 7, floor=7)
    assert log.add(1, 4) == (Code.FORGOTTEN, b"")
    assert log.core.state.values == {"x": 1}


def test_floor_above_the_own_sequence_forgets_no_own_result(log: Log) -> None:
    log.add(1, 3, floor=1 << 60)
    assert log.add(1, 3) == (Code.DONE, b"1")


def test_command_of_an_expired_or_unknown_session_is_not_applied(log: Log) -> None:
    log.add(1, 1)
    log.append(MachineEntry(Kind.EXPIRE, body=b"[1,9]"))
    assert [log.add(1, 1), log.add(1, 2), log.add(2, 1)] == [(Code.EXPIRED, b"")] * 3
    assert log.core.state.values == {"x": 1}


def test_reopened_session_is_a_new_one(log: Log) -> None:
    """A late repeat of an OPEN must not bring an expired session back: its commands would be applied twice."""
    log.append(MachineEntry(Kind.EXPIRE, body=b"[1]"))
    opened = log.append(MachineEntry(Kind.OPEN))
    assert opened is not None
    assert opened.body == b"2"


def test_raising_command_counts_as_applied(log: Log) -> None:
    body = TAKE.encode(("x", 5), {})
    answers = [log.append(MachineEntry(Kind.COMMAND, 1, 1, body=body)) for _ in range(2)]
    assert [(each.code, json.loads(each.body)) for each in answers if each] == [
        (Code.FAILED, ["ValueError", "x is -5"])
    ] * 2
    assert log.core.state.values == {"x": -5}


def test_result_of_another_type_is_a_failure() -> None:
    @attrs.define
    class Wrong(replog.StateMachine):
        @replog.command
        def get(self) -> int:
            return object()  # type: ignore[return-value]

    machine = MachineType(Wrong)
    core = Core(machine)
    core.apply(Position(1, 0), MachineEntry(Kind.BEGIN))
    core.apply(Position(1, 1), MachineEntry(Kind.OPEN))
    answer = core.apply(Position(1, 2), MachineEntry(Kind.COMMAND, 1, 1, body=machine.find(Wrong.get).encode((), {})))
    assert answer is not None
    assert answer.code == Code.FAILED


def test_keyword_arguments_reach_the_command() -> None:
    """The log has a position for each argument: it was passed by position, and the command always failed."""

    @attrs.define
    class Named(replog.StateMachine):
        @replog.command
        def join(self, first: str, *, second: str, third: str = "c") -> str:
            return first + second + third

    machine = MachineType(Named)
    core = Core(machine)
    core.apply(Position(1, 0), MachineEntry(Kind.BEGIN))
    core.apply(Position(1, 1), MachineEntry(Kind.OPEN))
    body = machine.find(Named.join).encode(("a",), {"second": "b"})
    answer = core.apply(Position(1, 2), MachineEntry(Kind.COMMAND, 1, 1, body=body))
    assert answer is not None
    assert (answer.code, answer.body) == (Code.DONE, b'"abc"')


def test_now_is_the_time_of_the_entry_and_never_goes_back(log: Log) -> None:
    body = TIME.encode((), {})
    times = [
        log.append(MachineEntry(Kind.COMMAND, 1, place, time_ns=ns, body=body)) for place, ns in enumerate([50, 40, 60])
    ]
    assert [each.body for each in times if each] == [b"50", b"50", b"60"]


def test_unconfirmed_results_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "RESULTS_MAX", 3)
    codes = [log.add(1, sequence)[0] for sequence in range(5)]
    assert codes == [Code.DONE] * 3 + [Code.FULL] * 2
    assert log.add(1, 4, floor=3) == (Code.DONE, b"4")


def test_lowest_open_command_is_applied_in_a_full_session(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait until it is answered: it must not wait for them."""
    monkeypatch.setattr(cores, "RESULTS_MAX", 3)
    assert [log.add(1, sequence, floor=1)[0] for sequence in (2, 3, 4, 5)] == [Code.DONE] * 3 + [Code.FULL]
    assert log.add(1, 1, floor=1)[0] == Code.DONE
    assert [log.add(1, 5, floor=floor)[0] for floor in (1, 2, 3)] == [Code.FULL, Code.FULL, Code.DONE]


def test_sign_of_life_confirms_answers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "RESULTS_MAX", 2)
    log.add(1, 2)
    log.add(1, 4)
    codes = [log.append(MachineEntry(Kind.TOUCH, 1, floor=floor)) for floor in (2, 3)]
    assert [each.code for each in codes if each] == [Code.FULL, Code.DONE]
    assert log.add(1, 2) == (Code.FORGOTTEN, b"")
    assert log.add(1, 4) == (Code.DONE, b"2")


def test_unconfirmed_results_are_bounded_in_bytes(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "RESULTS_BYTES_MAX", 3)
    assert [log.add(1, sequence)[0] for sequence in range(4)] == [Code.DONE] * 3 + [Code.FULL]
    restored = Core(MACHINE)
    restored.load(log.core.dump())
    log.core.adopt(restored)  # who is restored refuses the same entries as who is not
    assert log.add(1, 3)[0] == Code.FULL
    assert log.add(1, 3, floor=1)[0] == Code.DONE
    assert log.add(1, 99, floor=99)[0] == Code.DONE
    assert log.core._sessions[1].results_bytes == 1


def test_failure_is_the_same_with_any_text(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text may differ between members: the same entry must reach the limit in all of them."""
    body = TAKE.encode(("x", 5), {})
    log.append(MachineEntry(Kind.COMMAND, 1, 1, body=body))
    monkeypatch.setattr(cores, "_text_of", lambda _: "at 0x7f")
    log.append(MachineEntry(Kind.COMMAND, 1, 2, body=body))
    assert log.core._sessions[1].results_bytes == 2 * cores._TEXT_CHARACTERS_MAX


def test_failure_without_a_text_counts_as_applied() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RecursionError

    @attrs.define
    class Rude(replog.StateMachine):
        calls: int = 0

        @replog.command
        def fail(self) -> None:
            self.calls += 1
            raise SilentError

    machine = MachineType(Rude)
    core = Core(machine)
    core.apply(Position(1, 0), MachineEntry(Kind.BEGIN))
    core.apply(Position(1, 1), MachineEntry(Kind.OPEN))
    answer = core.apply(Position(1, 2), MachineEntry(Kind.COMMAND, 1, 1, body=machine.find(Rude.fail).encode((), {})))
    assert answer is not None
    assert answer.code == Code.FAILED
    assert b"cannot be shown: str() of it raised RecursionError" in answer.body
    assert core.state.calls == 1


def test_sessions_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "SESSIONS_MAX", 1)
    answer = log.append(MachineEntry(Kind.OPEN))
    assert answer is not None
    assert answer.code == Code.BUSY


@pytest.mark.parametrize("data", [b"", b"x", b"\x01\x63" + bytes(40), b"\x02\x01" + bytes(40)])
def test_foreign_entry_stops_the_member(data: bytes) -> None:
    with pytest.raises(UnknownCommandError):
        decode_entry(data)


@pytest.mark.parametrize(
    "entry",
    [
        MachineEntry(Kind.EXPIRE, body=b"x"),
        MachineEntry(Kind.EXPIRE, body=b'["a"]'),
        MachineEntry(Kind.HASH),
        MachineEntry(Kind.READ),
    ],
)
def test_entry_with_a_foreign_body_stops_the_member(entry: MachineEntry) -> None:
    with pytest.raises(UnknownCommandError, match="is not"):
        Log().append(entry)


@pytest.mark.parametrize("kind", [each for each in Kind if each not in (Kind.LEAD, Kind.BARRIER, Kind.BEGIN)])
def test_entry_before_the_beginning_is_not_applied(kind: Kind) -> None:
    """A log that was trimmed, read without a snapshot, must not look like a whole one."""
    core = Core(MACHINE)
    core.apply(Position(3, 0), MachineEntry(Kind.LEAD))
    with pytest.raises(BeginningGoneError, match="3:1"):
        core.apply(Position(3, 1), MachineEntry(kind))


def test_unknown_command_stops_a_member_even_after_its_session(log: Log) -> None:
    """Otherwise a restored member, which knows the session, would stop, and another one would go on."""
    with pytest.raises(UnknownCommandError):
        log.append(MachineEntry(Kind.COMMAND, 99, 1, body=b'["sub",1]'))


@given(st.binary(max_size=60))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    try:
        answer = decode_answer(data)
    except RemoteProtocolError:
        return
    assert answer.encode() == data


def check_at(log: Log) -> bytes:
    log.append(MachineEntry(Kind.CHECK))
    assert log.core.checked is not None
    (segment, number), found = log.core.checked
    return json.dumps([segment, number, found]).encode()


def test_equal_states_have_equal_hashes(log: Log) -> None:
    log.add(1, 1)
    log.append(MachineEntry(Kind.HASH, body=check_at(log)))


def test_member_stops_when_its_state_differs(log: Log) -> None:
    log.add(1, 1)
    body = check_at(log)
    log.core.checked = log.core.checked[0], "other" if log.core.checked else ""  # type: ignore[index]
    with pytest.raises(StateDivergedError, match="1:4"):
        log.append(MachineEntry(Kind.HASH, body=body))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3), st.integers(1, 8), st.integers(0, 9)),
        st.tuples(st.just("open"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("expire"), st.integers(1, 3), st.just(0), st.just(0)),
        st.tuples(st.just("restore"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_command_is_applied_once_and_restored_members_agree(steps: list[tuple[str, int, int, int]]) -> None:
    """The model: a command takes effect at most once for each (session, sequence), and equal pairs have equal answers."""
    log, other = Log(), Core(MACHINE)
    answers: dict[tuple[int, int], bytes] = {}
    total = 0
    for step, session, sequence, floor in steps:
        if step == "add":
            before = log.core.state.values.get("x", 0)
            code, body = log.add(session, sequence, floor)
            is_applied = log.core.state.values.get("x", 0) != before
            assert not (is_applied and (session, sequence) in answers), "applied twice"
            if code == Code.DONE:
                assert answers.setdefault((session, sequence), body) == body
            total += is_applied
        elif step == "open":
            log.append(MachineEntry(Kind.OPEN))
        elif step == "expire":
            log.append(MachineEntry(Kind.EXPIRE, body=f"[{session}]".encode()))
        else:
            other = Core(MACHINE)
            other.load(log.core.dump())
            log.core, other = other, log.core
            assert log.core.hash() == other.hash()
    assert log.core.state.values.get("x", 0) == total
    replayed = Core(MACHINE)
    for place, entry in enumerate(log.entries, 1):
        replayed.apply(Position(1, place), entry)
    assert replayed.hash() == log.core.hash()
    assert replayed.state == log.core.state


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"format":1,"version":1}', b'{"format":1,"version":1,"sessions":[[1]]}']
)
def test_damaged_snapshot_is_named(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="damaged snapshot"):
        Core(MACHINE).load(data)


def test_snapshot_of_another_version_stops_the_member(log: Log) -> None:
    fields = json.loads(log.core.dump())
    for changed in ({"version": 2}, {"format": 2}, {"state": {"values": {}, "more": 1}}):
        with pytest.raises(UnknownCommandError):
            Core(MACHINE).load(json.dumps({**fields, **changed}).encode())


COMMANDS = st.tuples(
    st.sampled_from(["add", "take"]),  # one that returns, and one that fails
    st.integers(0, 5),  # its sequence above the floor
    st.sampled_from([0, 0, 1, 2, 2, 3, 40]),  # by how much the floor rises, and jumps
)


@given(st.lists(COMMANDS, max_size=60))
def test_answers_are_kept_while_the_caller_may_lack_them(commands: list[tuple[str, int, int]]) -> None:
    """Two members keep the same ones, and refuse the same commands, though the texts of failures differ between them."""
    members = Log(), Log()
    for each in members:
        each.append(MachineEntry(Kind.OPEN))
    kept_max, kept, floor = 3, dict[int, int](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "RESULTS_MAX", kept_max)
        for name, above, rise in commands:
            floor += rise
            sequence = floor + above
            body = ADD.encode(("x", 1), {}) if name == "add" else TAKE.encode(("y", 1), {})
            answers = []
            for place, each in enumerate(members):
                patch.setattr(cores, "_text_of", lambda _error, place=place: "at " * (place + 1))
                answer = each.append(MachineEntry(Kind.COMMAND, 1, sequence, floor, body=body))
                assert answer is not None
                answers.append(answer.code)
            assert answers[0] == answers[1]
            if sequence in kept:
                assert answers[0] == kept[sequence], "a repetition is answered, and forgets nothing"
                continue
            kept = {number: code for number, code in kept.items() if number >= floor}
            assert (answers[0] == Code.FULL) == (len(kept) >= kept_max and sequence != floor)
            if answers[0] != Code.FULL:
                kept[sequence] = answers[0]
            assert len(kept) <= kept_max + 1
            assert members[0].core.hash() == members[1].core.hash()
            restored = Core(MACHINE)
            restored.load(members[0].core.dump())
            assert restored.hash() == members[1].core.hash()
