"""A machine as it runs in this process: its commands as calls, reads, and the state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import attrs
import trio

from replog.errors import (
    CommandFailedError,
    CommandRefusedError,
    CommandTimeoutError,
    RemoteProtocolError,
    SessionExpiredError,
)
from replog.log.log_options import LogOptions
from replog.machine.calling import Caller
from replog.machine.commands import Command, MachineType, State
from replog.machine.context import Logs, MachineContext, listening, usual_listen
from replog.machine.core import Core
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.member import Member
from replog.machine.options import MachineOptions, MachineTuning, tuned
from replog.machine.sessions import CommandId, IdSession, Session
from replog.protocol.model import Position
from replog.records.paths import log_key_path
from replog.runtime.nursery import open_service_nursery

# Members of enums are looked up slowly, and each call does so.
_COMMAND, _DONE, _FULL = int(Kind.COMMAND), int(Code.DONE), int(Code.FULL)
_FULL_S = 0.02  # after which a command for whose answer its session had no room is sent again

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@attrs.frozen
class MachineStatus:
    """Where a member is: how far it has applied the log, and whether it leads.

    `commands` were applied since the log began. `leads_from` is where the leadership of this member began, None without one.
    `restoring` is the part of a snapshot that was read, while this member reads one; otherwise None. `takeovers` are those of the
    machine that this member has seen since it was started, in what it replayed, too. `time_ns` is the machine's time."""

    member_id: str
    position: Position
    commands: int
    sessions: int
    leads_from: Position | None
    restoring: float | None
    takeovers: int
    time_ns: int


