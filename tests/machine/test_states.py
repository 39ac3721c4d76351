"""States that are saved: restored equal in values, types and structure, or refused by name while the log has everything."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
from collections import defaultdict, deque
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import replog
from replog.errors import (
    CommandFailedError,
    CommandRefusedError,
    CommandUnappliedError,
    ConfigError,
    UnsavableStateError,
)
from replog.machine import saving
from replog.machine.commands import MachineType
from replog.machine.core import Core
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.shapes import ARGUMENT_NESTING_MAX, RESULT_NESTING_MAX, STATE_NESTING_MAX, is_nested_deeper
from replog.protocol.model import Position
from tests.kit import ONE, cluster, until
from tests.machine.counters import OPTIONS, member
from tests.machine.test_snapshots import load, until_saved
from tests.runtime.test_signals import handled


@attrs.frozen
class Point:
    x: int
    y: int


@attrs.define
class Node:
    value: int = 0
    below: Node | None = None


class Colour(Enum):
    RED = "red"


@attrs.define(eq=False)
class Account:
    balance: int = 0


@attrs.define(unsafe_hash=True)
class Hashed:
    balance: int = 0


@dataclasses.dataclass(eq=False)
class Plain:
    balance: int = 0

    @cached_property
    def twice(self) -> int:
        return 2 * self.balance


@dataclasses.dataclass(frozen=True)
class Fixed:
    balance: int = 0


@attrs.define
class Everything(replog.StateMachine):
    points: set[Point] = attrs.field(factory=set)
    choices: frozenset[int | str | None] = frozenset()
    lists: list[list[int]] = attrs.field(factory=list)
    anything: Any = None
    by_number: dict[Any, str] = attrs.field(factory=dict)
    by_flag: dict[bool, str] = attrs.field(factory=dict)
    by_point: dict[Point, int] = attrs.field(factory=dict)
    total: float = 0.0
    plain: dict[str, int] = attrs.field(factory=dict)
    made: defaultdict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    last: deque[int] = attrs.field(factory=deque)
    root: Node | None = None
    nodes: list[Node] = attrs.field(factory=list)
    accounts: list[Account] = attrs.field(factory=list)
    hashed: list[Hashed] = attrs.field(factory=list)
    plains: list[Plain] = attrs.field(factory=list)
    fixed: list[Point | Fixed] = attrs.field(factory=list)
    colours: list[Colour] = attrs.field(factory=list)

    @replog.command
    def put(self, value: Any) -> None:
        self.anything = value

    @replog.command
    def put_node(self, node: Node) -> None:
        self.root = node

    @replog.command
    def deepen(self, levels: int) -> Any:
        self.anything = nested(levels)
        return self.anything

    @replog.command
    def set_total(self, is_whole: bool) -> None:
        self.total = 0 if is_whole else 0.0

    @replog.command
    def fail(self, name: str) -> None:
        self.total += 1.0
        ERRORS[name]()


MACHINE = MachineType(Everything)


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def chain(levels: int) -> Node:
    node = Node()
    for _ in range(levels - 1):
        node = Node(1, node)
    return node


def restored(state: Everything) -> Everything:
    MACHINE.states.check(state)
    return MACHINE.states.decode(json.loads(MACHINE.states.json(state)))


# -- sets -------------------------------------------------------------------------------------------------------------


def test_sets_of_any_members_are_restored() -> None:
    state = Everything(points={Point(1, 2), Point(0, 5)}, choices=frozenset({None, 3, "a", 20, "b"}))
    assert restored(state) == state


@given(st.lists(st.one_of(st.none(), st.integers(), st.text())), st.randoms())
def test_equal_sets_have_the_same_json(members: list[int | str | None], chance: Any) -> None:
    """Equal sets iterate in the order of insertion when hashes collide: hashes of members would differ."""
    shuffled = [*members]
    chance.shuffle(shuffled)
    first, second = (MACHINE.states.json(Everything(choices=frozenset(each))) for each in (members, shuffled))
    assert first == second


# -- states that a snapshot would change ------------------------------------------------------------------------------


def with_extra(value: Any) -> Any:
    value.extra = 1
    return value


def shared() -> Everything:
    node = Node()
    return Everything(root=node, nodes=[node])


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (Everything(lists=[(1, 2)]), "'lists' differs .*: tuple becomes list"),  # type: ignore[list-item]
        (Everything(anything={"a": (1, 2)}), "'anything' differs .*: tuple becomes list"),
        (Everything(anything={1, 2}), "'anything' differs .*: set becomes list"),
        (Everything(anything=Point(1, 2)), "'anything' differs .*: Point becomes dict"),
        (Everything(by_number={1: "a"}), "'by_number' differs .*: int becomes str"),
        (Everything(by_flag={False: "a"}), "'by_flag' differs .*: in a value"),
        (Everything(by_flag={False: "a", True: "b"}), "'by_flag' differs .*: in the number of its items"),
        (Everything(total=0), "'total' differs .*: int becomes float"),
        (Everything(plain=defaultdict(int)), "'plain' differs .*: defaultdict becomes dict"),
        (Everything(last=deque([1], 3)), "'last' differs .*: 3 becomes None"),
        (Everything(by_point={Point(1, 2): 1}), "'by_point' can't be saved: TypeError"),
        (Everything(anything=object()), "'anything' can't be saved: TypeError"),
        (Everything(lists=["a"]), "'lists' can't be read back: invalid"),  # type: ignore[list-item]
        (shared(), "'nodes' has a Node that is also elsewhere"),
        (Everything(accounts=2 * [Account()]), "'accounts' has a Account that is also elsewhere"),
        (Everything(hashed=2 * [Hashed()]), "'hashed' has a Hashed that is also elsewhere"),
        (Everything(plains=2 * [Plain()]), "'plains' has a Plain that is also elsewhere"),
        (Everything(plains=[with_extra(Plain())]), "'plains' has the attribute 'extra' of Plain, which is no field"),
        (Everything(anything=nested(STATE_NESTING_MAX + 1)), "'anything' is nested more than 128 levels"),
        (Everything(root=chain(5000)), "'root' is nested more than 128 levels"),
    ],
)
def test_state_changed_by_a_snapshot_is_refused_by_name(state: Everything, problem: str) -> None:
    with pytest.raises(UnsavableStateError, match=f"^field {problem}"):
        MACHINE.states.check(state)


def test_restorable_state_is_savable() -> None:
    state = Everything(
        anything={"a": [1, 1.5, True, None], "nan": float("nan")},
        made=defaultdict(list, a=[1]),
        last=deque([1]),
        root=chain(STATE_NESTING_MAX),
        total=float("inf"),
        plains=[Plain(2)],
        fixed=[*2 * [Point(1, 2)], *2 * [Fixed(3)]],
        colours=2 * [Colour.RED],
    )
    assert state.plains[0].twice == 4  # kept in the object
    MACHINE.states.check(state)
    assert restored(state).made["b"] == []


def test_class_is_refused_if_a_snapshot_would_change_its_initial_state() -> None:
    @attrs.define
    class Wrong(replog.StateMachine):
        counts: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))

    @attrs.define
    class Left(replog.StateMachine):
        count: int = attrs.field(init=False, default=0)

    for machine, problem in ((Wrong, "'counts' differs"), (Left, "'count' is not saved: remove its init=False")):
        with pytest.raises(ConfigError, match=problem):
            MachineType(machine)


def test_attribute_of_the_machine_is_refused_if_it_is_no_field() -> None:
    @attrs.define(slots=False)
    class Open(replog.StateMachine):
        count: int = 0

    machine = MachineType(Open)
    core = Core(machine)
    machine.states.check(core.state)
    core.state.extra = 1  # type: ignore[attr-defined]
    for attempt in (machine.states.shapes, machine.states.check):
        with pytest.raises(UnsavableStateError, match=r"^the attribute 'extra' of Open is no field"):
            attempt(core.state)


def test_type_quoted_in_part_is_explained() -> None:
    nodes = attrs.field(type=dict[str, "Node"], factory=lambda: {"a": Node()})
    machine = attrs.make_class("Quoted", {"nodes": nodes}, bases=(replog.StateMachine,))
    with pytest.raises(ConfigError, match=r"'nodes' can't be saved: .* Node .* quotes"):
        MachineType(machine)


# -- nesting ----------------------------------------------------------------------------------------------------------


@given(
    st.recursive(st.one_of(st.integers(), st.text('[]{}"\\a', max_size=9)), lambda inner: st.lists(inner, max_size=3))
)
def test_nesting_is_counted_outside_of_texts(value: Any) -> None:
    def levels(value: Any) -> int:
        return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0

    data, deep = json.dumps(value).encode(), levels(value)
    assert not is_nested_deeper(data, deep)
    assert is_nested_deeper(data, deep - 1) or not deep


@pytest.mark.parametrize("levels", [ARGUMENT_NESTING_MAX + 1, 330, 5000])
def test_argument_nested_too_deeply_is_not_sent(levels: int) -> None:
    for function, value in ((Everything.put, nested(levels)), (Everything.put_node, chain(levels))):
        with pytest.raises(TypeError, match="nested more than 64 levels deep: nothing was sent"):
            MACHINE.find(function).encode((value,), {})


@pytest.mark.parametrize("levels", [ARGUMENT_NESTING_MAX + 1, 5000])
def test_leader_refuses_an_argument_nested_too_deeply(levels: int) -> None:
    body = b'["put",1,' + b"[" * levels + b"]" * levels + b"]"
    with pytest.raises(CommandRefusedError, match="nothing was written"):
        MACHINE.decode_asked(body)


def test_argument_of_the_most_levels_is_taken() -> None:
    value = nested(ARGUMENT_NESTING_MAX)
    assert MACHINE.decode_asked(MACHINE.find(Everything.put).encode((value,), {})).args == [value]


# -- commands ---------------------------------------------------------------------------------------------------------


def recurse() -> None:
    recurse()


ERRORS: dict[str, Callable[[], object]] = {
    "recursion": recurse,
    "memory": lambda: b"x" * (1 << 60),
    "exit": lambda: exec("raise SystemExit(3)"),
    "interrupt": lambda: exec("raise KeyboardInterrupt"),
    "cancelled": lambda: (_ for _ in ()).throw(asyncio.CancelledError),
    "closed": lambda: exec("raise GeneratorExit"),
    "base": lambda: exec("raise BaseException('x')"),
    "group": lambda: exec("raise BaseExceptionGroup('x', [KeyboardInterrupt()])"),
    "signal": lambda: signal.raise_signal(signal.SIGUSR1),
}
DEEP = RESULT_NESTING_MAX


class Log:
    """A core with one session, to which commands are applied."""

    def __init__(self) -> None:
        self.core = Core(MACHINE)
        self.core.apply(Position(1, 0), MachineEntry(Kind.BEGIN))
        self.core.apply(Position(1, 1), MachineEntry(Kind.OPEN))

    def apply(self, entry: MachineEntry) -> Answer | None:
        return self.core.apply(Position(1, self.core.position.entry + 1), entry)

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Answer:
        body = MACHINE.find(function).encode(args, kwargs)
        answer = self.apply(MachineEntry(Kind.COMMAND, 1, self.core.position.entry, body=body))
        assert answer is not None
        return answer


@pytest.mark.parametrize("name", ["exit", "interrupt", "cancelled", "closed", "base", "group"])
def test_command_raising_no_exception_counts_as_applied(name: str) -> None:
    """A bare one ended the process, and each process that started afterwards."""
    log = Log()
    with handled(signal.SIGINT, lambda *_: None):
        assert log.call(Everything.fail, name).code == Code.FAILED
    assert log.core.state.total == 1.0


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, lambda *_: exec("raise SystemExit(0)"), SystemExit),
        (signal.SIGALRM, lambda *_: exec("raise TimeoutError"), TimeoutError),
    ],
)
def test_signal_during_a_command_is_not_its_result(
    number: int, handler: Any, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to this process only: the others have applied the command."""
    monkeypatch.setitem(ERRORS, "signal", lambda: signal.raise_signal(number))
    log = Log()
    with handled(number, handler), pytest.raises(raised):
        log.call(Everything.fail, "signal")


