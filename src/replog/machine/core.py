"""The replicated core: the state of a machine and the sessions of its callers, changed by entries and nothing else.

No I/O, no clock, no randomness: members that apply the same entries have the same core. Rules:

- A command is applied once: its session remembers the result under its sequence, until the caller says by a higher
  `floor` that it has the answer. A sequence below the floor is never applied again.
- The answers of a session are bounded: above the bounds, only the sequence at the floor is applied. So the command that the
  others wait for never waits itself.
- The sessions and their results are part of the state and of its snapshots: a member that is restored, or takes over,
  knows the applied commands.
- A session begins and ends by an entry only. Its id is counted here, so that no id ever means two sessions. A command
  of a session that does not exist is not applied.
- A command that raises counts as applied, whatever it raises. Running out of memory or stack is no result: it depends
  on the process.
- A state that cannot be saved stops nobody: the log has it.
- The first entry that counts is BEGIN. So a member that finds a trimmed log, and no snapshot, never takes the rest for
  all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Generic

from replog.errors import (
    CommandUnappliedError,
    RemoteProtocolError,
    StateDivergedError,
    UnknownCommandError,
    UnsavableStateError,
)
from replog.machine.commands import Call, MachineType, State
from replog.machine.conversion import to_json, to_state_json
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.model import Position
from replog.runtime.signals import is_of_handler

SNAPSHOT_FORMAT = 1
RESULTS_MAX = 16_384  # of one session that its caller has not confirmed: above it, only the one at the floor is applied
RESULTS_BYTES_MAX = 64 << 20  # the same for their bytes; the last two may exceed it
RESULT_BYTES_MAX = ENTRY_BYTES_MAX  # of one command, as JSON: a larger answer could not be sent
SESSIONS_MAX = 100_000
_TEXT_CHARACTERS_MAX = 2000  # of a failure


# Members of enums are looked up slowly, and a replay does so for each command.
_COMMAND, _DONE, _FAILED = int(Kind.COMMAND), int(Code.DONE), int(Code.FAILED)

# Entries that change nothing may come before the beginning: those of leaders that died before they wrote it.
_BEFORE_THE_BEGINNING = frozenset({Kind.LEAD, Kind.BARRIER, Kind.BEGIN})


class BeginningGoneError(UnknownCommandError):
    """The log does not have its beginning any more, and this member has not applied that part. Retry: from a snapshot.
    Outcome: nothing was applied."""


class LogGoesBackError(StateDivergedError):
    """The log ends before what this member has applied. Retry: no; log and snapshots are not of one machine, or the metastore
    went back. Outcome: nothing was applied."""


class Core(Generic[State]):
    """A machine's state, its sessions, and how far the log is applied."""

    def __init__(self, machine: MachineType[State]) -> None:
        self.machine = machine
        self.state: State = machine.machine()
        self.position = Position(0, 0)  # of the last entry that was applied
        self.time_ns = 0
        self.has_begun = False
        self.commands = 0  # applied so far
        self.checked: tuple[Position, str] | None = None  # the last CHECK, and the hash of the core there
        self.unsavable: UnsavableStateError | None = None  # why there is no hash at the last CHECK
        self.snapshot_commands = 0  # how many were applied in the last snapshot that is known
        self.takeovers = 0  # that this process has seen: not a part of the state
        self._sessions: dict[int, _Session] = {}
        self._next_session = 1

    def __contains__(self, session: int) -> bool:
        return session in self._sessions

    @property
    def sessions(self) -> list[int]:
        """The ids of the sessions, ascending."""
        return list(self._sessions)

    # -- applying ---------------------------------------------------------------------------------------------------

    def apply(self, position: Position, entry: MachineEntry, call: Call | None = None) -> Answer | None:
        """Applies the next entry, and returns the answer for its caller, if it has one. `call` is a command that was
        decoded before.

        Raises `BeginningGoneError` (nothing was applied), `UnknownCommandError`, `StateDivergedError` or
        `CommandUnappliedError`: then this member must stop."""
        assert position > self.position, "entries are applied in order, each once"
        if not self.has_begun:
            self._begin(position, entry.kind)
        if entry.time_ns > self.time_ns:
            self.time_ns = entry.time_ns
        if entry.kind == _COMMAND:
            try:
                answer: Answer | None = self._command(entry, call)
            except (MemoryError, RecursionError) as error:
                raise self._unapplied(position, call or self.machine.decode(entry.body), error) from error
        else:
            answer = self._other(position, entry)
        self.position = position
        if answer is not None:
            answer.position = position
        return answer

    def _other(self, position: Position, entry: MachineEntry) -> Answer | None:
        if entry.kind == Kind.OPEN:
            return self._open()
        if entry.kind == Kind.TOUCH:
            return self._touch(entry)
        if entry.kind == Kind.EXPIRE:
            return self._expire(sessions_of(entry.body))
        if entry.kind == Kind.CHECK:
            self._check(position)
        elif entry.kind == Kind.HASH:
            self._compare(entry.body)
        elif entry.kind == Kind.LEAD:
            self.takeovers += 1
        elif entry.kind == Kind.READ:
            raise UnknownCommandError("a read is not an entry: something else wrote to this log")
        return None

    def answer_at_once(self, entry: MachineEntry) -> Answer | None:
        """The answer to an entry that changes nothing if it comes next: then it need not be written. None for all others."""
        if entry.kind == Kind.OPEN:
            return Answer(Code.BUSY) if len(self._sessions) >= SESSIONS_MAX else None
        session = self._sessions.get(entry.session)
        if entry.kind != _COMMAND or session is None:
            return None
        if entry.sequence in session.results:
            return Answer(*session.results[entry.sequence])
        is_full = entry.floor <= session.floor < entry.sequence and session.is_full
        return Answer(Code.FULL) if is_full else None

    def _begin(self, position: Position, kind: int) -> None:
        if kind not in _BEFORE_THE_BEGINNING:
            raise BeginningGoneError(
                f"the log begins at {position}, behind the beginning of its machine: it was trimmed"
            )
        self.has_begun = kind == Kind.BEGIN

    def _open(self) -> Answer:
        if len(self._sessions) >= SESSIONS_MAX:
            return Answer(Code.BUSY)
        session, self._next_session = self._next_session, self._next_session + 1
        self._sessions[session] = _Session()
        return Answer(Code.DONE, str(session).encode())

    def _touch(self, entry: MachineEntry) -> Answer:
        if entry.session not in self._sessions:
            return Answer(Code.EXPIRED)
        session = self._sessions[entry.session]
        session.raise_floor(entry.floor)
        return Answer(Code.FULL if session.is_full else Code.DONE)

    def _expire(self, sessions: list[int]) -> Answer:
        for session in sessions:
            self._sessions.pop(session, None)
        return Answer(Code.DONE)

    def _command(self, entry: MachineEntry, call: Call | None) -> Answer:
        # Decoded even if it is not applied: what no member knows stops all of them, not only some.
        call = call or self.machine.decode(entry.body)
        session = self._sessions.get(entry.session)
        if session is None:
            return Answer(Code.EXPIRED)
        known = session.results.get(entry.sequence)
        if known is not None:
            return Answer(*known)
        if entry.sequence < session.floor:
            return Answer(Code.FORGOTTEN)
        session.raise_floor(min(entry.floor, entry.sequence))
        if session.is_full and entry.sequence != session.floor:
            return Answer(Code.FULL)
        self.commands += 1
        result = self._applied(call)
        session.remember(entry.sequence, result)
        return Answer(*result)

    def _applied(self, call: Call) -> tuple[int, bytes]:
        state = self.state
        object.__setattr__(state, "_now_ns", self.time_ns)  # the class may be frozen but for its commands
        try:
            # Encoded at once: what the command returned may be a part of the state, which changes.
            result = call.command.encode_result(call.command.apply(state, *call.args))
            if len(result) > RESULT_BYTES_MAX:
                raise ValueError(f"a result of {len(result)} bytes as JSON: the limit is {RESULT_BYTES_MAX}")
            return _DONE, result
        except (MemoryError, RecursionError):
            # These depend on the process: other members may have applied it.
            raise
        except BaseException as error:
            # A command does not wait, so nobody cancels it. But a signal may come at any time, to this process only.
            if is_of_handler(error):
                raise
            shown = [type(error).__name__, _text_of(error)]
            return Code.FAILED, to_json(shown).encode()

    def _unapplied(self, position: Position, call: Call, error: BaseException) -> CommandUnappliedError:
        machine, kind = self.machine.machine.__name__, type(error).__name__
        return CommandUnappliedError(
            f"command {call.command.name!r} of {machine} at {position} ended with {kind} here. It is confirmed, and other "
            "members may have applied it; this one stops, and so does each that runs out of the same. Start again with more "
            "memory or a higher recursion limit; if no member can apply it, mend the command so that it raises another error"
        )

    # -- divergence ---------------------------------------------------------------------------------------------------

    def _check(self, position: Position) -> None:
        self.position = position  # which the hash covers
        try:
            self.checked, self.unsavable = (position, self.hash()), None
        except UnsavableStateError as error:
            self.checked, self.unsavable = None, error  # nothing is compared

    def hash(self) -> str:
        """A hash of the state and the sessions. It leaves out the texts of failures: an object's address may be in one. Raises
        `UnsavableStateError`."""
        sessions = [
            [
                number,
                session.floor,
                [
                    [sequence, code, "" if code == Code.FAILED else body.decode()]
                    for sequence, (code, body) in session.results.items()
                ],
            ]
            for number, session in self._sessions.items()
        ]
        whole = [str(self.position), self.time_ns, self.commands, self._next_session, sessions]
        text = f"{to_state_json(whole)[:-1]},{self.machine.states.json(self.state)}]"
        return hashlib.sha256(text.encode()).hexdigest()

    def _compare(self, body: bytes) -> None:
        try:
            segment, number, expected = json.loads(body)
            position = Position(segment, number)
        except (ValueError, TypeError) as error:
            raise UnknownCommandError(f"{body[:60]!r} is not a hash of a state") from error
        # A member that was restored behind the CHECK has nothing to compare.
        if self.checked is None or self.checked[0] != position:
            return
        if self.checked[1] != expected:
            raise StateDivergedError(
                f"at {position} the state here differs from the leader's: a command of {self.machine.machine.__name__} "
                "depends on more than its arguments and the state. This member stops; nothing in the log was changed"
            )

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """All of it, as JSON: made at once, before the state changes again. Raises `UnsavableStateError`."""
        sessions = [
            [
                number,
                session.floor,
                [[sequence, code, body.decode()] for sequence, (code, body) in session.results.items()],
            ]
            for number, session in self._sessions.items()
        ]
        fields = {
            "format": SNAPSHOT_FORMAT,
            "machine": self.machine.machine.__name__,
            "version": self.machine.machine.version,
            "position": str(self.position),
            "time_ns": self.time_ns,
            "commands": self.commands,
            "next_session": self._next_session,
            "sessions": sessions,
        }
        return f'{to_state_json(fields)[:-1]},"state":{self.machine.states.json(self.state)}}}'.encode()

    def load(self, data: bytes) -> None:
        """Restores a dumped state. Raises `UnknownCommandError` if that is of another version, `RemoteProtocolError` if
        it is damaged; then it stays as it was."""
        machine = self.machine.machine
        try:
            dumped = json.loads(data)
            version = dumped["format"], dumped["version"]
            if version != (SNAPSHOT_FORMAT, machine.version):
                problem = f"a snapshot of format {version[0]} and version {version[1]}"
                known = f"{machine.__name__} reads {SNAPSHOT_FORMAT} and {machine.version}"
                raise UnknownCommandError(f"{problem}, and {known}: upgrade this program")
            sessions = {number: _Session.loaded(floor, results) for number, floor, results in dumped["sessions"]}
            numbers = dumped["time_ns"], dumped["commands"], dumped["next_session"]
            position = Position.parse(dumped["position"])
            state_fields = dumped["state"]
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RemoteProtocolError(f"a damaged snapshot of {machine.__name__}: {error!r}") from error
        try:
            state = self.machine.states.decode(state_fields)
        except Exception as error:
            raise UnknownCommandError(
                f"the fields in a snapshot are not those of {machine.__name__}: {error!r}"
            ) from error
        self.state, self._sessions, self.position = state, sessions, position
        self.time_ns, self.commands, self._next_session = numbers
        self.snapshot_commands = self.commands
        self.has_begun, self.checked = True, None

    def adopt(self, other: Core[State]) -> None:
        """Becomes the other one, which is not used any more."""
        self.state, self.position, self.time_ns, self.commands = (
            other.state,
            other.position,
            other.time_ns,
            other.commands,
        )
        self._sessions, self._next_session = other._sessions, other._next_session
        self.has_begun, self.checked, self.snapshot_commands = other.has_begun, None, other.snapshot_commands


