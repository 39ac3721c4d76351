"""Members in one trio run that reach each other by a transport, and begin their cluster by themselves."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from replog.bookie.shared_listener import SharedListener
from replog.metastores.quorum.addresses import scheme_of
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.node import Timing
from replog.metastores.quorum.running import MemberConfig, RunningMember, running_member
from replog.registry import Registry
from tests.kit import until
from tests.servers.processes import HOST, free_port

QUICK = Timing(heartbeat_s=0.1, election_s=0.6)
SOON_S = 15.0


class Members:
    """Processes by their numbers, each with a directory and an address; `peers` is the list that they are started with."""

    def __init__(self, directory: Path, nursery: trio.Nursery, transport: str = "memory", count: int = 5) -> None:
        is_tcp = transport == "tcp"
        self.addresses = [f"{HOST}:{free_port()}" if is_tcp else f"memory:m{n}" for n in range(count)]
        self.peers: tuple[str, ...] = tuple(sorted(self.addresses[:3]))
        self.running: dict[int, RunningMember] = {}
        self._plugins = Registry()
        self._directory = directory
        self._nursery = nursery
        self._scopes: dict[int, trio.CancelScope] = {}
        self._ended: dict[int, trio.Event] = {}

    def place(self, number: int) -> Path:
        return self._directory / str(number)

    def start(self, *numbers: int, peers: tuple[str, ...] = ()) -> None:
        """Starts processes; `begun` waits until they take part."""
        for number in numbers:
            self._scopes[number], self._ended[number] = trio.CancelScope(), trio.Event()
            self._nursery.start_soon(self._run, number, peers or self.peers)

    async def _run(self, number: int, peers: tuple[str, ...]) -> None:
        config = MemberConfig(self.place(number), self.addresses[number], peers, QUICK)
        try:
            with self._scopes[number]:
                async with AsyncExitStack() as stack:
                    member = await stack.enter_async_context(running_member(config, self._plugins.open_transport, None))
                    scheme, rest = scheme_of(self.addresses[number])
                    listener = SharedListener(self._plugins.open_transport(scheme), member.service)
                    await stack.enter_async_context(listener.open(rest, "", None))
                    self.running[number] = member
                    await member.begin()
                    await trio.sleep_forever()
        finally:
            self.running.pop(number, None)
            self._ended[number].set()

    async def stop(self, number: int, *, wiped: bool = False) -> None:
        """Ends a process, and maybe empties its disk."""
        self._scopes[number].cancel()
        await self._ended[number].wait()
        if wiped:
            shutil.rmtree(self.place(number))

    async def stop_all(self) -> None:
        for number in list(self._ended):
            await self.stop(number)

    def names(self) -> set[str]:
        """The settled members, as the leader has them; none while there is no leader, or a change."""
        for each in self.running.values():
            member = each.node.member if each.node is not None else None
            if member is not None and member.is_ready and not member.members.is_changing:
                return set(member.members.newest)
        return set()

    async def are(self, *numbers: int) -> None:
        """Waits until these are the members, and all of them know it."""

        def is_so() -> bool:
            members = [self.running[number] for number in numbers if number in self.running]
            names = {each.name for each in members}
            nodes = [each.node for each in members if each.node is not None]
            return (
                len(nodes) == len(numbers)
                and self.names() == names
                and all(set(node.member.members.newest) == names for node in nodes)
            )

        await until(is_so, SOON_S)

    @asynccontextmanager
    async def client(self, timeout_s: float = 10.0) -> AsyncIterator[QuorumMetastore]:
        opened = self._plugins.open_metastore(f"quorum:{','.join(self.peers)}/prod?timeout_s={timeout_s}")
        assert isinstance(opened, QuorumMetastore)
        try:
            yield opened
        finally:
            await opened.aclose()


@asynccontextmanager
async def members_of(directory: Path, transport: str = "memory") -> AsyncIterator[Members]:
    """Nobody runs at first."""
    async with trio.open_nursery() as nursery:
        members = Members(directory, nursery, transport)
        try:
            yield members
        finally:
            with trio.CancelScope(shield=True):
                await members.stop_all()