@pytest.mark.parametrize("name", ["recursion", "memory"])
def test_command_without_memory_or_stack_stops_the_member_by_name(name: str) -> None:
    with pytest.raises(CommandUnappliedError, match=r"command 'fail' of Everything at 1:2 ended with .*Error here"):
        Log().call(Everything.fail, name)


@pytest.mark.parametrize("levels", [DEEP + 1, 2000])
def test_result_nested_too_deeply_is_a_failure(levels: int) -> None:
    log = Log()
    answer = log.call(Everything.deepen, levels)
    assert (answer.code, json.loads(answer.body)[1]) == (Code.FAILED, "its result is nested more than 128 levels deep")
    assert log.call(Everything.deepen, DEEP).code == Code.DONE


def test_unsavable_state_is_not_compared_and_stops_nobody() -> None:
    log = Log()
    log.apply(MachineEntry(Kind.CHECK))
    assert log.core.checked is not None
    log.call(Everything.fail, "base")
    log.core.state.anything = object()
    log.apply(MachineEntry(Kind.CHECK))
    assert log.core.checked is None
    log.apply(MachineEntry(Kind.HASH, body=b'[1,4,"other"]'))
    with pytest.raises(UnsavableStateError, match="'anything'"):
        log.core.dump()


# -- members ----------------------------------------------------------------------------------------------------------

