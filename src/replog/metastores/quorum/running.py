"""The life of a member in a process: it opens its directory, finds or founds its cluster, and takes part in it until it is left.

The process listens before: members need each other to begin. A member whose disk fails stops, and says so; the others go on,
and so does the process (B10).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from replog.abc import Authenticator
from replog.hookspecs import Event, MetastoreMemberStopped
from replog.metastores.quorum.admission import Admission
from replog.metastores.quorum.beginning import Beginning, answer
from replog.metastores.quorum.channels import Channels, OpenTransport
from replog.metastores.quorum.directory import MemberDirectory, named_errors, new_id
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.member_calls import MembersBeside
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.node import FAILURES, Node, Timing
from replog.metastores.quorum.peers import Peers
from replog.metastores.quorum.service import MemberService
from replog.metastores.quorum.status import status_of, survives
from replog.metastores.quorum.watch import Watch
from replog.runtime.disk_errors import described
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery
from replog.runtime.threads import run_in_thread

_log = logger("replog.metastores.quorum")

_LOOK_S = 0.1
_ROOM_S = 5.0  # how often a full disk is looked at


@attrs.frozen
class MemberConfig:
    """A member to run: where its files are, the address that others connect to, and those of all members. `observe` gets
    events of the metastore."""

    directory: Path
    address: str
    peers: tuple[str, ...]
    timing: Timing = attrs.field(factory=Timing)
    observe: Callable[[Event], None] = lambda _: None


class RunningMember:
    """A member of this process. `service` answers others, also before `begin`."""

    def __init__(
        self, config: MemberConfig, directory: MemberDirectory, channels: Channels, nursery: trio.Nursery
    ) -> None:
        self._peers = Peers(directory.name, config.address, channels)
        self.service = MemberService(self._peers, nursery)
        self.node: Node | None = None
        self.failure = ""  # why it has stopped
        self._config = config
        self._directory = directory
        self._nursery = nursery
        self._beside = MembersBeside(self.service, (config.address, *config.peers), channels)
        self.service.status = self.status

    @property
    def name(self) -> str:
        """The member's name (Q11)."""
        return self._directory.name

    def metastore(self, *, prefix: str = "", timeout_s: float = 10.0, lease_s: float = 10.0) -> QuorumMetastore:
        """The metastore that the members keep, for this process."""
        return QuorumMetastore(self._beside, prefix=prefix, timeout_s=timeout_s, lease_s=lease_s)

    def status(self) -> Mapping[str, Any]:
        """The state of this member, and of the others as it knows them."""
        return status_of(self.name, self._config.address, self._peers.cluster, self.node, self._peers, self.failure)

    def statistics(self) -> dict[str, float]:
        """Gauges of this member: whether it leads, its term, its committed index, whether it has stopped, and, of the leader,
        how many members may be lost."""
        node = self.node
        if node is None:
            return {}
        member = node.member
        found: dict[str, float] = {
            "metastore_leads": member.leading is not None,
            "metastore_term": member.term,
            "metastore_committed_index": member.commit,
            "metastore_stopped": bool(self.failure),
        }
        if (spare := survives(member, self._peers)) is not None:
            found["metastore_survives"] = spare
        return found

    async def begin(self) -> None:
        """Finds the cluster, or founds it with its peers, however long they take to come (Q16); then runs. Raises
        `MetastoreError` if its disk fails."""
        with named_errors(self._directory.path):
            store = self._directory.store
            cluster = await run_in_thread(lambda: store.cluster)
            if not cluster:
                beginning = Beginning(self._directory, self._config.peers, self._peers)
                self.service.outside = beginning.receive
                cluster = await beginning.run()
            self._peers.cluster = cluster
            node = self.node = Node(self.name, store, self._peers, self._config.timing)
        self._peers.know(node.member.members.addresses)
        election_s, peers = self._config.timing.election_s, self._config.peers
        self._admission = Admission(node, self._peers, silence_s=2 * election_s)
        self._watch = Watch(node, self._peers, self._admission, peers, election_s, self._config.observe, self._nursery)
        self.service.outside = self._outside
        self.service.administer = self._admission.administer
        self.service.node = node
        self._nursery.start_soon(self._run, node)
        self._nursery.start_soon(self._look_after_disk, node)

    async def led(self) -> None:
        """Waits until a member leads."""
        while True:
            if self.failure or self.node is None or self.node.member.leader is not None:
                return
            await trio.sleep(_LOOK_S)

    async def _run(self, node: Node) -> None:
        try:
            await node.run(self._watch.look)
        except* FAILURES as group:
            error = group.exceptions[0]
            reason = (described(error) if isinstance(error, Exception) else "") or repr(error)
            self.failure = reason
            _log.error("member %s of the metastore has stopped: %s; the others go on", self.name, reason)
            self._config.observe(MetastoreMemberStopped(self._config.address, reason))

    # -- others -------------------------------------------------------------------------------------------------------

    def _outside(self, frame: MemberFrame) -> None:
        """A message of a process that is no member, or of one that refuses this one."""
        node = self.node
        assert node is not None, "it runs"
        if frame.kind is FrameKind.REFUSED:
            self._watch.refusal = frame.payload.decode("utf-8", "replace")
        elif frame.kind is FrameKind.JOIN:
            if frame.cluster == self._peers.cluster:
                if frame.sender in node.member.members.names:
                    self._peers.heard(frame.sender, frame.address)
                self._ask_for(node, frame)
        else:
            addresses = list(node.member.members.addresses.values()) or list(self._config.peers)
            answer(frame, self._peers.cluster, addresses, self._peers)

    def _ask_for(self, node: Node, frame: MemberFrame) -> None:
        """A process asks to be let in: the leader decides. It may know some members only, and the leader is not among them."""
        leader = node.member.leader
        if leader is not None and leader != self.name:
            self._peers.pass_on(leader, frame)
        elif problem := self._admission.ask_in(frame.sender, frame.address):
            self._peers.say(frame.address, FrameKind.REFUSED, problem.encode())

    async def _look_after_disk(self, node: Node) -> None:
        """Says that the disk is full, and holds space back again once there is some (Q18)."""
        store, was_short = self._directory.store, False
        while node.failure is None:
            if store.is_short:
                if not was_short:
                    _log.error(
                        "%s: the disk is full: this member of the metastore takes only what needs no more of it: make room there",
                        self._config.directory,
                    )
                with contextlib.suppress(OSError):  # the next write tells
                    await run_in_thread(store.make_up)
            was_short = store.is_short
            await trio.sleep(_ROOM_S)


@asynccontextmanager
async def running_member(
    config: MemberConfig, open_transport: OpenTransport, authenticator: Authenticator | None
) -> AsyncIterator[RunningMember]:
    """A member of this process, whose directory is open; `begin` has it take part. Raises `MetastoreError`."""
    opened: list[MemberDirectory] = []
    with contextlib.ExitStack() as stack:
        await run_in_thread(lambda: opened.append(MemberDirectory(config.directory, new_id())))
        stack.callback(opened[0].close)
        async with open_service_nursery() as nursery:
            channels = Channels(open_transport, authenticator, nursery)
            yield RunningMember(config, opened[0], channels, nursery)
