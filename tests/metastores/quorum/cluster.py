"""Members in one trio run, each with a directory of its own, and a network between them that loses what it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.abc import Authenticator, Transport
from replog.errors import RemoteProtocolError
from replog.metastores.quorum.channels import Channels, NotSentError
from replog.metastores.quorum.copies import StateCopy
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.node import Network, Node, Timing
from replog.metastores.quorum.peers import Peers
from replog.metastores.quorum.service import MemberService
from replog.metastores.quorum.store import MemberStore
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base
from replog.protocol.consensus.messages import Copy, Message
from replog.protocol.messages import MetastorePurpose, Response, Status
from replog.registry import Registry

QUICK = Timing(heartbeat_s=0.1, election_s=0.6)
_QUEUE_MAX = 1000

Sent = tuple[str, Message, StateCopy | None]


def begin(directory: Path, names: tuple[str, ...]) -> None:
    """Writes what a member of a cluster of these has on its disk when the cluster begins."""
    directory.mkdir(parents=True, exist_ok=True)
    store = MemberStore(str(directory))
    store.put_cluster("c1", Base(1, 1, Membership((names,), {name: name for name in names})))
    store.close()


@attrs.define(eq=False)
class Place:
    """One member that runs, and how to stop it."""

    node: Node
    store: MemberStore
    service: MemberService
    arrived: trio.MemorySendChannel[Sent]
    scope: trio.CancelScope
    ended: trio.Event


class _Way(Network):
    """What one member sends by."""

    def __init__(self, cluster: QuorumCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def send(self, name: str, message: Message) -> None:
        self._cluster.carry(self._name, name, message, None)

    async def send_copy(self, name: str, message: Copy, state: StateCopy) -> bool:
        await trio.lowlevel.checkpoint()
        return self._cluster.carry(self._name, name, message, state)


class _Clients:
    """What clients ask by: a member's address is its name."""

    def __init__(self, cluster: QuorumCluster, names: tuple[str, ...]) -> None:
        self.addresses = names
        self._cluster = cluster

    def use(self, open_transport: Callable[[str], Transport], authenticator: Authenticator | None) -> None:
        """Nothing: it needs no transport."""

    async def ask(self, address: str, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        place = self._cluster.places.get(address)
        if place is None or place.node.failure is not None:
            await trio.lowlevel.checkpoint()
            raise NotSentError(f"{address} does not run")
        sent()
        try:
            return Response(0, Status.OK, body=await place.service.ask(purpose, body))
        except RemoteProtocolError as error:
            return Response(0, Status.BAD_REQUEST, detail=str(error))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class QuorumCluster:
    """The members by name; those that run are `places`."""

    def __init__(self, directory: Path, names: tuple[str, ...], nursery: trio.Nursery, timing: Timing) -> None:
        self.places: dict[str, Place] = {}
        self.blocked: set[tuple[str, str]] = set()
        self._names = names
        self._directory = directory
        self._nursery = nursery
        self._timing = timing

    def nodes(self) -> Mapping[str, Node]:
        return {name: place.node for name, place in self.places.items() if place.node.failure is None}

    def carry(self, sender: str, target: str, message: Message, state: StateCopy | None) -> bool:
        place = self.places.get(target)
        if place is None or (sender, target) in self.blocked:
            return False
        try:
            place.arrived.send_nowait((sender, message, state))
        except (trio.WouldBlock, trio.BrokenResourceError):
            return False  # it is lost
        return True

    def start(self, name: str) -> Node:
        store = MemberStore(str(self._directory / name))
        node = Node(name, store, _Way(self, name), self._timing)
        # A member's address is its name.
        peers = Peers(name, name, Channels(Registry().open_transport, None, self._nursery))
        peers.know({each: each for each in self._names})
        service = MemberService(peers, self._nursery)
        service.node = node
        arrived, arriving = trio.open_memory_channel[Sent](_QUEUE_MAX)
        place = self.places[name] = Place(node, store, service, arrived, trio.CancelScope(), trio.Event())
        self._nursery.start_soon(self._run, place, arriving)
        return node

    async def _run(self, place: Place, arriving: trio.MemoryReceiveChannel[Sent]) -> None:
        try:
            with place.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(place.node.run)
                    async for sender, message, state in arriving:
                        place.node.receive(sender, message, state)
        finally:  # also if it fails: `stop` waits for it
            place.store.close()
            place.ended.set()

    async def stop(self, name: str) -> None:
        """Stops it as a crash does: what is not on its disk is gone."""
        place = self.places.pop(name)
        place.scope.cancel()
        with trio.CancelScope(shield=True):
            await place.ended.wait()

    async def leader(self) -> Node:
        """Waits for one that is ready."""
        with trio.fail_after(30):
            while True:
                for node in self.nodes().values():
                    if node.member.is_ready:
                        return node
                await trio.sleep(0.01)

    @asynccontextmanager
    async def client(self, timeout_s: float = 10.0) -> AsyncIterator[QuorumMetastore]:
        metastore = QuorumMetastore(_Clients(self, self._names), prefix="prod", timeout_s=timeout_s)
        try:
            yield metastore
        finally:
            await metastore.aclose()


@asynccontextmanager
async def quorum_cluster(directory: Path, size: int = 3, timing: Timing = QUICK) -> AsyncIterator[QuorumCluster]:
    """A cluster of this size that has begun, and runs."""
    names = tuple(f"m{number}" for number in range(size))
    async with trio.open_nursery() as nursery:
        cluster = QuorumCluster(directory, names, nursery, timing)
        for name in names:
            begin(directory / name, names)
            cluster.start(name)
        try:
            yield cluster
        finally:
            for name in list(cluster.places):
                await cluster.stop(name)