class _Session:
    """The memory of one caller: the answers that it may not have received."""

    __slots__ = ("floor", "results", "results_bytes")

    def __init__(self) -> None:
        self.floor = 0
        self.results: dict[int, tuple[int, bytes]] = {}  # by sequence
        self.results_bytes = 0

    @classmethod
    def loaded(cls, floor: int, results: list[Any]) -> _Session:
        session = cls()
        session.floor = floor
        for sequence, code, body in results:
            session.remember(sequence, (code, body.encode()))
        return session

    @property
    def is_full(self) -> bool:
        """True if it has no room for a further answer."""
        return len(self.results) >= RESULTS_MAX or self.results_bytes >= RESULTS_BYTES_MAX

    def remember(self, sequence: int, result: tuple[int, bytes]) -> None:
        """Keeps the answer to this sequence, which has none yet."""
        self.results[sequence] = result
        self.results_bytes += _bytes_of(result)

    def raise_floor(self, floor: int) -> None:
        """Forgets the answers to all sequences below."""
        if floor <= self.floor:
            return
        results = self.results
        if floor == self.floor + 1:
            answered: Iterable[int] = (self.floor,)
        elif floor - self.floor <= len(results):
            answered = range(self.floor, floor)
        else:
            answered = [sequence for sequence in results if sequence < floor]
        for sequence in answered:
            result = results.pop(sequence, None)
            if result is not None:
                self.results_bytes -= _bytes_of(result)
        self.floor = floor


def _bytes_of(result: tuple[int, bytes]) -> int:
    """As counted against the limit, which each member must reach at the same entry: the text of a failure may differ between
    them, so it counts as the longest."""
    code, body = result
    return _TEXT_CHARACTERS_MAX if code == _FAILED else len(body)


def _text_of(error: BaseException) -> str:
    """For the caller. A command that raised counts as applied even if its error cannot be described."""
    try:
        return str(error)[:_TEXT_CHARACTERS_MAX]
    except Exception as another:
        return f"(its text cannot be shown: str() of it raised {type(another).__name__})"


def sessions_of(body: bytes) -> list[int]:
    """The sessions that this body of an EXPIRE names. Raises `UnknownCommandError`."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise UnknownCommandError(f"{body[:60]!r} is not a list of sessions")
    return found
