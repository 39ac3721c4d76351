"""What a member looks at beside the machine, at each heartbeat: whether its leader's process has gone, what observers are to
hear, whether it belongs to the cluster, and whether a leader is missing for long.

All of that in one task, since waking up is what an idle member costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import trio

from replog.hookspecs import Event, MetastoreLeaderChanged, MetastoreMembersChanged
from replog.metastores.quorum.admission import Admission
from replog.metastores.quorum.frames import FrameKind
from replog.metastores.quorum.node import Node
from replog.metastores.quorum.peers import Peers
from replog.protocol.consensus.member import Member
from replog.runtime.entropy import current_entropy
from replog.runtime.loggers import logger

_log = logger("replog.metastores.quorum")

_ASK_AGAIN_S = 0.5  # to be let in
_SAY_S = 10.0  # after which it says why it waits
_STAND_S = 0.2  # within which it stands once its leader has gone; later and later if it is not elected


class Watch:
    """The looks of one member. `first_peers` are the addresses that it was started with."""

    def __init__(
        self,
        node: Node,
        peers: Peers,
        admission: Admission,
        first_peers: tuple[str, ...],
        stand_s_max: float,
        observe: Callable[[Event], None],
        nursery: trio.Nursery,
    ) -> None:
        self.refusal = ""  # why it is not let in, as the leader says
        self._node = node
        self._peers = peers
        self._admission = admission
        self._first_peers = first_peers
        self._observe = observe
        self._told: dict[type, Event] = {}
        self._nursery = nursery
        self._led_by = ""
        self._is_standing = False
        self._stand_s, self._stand_s_max = _STAND_S, stand_s_max
        self._asked_at_s = -math.inf
        self._outside_since_s = self._led_at_s = trio.current_time()
        self._say_s = _SAY_S

    def look(self) -> None:
        """Looks at everything once. Never waits."""
        now_s = trio.current_time()
        self._replace_leader()
        self._tell()
        if now_s - self._asked_at_s >= _ASK_AGAIN_S:
            self._asked_at_s = now_s
            self._ask_in(now_s)
        self._say_who_is_missing(now_s)

    def _replace_leader(self) -> None:
        """Has this member stand soon after its leader's process has ended, rather than after the silence."""
        self._led_by = self._node.member.leader or self._led_by
        if self._led_by in ("", self._node.name) or not self._peers.is_gone(self._led_by):
            self._stand_s = _STAND_S
        elif not self._is_standing:
            self._is_standing = True
            self._nursery.start_soon(self._stand, self._led_by)

    async def _stand(self, leader: str) -> None:
        # Not at once, and later and later: so two members seldom stand at one moment, and seldom again.
        await trio.sleep(self._stand_s * current_entropy().random.random())
        self._stand_s = min(2 * self._stand_s, self._stand_s_max)
        self._is_standing = False
        self._node.do(partial(Member.leader_is_gone, name=leader))

    def _tell(self) -> None:
        """Has observers hear of leaders and members."""
        for event in self._events():
            if self._told.get(type(event)) != event:
                self._told[type(event)] = event
                self._observe(event)

    def _events(self) -> Iterator[Event]:
        member = self._node.member
        if addresses := tuple(sorted(member.members.addresses.values())):
            yield MetastoreMembersChanged(addresses)
        leader = (
            self._peers.address if member.leader == self._node.name else self._peers.address_of(member.leader or "")
        )
        yield MetastoreLeaderChanged(leader, member.term)

    def _ask_in(self, now_s: float) -> None:
        """Asks to be let in while it is no member, and keeps the addresses of the others. A member that knows no leader says
        where it is, too: all may have been started at new addresses."""
        member = self._node.member
        addresses = member.members.addresses
        self._peers.know(addresses)
        self._admission.follow_moved()
        is_member = self._node.name in member.members.names
        if not is_member or member.leader is None:
            for address in dict.fromkeys((*addresses.values(), *self._first_peers)):
                self._peers.say(address, FrameKind.JOIN)
        if is_member and member.leader is not None:
            self.refusal = ""  # it was let in
        if is_member and not self.refusal:
            self._outside_since_s = now_s
        elif now_s - self._outside_since_s > _SAY_S:
            self._outside_since_s = now_s
            # The leader's record is newer than its own: it was let go while it did not run.
            when = "any more" if is_member else "yet"
            _log.warning("not a member of the metastore %s: %s", when, self.refusal or self._who_is_missing())

    def _say_who_is_missing(self, now_s: float) -> None:
        """Says that no member leads, and who does not answer, less and less often; and that one leads again."""
        if self._node.member.leader is not None:
            if self._say_s > _SAY_S:  # it was said
                _log.warning("the metastore has a leader again")
            self._led_at_s, self._say_s = now_s, _SAY_S
        elif self.refusal or self._node.name not in self._node.member.members.names:
            return  # what it is told when it asks to be let in is said instead
        elif now_s - self._led_at_s > self._say_s:
            _log.warning("the metastore has no leader for %.0f s: %s", now_s - self._led_at_s, self._who_is_missing())
            self._say_s *= 2

    def _who_is_missing(self) -> str:
        addresses = self._node.member.members.addresses.values() or self._first_peers
        others = [each for each in addresses if each != self._peers.address]
        return ", ".join(f"{each}: {self._peers.problem_with(each) or 'no answer yet'}" for each in others)
