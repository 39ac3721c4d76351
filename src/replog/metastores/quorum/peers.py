"""The ways from one member to the others: for messages of the machine, copies of the state, and what is said before all that.

Addresses come from the members' record, and from the messages of whom they are about: a member that was started elsewhere is
answered there, since the record can only change when it takes part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import trio

from replog.metastores.quorum.channels import Channels, LostError, NotSentError
from replog.metastores.quorum.copies import StateCopy, copy_payload, page_payload
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.node import Network
from replog.protocol.consensus.message_codec import encode_message
from replog.protocol.consensus.messages import Copy, Message

_SILENCE_S = 3.0  # after which a member is taken for gone


class Peers(Network):
    """Sends under one name and address, to the members of one cluster; `cluster` is "" while it belongs to none."""

    def __init__(self, name: str, address: str, channels: Channels) -> None:
        self.name = name
        self.address = address
        self.cluster = ""
        self._channels = channels
        self._addresses: dict[str, str] = {}  # by name, as the record says
        self._said: dict[str, str] = {}  # and as they say themselves, since the record has said so
        self._heard_at_s: dict[str, float] = {}
        self._copies = 0

    def address_of(self, name: str) -> str:
        """Where this name is; "" if that is unknown."""
        return self._said.get(name) or self._addresses.get(name, "")

    def know(self, addresses: Mapping[str, str]) -> None:
        """The record says where these names are."""
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                self._addresses[name] = address
                self._said.pop(name, None)

    def heard(self, name: str, address: str) -> None:
        """A message of this name has come; it says where it is."""
        self._heard_at_s[name] = trio.current_time()
        self._said[name] = address

    def silence_s(self, name: str) -> float:
        """How long ago a message of this name came last; this member itself is never silent."""
        if name == self.name:
            return 0.0
        return trio.current_time() - self._heard_at_s.get(name, -math.inf)

    def answers(self, name: str) -> bool:
        """True if this name was heard of lately, and its process has not ended as far as is known."""
        return self.silence_s(name) < _SILENCE_S and not (name != self.name and self.is_gone(name))

    def send(self, name: str, message: Message) -> None:
        """Sends a message of the machine, or loses it."""
        if address := self.address_of(name):
            self.say(address, FrameKind.MESSAGE, encode_message(message))

    async def send_copy(self, name: str, message: Copy, state: StateCopy) -> bool:
        """Sends the state in pages, one at a time, and the message behind it; or gives it up, and returns False."""
        address = self.address_of(name)
        if not address:
            return False
        channel = self._channels.to(address)
        self._copies += 1
        number = self._copies
        try:
            for place, page in enumerate(state.pages):
                await channel.deliver(self._frame(FrameKind.PAGE, page_payload(number, place, page)))
            payload = copy_payload(number, len(state.pages), encode_message(message))
            await channel.deliver(self._frame(FrameKind.COPY, payload))
        except (NotSentError, LostError):
            return False  # the leader notices that the follower lacks entries, and sends another copy
        return True

    def say(self, address: str, kind: FrameKind, payload: bytes = b"") -> None:
        """Sends a message to whoever is at this address, or loses it."""
        if address != self.address:
            self._channels.to(address).post(self._frame(kind, payload))

    def pass_on(self, name: str, frame: MemberFrame) -> None:
        """Sends another process's message to the member of this name, or loses it."""
        if address := self.address_of(name):
            self._channels.to(address).post(frame.encode())

    def is_gone(self, name: str) -> bool:
        """True if nobody listens any more where this name was, as far as is known."""
        address = self.address_of(name)
        return bool(address) and self._channels.to(address).is_gone()

    def problem_with(self, address: str) -> str:
        """Why this address can't be reached; "" if it can, as far as is known."""
        return self._channels.to(address).problem

    def _frame(self, kind: FrameKind, payload: bytes) -> bytes:
        return MemberFrame(kind, self.cluster, self.name, self.address, payload).encode()
