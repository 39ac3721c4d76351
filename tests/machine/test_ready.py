"""The machines that are ready to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

import pytest

import replog
from replog.machine.commands import MachineType, State, StateMachine
from replog.machine.core import Core
from replog.machine.entries import Code, Kind, MachineEntry
from replog.protocol.model import Position

READY = [replog.ReplicatedDict, replog.ReplicatedCounter, replog.ReplicatedQueue, replog.ReplicatedLock]


class Machine(Generic[State]):
    """Applies commands as a member does, and reads the state back from a snapshot after each."""

    def __init__(self, machine: type[State]) -> None:
        self.type = MachineType(machine)
        self.core = Core(self.type)
        self.now_s = 0.0
        self._next = 0
        for kind in (Kind.BEGIN, Kind.OPEN):
            self._apply(MachineEntry(kind))

    def _apply(self, entry: MachineEntry) -> Any:
        self._next += 1
        return self.core.apply(Position(1, self._next), entry)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        known = self.type.find(function)
        body = known.encode(args, {})
        answer = self._apply(MachineEntry(Kind.COMMAND, 1, self._next, 0, int(self.now_s * 1e9), body))
        assert answer.code == Code.DONE, answer.body
        restored = Core(self.type)
        restored.load(self.core.dump())
        assert restored.state == self.core.state
        self.core = restored
        return known.decode_result(answer.body)


@pytest.mark.parametrize("machine", READY)
def test_ready_machine_can_be_replicated(machine: type[StateMachine]) -> None:
    assert Machine(machine).core.state == machine()


def test_dict() -> None:
    made, kind = Machine(replog.ReplicatedDict), replog.ReplicatedDict
    assert made.call(kind.put, "a", {"x": [1, None]}) is None
    assert made.call(kind.put, "a", 2) == {"x": [1, None]}
    assert [made.call(kind.compare_and_set, "a", value, 3) for value in (1, 2)] == [False, True]
    assert made.call(kind.compare_and_set, "b", None, "new")
    made.call(kind.update, {"c": 1.5})
    assert made.core.state.items == {"a": 3, "b": "new", "c": 1.5}
    assert [made.call(kind.delete, "c"), made.call(kind.delete, "c")] == [True, False]
    made.call(kind.clear)
    assert made.core.state.items == {}
    with pytest.raises(TypeError):
        made.call(kind.put, "a", (1, 2))


def test_counter() -> None:
    made, kind = Machine(replog.ReplicatedCounter), replog.ReplicatedCounter
    assert [made.call(kind.add), made.call(kind.add, -3)] == [1, -2]
    assert [made.call(kind.compare_and_set, value, 7) for value in (0, -2)] == [False, True]
    assert made.core.state.value == 7


def test_queue_gives_each_item_once_in_order() -> None:
    made, kind = Machine(replog.ReplicatedQueue), replog.ReplicatedQueue
    assert made.call(kind.put, "a") == 1
    assert made.call(kind.put_many, [1, {"b": None}]) == 3
    assert made.call(kind.take) == ["a"]
    assert made.call(kind.take, 5) == [1, {"b": None}]
    assert made.call(kind.take) == []


def test_lock_has_one_holder_until_its_time_is_up() -> None:
    made, kind = Machine(replog.ReplicatedLock), replog.ReplicatedLock
    assert made.call(kind.acquire, "ann", 10.0) == 1
    assert made.call(kind.acquire, "ben", 10.0) is None
    made.now_s = 9
    assert made.call(kind.renew, 1, 10.0)
    made.now_s = 18
    assert made.call(kind.acquire, "ben", 10.0) is None
    made.now_s = 19
    assert made.call(kind.acquire, "ben", 10.0) == 2
    assert [made.call(kind.renew, 1, 10.0), made.call(kind.release, 1)] == [False, False]
    assert made.call(kind.release, 2)
    assert made.call(kind.acquire, "ann", 1.0) == 3
    assert made.core.state.holder == "ann"
