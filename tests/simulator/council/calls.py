"""Requests of clients to the simulated cluster, and whether the answers are those of one order of commands (Q10, Q13, Q14)."""

from __future__ import annotations

import attrs

from replog.protocol.consensus.commands import Command, Outcome, Status, What, decode_commands
from replog.protocol.consensus.log import Kind, LogEntry
from replog.protocol.consensus.registers import Registers
from tests.simulator.council.rows import OUTCOMES_MAX, MemoryRows
from tests.simulator.council.violation import Violation

FOREVER = 1 << 60
KEYS = ("a", "b")


@attrs.define
class Call:
    """A read, or a command, of one client. `outcome` and `version` are what it was told."""

    client: int
    key: str
    command: Command | None
    start: int
    end: int = FOREVER
    tries: int = 1
    outcome: Outcome | None = None
    version: int | None = None


@attrs.define
class Client:
    """It asks one thing after the other, and knows the versions that it was told."""

    known: int = 0
    versions: dict[str, int] = attrs.field(factory=dict)
    call: int | None = None


@attrs.frozen(order=True)
class _Seen:
    """A version that a call saw or made, and when the call ran."""

    version: int
    is_read: bool
    start: int
    end: int
    call: int


def token_of(call: int) -> bytes:
    """Of the command of this call."""
    return call.to_bytes(16, "big")


def judge(log: list[LogEntry], calls: dict[int, Call]) -> None:
    """Answers against one order of commands, each applied once by whoever has unlimited memory; and that order against time."""
    truths = _in_order(log, calls)
    history: dict[str, list[_Seen]] = {key: [] for key in KEYS}
    for number, call in calls.items():
        if call.command is None:
            if call.version is not None:
                history[call.key].append(_Seen(call.version, True, call.start, call.end, number))
            continue
        truth = truths.get(token_of(number))
        if call.outcome is not None and call.outcome.status is not Status.UNKNOWN and call.outcome != truth:
            raise Violation("Q13", f"call {number} was told {call.outcome}, and in the order of the log it is {truth}")
        if truth is not None and truth.status is Status.DONE:
            end = call.end if call.outcome is not None else FOREVER
            history[call.key].append(_Seen(truth.version, False, call.start, end, number))
        elif call.outcome is not None and call.outcome == truth and truth.status is not Status.MISSING:
            history[call.key].append(_Seen(truth.version, True, call.start, call.end, number))
    written = {each.version for seen in history.values() for each in seen if not each.is_read} | {0}
    for key, seen in history.items():
        for each in seen:
            if each.version not in written:
                raise Violation("Q10", f"call {each.call} read version {each.version} of {key!r}, which never was")
        _check_time(key, sorted(seen))


def _in_order(log: list[LogEntry], calls: dict[int, Call]) -> dict[bytes, Outcome]:
    """The true outcome of each command that was applied, by an oracle that forgets nothing. A command that every member
    refused, because its outcome might be forgotten, was not applied: so the oracle asks a replay of the real state."""
    replay = Registers(MemoryRows({}), outcomes_max=OUTCOMES_MAX, outcomes_ms=0)
    versions: dict[str, int] = {}
    last = 0
    found: dict[bytes, Outcome] = {}
    for index, entry in enumerate(log, 1):
        if entry.kind is not Kind.COMMANDS:
            continue
        _, (command,) = decode_commands(entry.body)
        ((_, outcome),) = replay.apply(index, entry.body)
        if outcome.status is Status.UNKNOWN or command.token in found:
            continue
        version = versions.get(command.key, 0)
        if command.what is What.CREATE and version:
            found[command.token] = Outcome(Status.EXISTS, version)
        elif command.what is not What.CREATE and not version:
            found[command.token] = Outcome(Status.MISSING)
        elif command.what is not What.CREATE and command.expected != version:
            found[command.token] = Outcome(Status.CONFLICT, version)
        else:
            last += 1
            versions[command.key] = last
            found[command.token] = Outcome(Status.DONE, last)
    return found


def _check_time(key: str, seen: list[_Seen]) -> None:
    """In the order of versions no call may end before one of an earlier version begins. Reads of a version have no order."""
    latest_start, latest = -1, -1
    group: tuple[int, bool] | None = None
    group_start, group_call = -1, -1
    for each in seen:
        if (each.version, each.is_read) != group:
            if group_start > latest_start:
                latest_start, latest = group_start, group_call
            group, group_start, group_call = (each.version, each.is_read), -1, -1
        if each.end < latest_start:
            raise Violation(
                "Q10",
                f"key {key!r}: call {each.call} saw version {each.version} and ended at {each.end}, before call {latest} of an "
                f"earlier version began at {latest_start}",
            )
        if each.start > group_start:
            group_start, group_call = each.start, each.call
