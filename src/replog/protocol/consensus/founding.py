"""How a cluster begins, once (Q16): what a process without a cluster says to its peers, and what members answer.

The first of the peers, by the order of their addresses, offers a new cluster to all others. A peer that has no cluster and the
same list promises to take part, under its name, which makes it a member of that cluster once all have promised. A peer that has a
cluster says so instead: then there is nothing to begin, and the process joins that one.

Invariants:

- A cluster begins only when every peer of the list has promised, to this very offer, that it has no cluster. So disks that were
  wiped never begin a second one beside members that still have the first.
- Each run of a founder makes an offer of its own, for which no other run counts promises. So an offer need not be durable.
- A promise is durable before it is given, and binds a name: a process that has promised it to one cluster, and in the end belongs
  to another, does so under a new name. So a promise that is out of date counts for a name that nobody has.
- A process that has a cluster promises nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.groups import Membership

Peers = tuple[str, ...]


@attrs.frozen
class Look:
    """Do you have a cluster?"""

    peers: Peers


@attrs.frozen
class Fresh:
    """I have none, and this list of peers."""

    peers: Peers


@attrs.frozen
class Belongs:
    """I have one: these are its members' addresses."""

    cluster: str
    addresses: Peers


@attrs.frozen
class Offer:
    """Take part in a new cluster of these peers."""

    cluster: str
    peers: Peers


@attrs.frozen
class Promised:
    """I have no cluster, the same list, and take part."""

    cluster: str


FoundingMessage = Look | Fresh | Belongs | Offer | Promised
_KINDS: dict[str, type[FoundingMessage]] = {each.__name__: each for each in (Look, Fresh, Belongs, Offer, Promised)}


@attrs.frozen
class Began:
    """The cluster has begun, with these members: the founder writes that, and is one of them."""

    cluster: str
    members: Membership


@attrs.frozen
class Joins:
    """A peer has a cluster: this process belongs to it, and asks to be let in if its name is no member's. Unless it `keeps_name`,
    it has promised its name to another one, and takes a new one."""

    cluster: str
    addresses: Peers
    keeps_name: bool


class Founding:
    """One process without a cluster, at this address, under this name. `peers` are sorted, and it is one of them. `offers` are
    the clusters to which it has promised its name. `new_cluster` is a random id, for its own offer.

    What is in `sent` is to be sent. When `offers` has changed, the shell makes it durable, and calls `written`."""

    def __init__(self, address: str, name: str, peers: Peers, offers: Sequence[str], new_cluster: str) -> None:
        assert address in peers, "a process is one of its peers"
        self.sent: list[tuple[str, FoundingMessage]] = []
        self.result: Began | Joins | None = None
        self._address = address
        self._peers = peers
        self._new_cluster = new_cluster
        self._names = {address: name}  # of those that have promised to take part in this one's offer, by address
        self.offers = tuple(offers)
        self._promises: list[tuple[str, Promised]] = []  # that wait until they are durable
        self._problems = dict.fromkeys(self._others, "no answer yet")

    @property
    def _others(self) -> Sequence[str]:
        return [each for each in self._peers if each != self._address]

    @property
    def _is_founder(self) -> bool:
        return self._address == self._peers[0]

    def missing(self) -> Mapping[str, str]:
        """Why each address keeps the cluster from beginning, for people."""
        return self._problems

    def tick(self) -> None:
        """Asks all others again. Called at once, and then now and then."""
        if self.result is not None:
            return
        if not self._is_founder:
            self.sent += [(each, Look(self._peers)) for each in self._others]
            return
        offer = Offer(self._new_cluster, self._peers)
        self.sent += [(each, offer) for each in self._others if each not in self._names]
        self._try_to_begin()

    def receive(self, address: str, name: str, message: FoundingMessage) -> None:
        """A message of the process at this address, which has this name."""
        if self.result is not None:
            return
        match message:
            case Look():
                self._compare(address, message.peers)
                self.sent.append((address, Fresh(self._peers)))
            case Fresh():
                self._compare(address, message.peers)
            case Belongs():
                keeps_name = message.cluster in self.offers or not self.offers
                self.result = Joins(message.cluster, message.addresses, keeps_name)
            case Offer():
                self._offered(address, message)
            case Promised():
                self._promised(address, name, message)

    def _compare(self, address: str, peers: Peers) -> None:
        if address not in self._others:
            return
        if peers != self._peers:
            self._problems[address] = f"it has another list of peers: {', '.join(peers)}"
        elif not self._is_founder:
            self._problems.pop(address, None)  # a founder counts promises instead

    def _offered(self, address: str, message: Offer) -> None:
        self._compare(address, message.peers)
        is_right = message.peers == self._peers and address == self._peers[0]
        if not is_right:
            self.sent.append((address, Fresh(self._peers)))
            return
        if message.cluster not in self.offers:
            self.offers = (*self.offers, message.cluster)
        self._promises.append((address, Promised(message.cluster)))

    def written(self, offers: Sequence[str]) -> None:
        """These offers are durable, as the ones to which it has promised its name."""
        self.sent += [each for each in self._promises if each[1].cluster in offers]
        self._promises = [each for each in self._promises if each[1].cluster not in offers]

    def _promised(self, address: str, name: str, message: Promised) -> None:
        if message.cluster != self._new_cluster or address not in self._others:
            return
        self._problems.pop(address, None)
        self._names.pop(address, None)
        for other, known in self._names.items():
            if known == name:
                self._problems[address] = (
                    f"it has the name of {other}: one of the two directories is a copy of the other"
                )
                return
        self._names[address] = name
        self._try_to_begin()

    def _try_to_begin(self) -> None:
        if self._is_founder and len(self._names) == len(self._peers):
            addresses = {self._names[each]: each for each in self._peers}
            self.result = Began(self._new_cluster, Membership((tuple(addresses),), addresses))


def answer_of_member(cluster: str, addresses: Sequence[str], message: FoundingMessage) -> FoundingMessage | None:
    """What a process says that has a cluster: never a promise."""
    return Belongs(cluster, tuple(addresses)) if isinstance(message, Look | Offer) else None


def encode_founding(message: FoundingMessage) -> bytes:
    """As JSON."""
    return json.dumps({"kind": type(message).__name__, **attrs.asdict(message)}).encode()


def decode_founding(data: bytes) -> FoundingMessage:
    """Raises `RemoteProtocolError`."""
    try:
        facts: dict[str, Any] = dict(json.loads(data))
        kind = _KINDS[facts.pop("kind")]
        fields = {
            name: str(value) if name == "cluster" else tuple(str(each) for each in list(value))
            for name, value in facts.items()
        }
        return kind(**fields)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RemoteProtocolError(f"{len(data)} bytes are no message of a cluster that begins: {error}") from error