EVERY_2 = attrs.evolve(OPTIONS, snapshot_every=2, check_every=2)


async def test_young_machine_with_an_unsavable_state_stops_once() -> None:
    """A developer's first test finds it, and no restart is in vain."""
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        with pytest.raises(
            UnsavableStateError, match=r"'counters' at 1:.*, after command 1: field 'total'.*start again"
        ):
            async with member(made, Everything) as machine:
                await machine.set_total(True)
                await trio.sleep(60)
        async with member(made, Everything) as machine:
            assert await machine.read(lambda state: state.total) == 0  # type: ignore[attr-defined]
            await machine.set_total(False)
        assert await load(client) is None


async def test_unsavable_state_keeps_log_and_members(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saving, "_LOOKS", ())
    monkeypatch.setattr(saving, "_UNSAVABLE_AGAIN_S", 1.0)

    def warnings() -> int:
        return sum("and the log is kept: field 'total'" in each.getMessage() for each in caplog.records)

    async with cluster(1) as made, made.client(quorum=ONE) as client:
        async with member(made, Everything, EVERY_2) as machine:
            for _ in range(6):
                await machine.deepen(STATE_NESTING_MAX)
            await until_saved(client)
            await machine.set_total(True)
            await machine.set_total(True)
            await until(lambda: warnings() >= 1)
            saved = await load(client)
            await until(lambda: warnings() >= 3)
            assert await load(client) == saved
        async with member(made, Everything, EVERY_2) as machine:
            await machine.set_total(False)
            with trio.fail_after(60):
                while await load(client) == saved:  # noqa: ASYNC110 - another task saves it
                    await trio.sleep(0.1)


async def test_members_are_told_when_states_cannot_be_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saving, "_LOOKS", ())
    never = attrs.evolve(EVERY_2, snapshot_every=None)
    async with cluster(1) as made, member(made, Everything, never) as machine:
        with pytest.raises(CommandFailedError, match="its result is nested"):
            await machine.deepen(2000)
        for _ in range(4):
            await machine.set_total(False)
        await until(lambda: any("are not compared: field 'anything'" in each.getMessage() for each in caplog.records))