class RunningMachine(Generic[State]):
    """A state machine in this process, one of its members. Made by `Client.run_machine`.

    Each command of the class is a method, which returns when the command is applied: `await counters.add("visits", 1)`."""

    def __init__(
        self, member: Member, caller: Caller, session: Session, ids: IdSession, options: MachineTuning
    ) -> None:
        self._member = member
        self._caller = caller
        self._session = session  # of calls
        self._ids = ids
        self._options = options

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def machine_name(self) -> str:
        """The name of the machine, and of its log."""
        return self._member.name

    @property
    def local(self) -> State:
        """The state as it was last applied here, maybe behind: without waiting. Do not change it."""
        return self._member.core.state  # type: ignore[no-any-return]

    @property
    def status(self) -> MachineStatus:
        """Where this member is."""
        core = self._member.core
        return MachineStatus(
            self._member.member_id,
            core.position,
            core.commands,
            len(core.sessions),
            self._member.leads_from,
            self._member.restoring,
            core.takeovers,
            core.time_ns,
        )

    async def read(self, function: Callable[[State], Result]) -> Result:
        """Returns the function's result for the state with every command applied that was answered before this call.

        The function must not change the state, nor return a part of it that changes. Raises the function's errors, and
        `CommandTimeoutError`. Reads that are under way together share one append."""
        deadline_s = trio.current_time() + self._options.call_timeout_s
        answer = await self._caller.ask(MachineEntry(Kind.READ))
        with trio.move_on_at(deadline_s):
            await self._member.until_applied(Position(*answer.position))
            return function(self._member.core.state)
        raise CommandTimeoutError(f"machine {self.machine_name!r}: this member is too far behind the leader")

    # -- commands -----------------------------------------------------------------------------------------------------

    async def call(
        self,
        command: Callable[Concatenate[State, Arguments], Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Has a command applied, exactly once, and returns its result.

        Raises `CommandFailedError` (applied), `CommandRefusedError` (not written), `CommandTimeoutError` and
        `SessionExpiredError` (outcome unknown), TypeError for arguments that are not of the command's types. If cancelled,
        the outcome is unknown."""
        return await self._call(self._member.core.machine.find(command), *args, **kwargs)  # type: ignore[no-any-return]

    async def next_id(self) -> CommandId:
        """An id for one command, to be kept before `call_as` sends it: then the command may be repeated, by any process, until it
        is answered. Of more than 16,384 ids that are not answered, the oldest are given up. Raises as `call`."""
        return await self._ids.begin()

    async def call_as(
        self,
        command_id: CommandId | str,
        command: Callable[Concatenate[State, Arguments], Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Runs a command that has an id: a repeat with the same id gets the first answer, and is not applied again.

        Raises as `call`, and `SessionExpiredError` if the id's session has ended, its answer came long before, or it was given
        up: then it is unknown whether the command was applied before. If it timed out or was cancelled, repeat it."""
        wanted = CommandId.parse(command_id)
        known = self._member.core.machine.find(command)
        body, is_answered = known.encode(args, kwargs), False
        self._ids.called(wanted)
        try:
            answer = await self._ask(self._ids, wanted, body)
            is_answered = True
        finally:
            self._ids.returned(wanted, is_answered=is_answered)
        return self._result(known, wanted, answer)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """The command of this name, as a method."""
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._call, self._known(name))

    def _command_named(self, name: str) -> Callable[..., Any]:
        return self._known(name).function

    def _known(self, name: str) -> Command:
        machine = self._member.core.machine
        if name not in machine.by_attribute:
            raise AttributeError(f"{machine.machine.__name__} has no command {name!r}")
        return machine.by_attribute[name]

    async def _call(self, command: Command, /, *args: Any, **kwargs: Any) -> Any:
        body = command.encode(args, kwargs)
        session = self._session
        command_id = session.begin_nowait() or await session.begin()
        try:
            answer = await self._ask(session, command_id, body)
        finally:
            session.ended(command_id)
        return self._result(command, command_id, answer)

    async def _ask(self, session: Session, command_id: CommandId, body: bytes) -> Answer:
        floor = session.floor(command_id)
        answer = await self._caller.ask(MachineEntry(_COMMAND, *command_id, floor, body=body))
        if answer.code != _FULL:
            return answer
        with trio.move_on_after(self._options.call_timeout_s):
            while answer.code == _FULL:
                session.make_room(command_id.session, floor)
                await trio.sleep(_FULL_S)
                floor = session.floor(command_id)  # which others have raised meanwhile
                answer = await self._caller.ask(MachineEntry(_COMMAND, *command_id, floor, body=body))
            return answer
        raise CommandTimeoutError(
            f"machine {self.machine_name!r}: command {command_id} was not applied for {self._options.call_timeout_s} s: its "
            "session is full of answers that its member has not confirmed; the outcome is unknown"
        )

    def _result(self, command: Command, command_id: CommandId, answer: Answer) -> Any:
        if answer.code == _DONE:
            return command.decode_result(answer.body)
        if answer.code == Code.FAILED:
            kind, text = json.loads(answer.body)
            raise CommandFailedError(text, kind)
        if answer.code == Code.REFUSED:
            raise CommandRefusedError(answer.body.decode(errors="replace"))
        if answer.code == Code.EXPIRED:
            self._ids.expired(command_id.session)
            raise self._session.expired(command_id.session)
        if answer.code == Code.FORGOTTEN:
            raise SessionExpiredError(
                f"command {command_id} was answered or given up before: its result is kept no longer, and it is not applied "
                "from now on"
            )
        raise RemoteProtocolError(f"machine {self.machine_name!r}: the leader answered with code {answer.code}")


@asynccontextmanager
async def run_machine(
    name: str,
    machine: type[State],
    logs: Logs,
    context: MachineContext,
    listen: str | Sequence[str] | None,
    options: MachineOptions | None,
    log_options: LogOptions,
) -> AsyncIterator[RunningMachine[State]]:
    """A member of the machine of this name, as a context: see `Client.run_machine`."""
    log_key_path(name)
    settings = tuned(options or MachineOptions())
    core = Core(MachineType(machine))
    if listen is None:
        addresses: Sequence[str] = usual_listen()
    else:
        addresses = (listen,) if isinstance(listen, str) else listen
    member = Member(name, core, logs, context, settings, log_options)
    caller = Caller(name, context, settings, log_options.password)
    session, ids = Session(caller, settings, member.member_id), IdSession(caller, settings, member.member_id)
    served = listening(member.member_id, addresses, member.reception, context)
    async with served as endpoints, open_service_nursery() as nursery:
        nursery.start_soon(member.run, endpoints)
        nursery.start_soon(caller.run)
        nursery.start_soon(session.keep_alive)
        nursery.start_soon(ids.keep_alive)
        with trio.move_on_after(settings.call_timeout_s):
            await member.caught_up.wait()
        try:
            yield RunningMachine(member, caller, session, ids, settings)
            async with trio.open_nursery() as closing:
                closing.start_soon(session.close)
                closing.start_soon(ids.close)
        finally:
            caller.leave()
