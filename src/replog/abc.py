"""The seams: what a storage, a transport, a metastore and a placement policy promise.

Each seam is small, and each ships its exam in `replog.testing`: what passes `check_storage`, `check_metastore` or
`check_transport` may be trusted with a log. Doubt raises; only "proven absent" may answer with nothing.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Protocol

import attrs
import trio

from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreCorruptError, MetastoreError, ReplogError
from replog.protocol.batch import Batch
from replog.protocol.messages import Request, Response, Status
from replog.protocol.model import LedgerMetadata
from replog.protocol.mutations import DropLedger as DropLedger
from replog.protocol.mutations import Marks as Marks
from replog.protocol.mutations import Mutation as Mutation
from replog.protocol.mutations import PutBatch as PutBatch
from replog.protocol.mutations import SetMarks as SetMarks
from replog.protocol.proofs import better_proof as better_proof
from replog.protocol.quorum import Quorum
from replog.runtime.keys import Versioned as Versioned
from replog.runtime.keys import check_key as check_key
from replog.runtime.keys import check_value as check_value
from replog.runtime.leases import Leases
from replog.runtime.nursery import open_service_nursery as open_service_nursery

# -- storage ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Damage:
    """A stored batch that can't be read: its identities (T3), and where and how it is damaged, for people."""

    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    description: str


UNBOUNDED = (1 << 63) - 1  # above every ledger id: a doubt that concerns every ledger, until `bound_doubt`


@attrs.frozen
class Doubt:
    """What a storage cannot vouch for (B8): every ledger with a lower id than these.

    `doubted_below`: the storage cannot prove that it still has all that it made durable. `lost_below`: it knows that it
    has not. `lost_below <= doubted_below`. `reasons` name files and offsets, for people."""

    doubted_below: int = 0
    lost_below: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def is_unbounded(self) -> bool:
        """True while nobody has told the storage which ledgers existed before it was opened."""
        return self.doubted_below == UNBOUNDED

    def denial(self, ledger_id: int) -> Status:
        """What "no such entry" of this ledger is worth here (R10)."""
        if ledger_id >= self.doubted_below:
            return Status.NO_ENTRY
        return Status.NO_ENTRY_AFTER_LOSS if ledger_id < self.lost_below else Status.NO_ENTRY_IN_DOUBT


class Storage(ABC):
    """Where one bookie keeps its ledgers. Synchronous: the bookie owns the threads.

    `commit` is called by one thread at a time; everything else may be called by any thread at any time, also during a
    commit. After `StorageFailedError` every call but `close` raises it again: a failed sync is fatal (B1).
    A new storage holds an identity of its own, kept for ever (B4).
    """

    __slots__ = ()

    @property
    @abstractmethod
    def bookie_id(self) -> str:
        """The random identity made at format (B4)."""

    @abstractmethod
    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Makes all of these durable, in this order, before it returns: they survive power loss (B1).

        Raises `StorageFullError` if there is no space: then none of them happened, and reads and further commits go on.
        Raises `StorageFailedError` if a write or a sync failed: then each of them may or may not have happened, and
        the storage has stopped. A reader sees a mutation only when it is durable."""

    @abstractmethod
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batch of this stamp that holds the entry, and then those of the same stamp that start after it, in order
        of their first ids, while their bytes fit into `bytes_max` (the first one always does).

        Empty only if the entry is proven absent here. Raises `StorageUncertainError` if it may be there but can't be
        read. Every batch returned was checked against damage."""

    @abstractmethod
    def marks(self, ledger_id: int) -> Marks | None:
        """The durable marks of a ledger, or None if this storage proves that it never saw it."""

    @abstractmethod
    def ledger_ids(self) -> list[int]:
        """All ledgers of which anything is known, in ascending order: a snapshot."""

    @abstractmethod
    def close(self) -> None:
        """Gives up files and locks. Idempotent. What was committed stays."""

    @property
    def place(self) -> str:
        """Where it keeps its ledgers, for people: a directory; "" if there is nothing to say."""
        return ""

    @property
    def is_instant(self) -> bool:
        """Whether nothing here ever waits for a disk: then a bookie needs no threads, and calls from its event loop."""
        return False

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """As `read`, but raises `trio.WouldBlock` rather than wait for a disk."""
        raise trio.WouldBlock

    def free_bytes(self) -> int | None:
        """How many bytes the disk still takes, or None if nothing is known to limit it. May look at the disk, never waits
        for a commit. The bookie stops taking new entries while this is low (B5)."""
        return None

    def compact(self, *, is_major: bool = False) -> None:  # noqa: B027 - a default, not an oversight
        """Gives back space that nothing needs now, rather than when the storage's own schedule says; minor: where most of
        it is gained (B6). Blocks until done, for as long as it takes; commits and reads go on meanwhile.

        What can be read stays the same throughout, also after a crash at any moment. Returns early if the storage is
        closed meanwhile. Raises `StorageFullError` if there is no room to work: nothing is lost then;
        `StorageFailedError`."""

    def scrub(self) -> None:  # noqa: B027 - a default, not an oversight
        """Reads all that is stored and checks it against damage now, rather than when the storage's own schedule says;
        what it finds is in `damage`. Blocks until done; commits and reads go on meanwhile. Returns early if the storage
        is closed meanwhile. Raises `StorageFailedError`."""

    def damage(self) -> Sequence[Damage]:
        """The damaged batches known of, and not yet stored again: reads of them raise `StorageUncertainError` (R4)."""
        return ()

    def lock_name(self) -> str | None:
        """Names the lock that keeps every other process from opening this storage, on this machine since it was booted; a
        copy of the storage has another one. Whoever finds a bookie announced under the lock that it holds itself has
        proof that the former process is gone (B4). None if there is no such lock."""
        return None

    def doubt(self) -> Doubt:
        """What this storage cannot vouch for; kept durably across restarts, and known when it is opened (B8)."""
        return Doubt()

    def bound_doubt(self, below_ledger_id: int) -> None:  # noqa: B027 - a default, not an oversight
        """Ledgers with this id or a higher one did not exist before this storage was opened: lowers, durably, whichever of
        the two bounds of `doubt` is `UNBOUNDED` to this id. Blocks for a sync. Raises `StorageFullError` (the doubt stays as
        it was), `StorageFailedError`."""

    def statistics(self) -> Mapping[str, float]:
        """Counters and gauges, by names with units, for people and metrics."""
        return {}


# -- transport ----------------------------------------------------------------------------------------------------


class ResponseReceiver(Protocol):
    """The client's end of a connection. Called in the trio thread, never reentrantly from `send`'s caller's own frame
    unless the transport says so; must not block and must not raise."""

    def responses_received(self, responses: Sequence[Response]) -> None:
        """Answers came, in whatever order."""

    def disconnected(self, error: ReplogError) -> None:
        """The connection is gone; what was not answered never will be. Called once, and nothing after it."""


class Connection(ABC):
    """One client's way to one bookie. Requests are handled in the order in which they were sent, but reads that have to wait
    for room may be overtaken by everything but reads (B9). Answers may overtake."""

    __slots__ = ()

    @property
    def shares_thread(self) -> bool:
        """Whether the bookie runs in the thread that sends: whatever it does at once, the sender waits for."""
        return False

    @abstractmethod
    def send(self, requests: Sequence[Request]) -> None:
        """Queues requests; never waits. Raises `BookieUnreachableError` if the connection is gone, `BookieTooBusyError`
        if the bytes that wait exceed the connection's bound: then none of these was sent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the connection. Idempotent. Requests without an answer have an unknown outcome."""


Reply = Callable[[Sequence[Response]], None]


class Role(enum.Enum):
    """What somebody who proved who they are may do."""

    CLIENT = "client"  # write, read, recover; each ledger's password is asked for besides (B7)
    ADMIN = "admin"  # also ask a bookie to collect garbage, compact, scrub


@attrs.frozen
class Peer:
    """What a bookie's transport knows of who connects, before it is proven who they are. `address` is for people;
    `certificate_names` are the names in a client certificate that TLS has verified, () if there is none."""

    address: str
    is_local: bool = False  # on the same machine
    certificate_names: tuple[str, ...] = ()


@attrs.frozen
class Identity:
    """Who connected, once that is proven."""

    name: str
    roles: frozenset[Role]


class Authenticator(ABC):
    """Proves to a bookie who a client is, and to the client who the bookie is: one round of challenge, response, proof.

    One object serves for both sides, and for any number of connections at a time; it keeps nothing between two calls. All
    are called in the trio thread: they must not block. `session` is a digest of all that was said before and of the TLS
    session: different for each connection, and the same at both of its ends. What is signed must cover it, then nothing
    that was recorded can be used again, nor passed on by somebody in between.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """The name of the mechanism; client and bookie must use the same one."""

    @property
    def needs_certificates(self) -> bool:
        """Whether this works only where TLS has verified both sides' certificates: a transport refuses to begin without."""
        return False

    def challenge(self) -> bytes:
        """What a bookie asks with, if the session alone is not enough."""
        return b""

    @abstractmethod
    def respond(self, challenge: bytes, session: bytes) -> bytes:
        """The client's answer. Raises `AuthenticationError`."""

    @abstractmethod
    def verify(self, peer: Peer, challenge: bytes, response: bytes, session: bytes) -> tuple[Identity, bytes]:
        """The bookie's judgement: who that is, and the proof of who the bookie is. Raises `AuthenticationError`; its text is
        told to the peer, and must help nobody who guesses."""

    @abstractmethod
    def confirm(self, response: bytes, proof: bytes, session: bytes) -> None:
        """The client's judgement of the bookie's proof. Raises `AuthenticationError`."""


class RequestHandler(Protocol):
    """The bookie's end: what a transport gives requests to."""

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Takes requests, never waits, and calls `reply` from the trio thread when answers are there: once or
        several times, in any order, also before it returns. `reply` is one and the same object for a connection."""


class Transport(ABC):
    """Ways to bookies. `address` is what a listener returned: text without the scheme."""

    __slots__ = ()

    @abstractmethod
    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        """Connects; tasks that the connection needs run in `nursery`. Raises `BookieUnreachableError`, also if who listens is
        not the bookie `bookie_id` ("": whoever it is), or can't be agreed with on who both are. If cancelled, nothing
        stays open."""

    @abstractmethod
    def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AbstractAsyncContextManager[str]:
        """Serves while the context is open, and gives the address to connect to. Everybody is told that this is the bookie
        `bookie_id`; nobody's requests are handled before they have proven who they are, unless that is None.

        Leaving it takes no new requests, sends what is answered in a short while, and ends all its connections."""

    def statistics(self) -> Mapping[str, float]:
        """Counters and gauges of all that listens through this object, by names with units, for people and metrics."""
        return {}


# -- metastore ----------------------------------------------------------------------------------------------------


class Metastore(ABC):
    """A map with CAS. Keys are words joined by "/", like "ledgers/00/0000/0001"; a key may have both a value and children.

    Every call has a deadline of its own and ends in a named error; only the waits last as long as they must, also while the
    store can't be reached. A change that was sent but not answered raises `MetastoreUncertainError` (M1): only reading back
    tells. A cancelled change has an unknown outcome. Reads are linearizable: a `get` sees every change that was answered
    before it began. Value limit: at least 512 KiB; `check_key` and `check_value` refuse what some store could not take.

    Versions of a key may repeat when it was deleted and created anew: so who changes a key by CAS never does that to it.
    """

    lease_s: float = 10.0
    """How long somebody counts as alive who has not been heard of. For `announce` and `elect` as they are made here."""

    @abstractmethod
    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""

    @abstractmethod
    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""

    @abstractmethod
    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value if the version is as expected, and returns the new version.
        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""

    @abstractmethod
    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key, if it has the expected version (None: any).
        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""

    @abstractmethod
    async def children(self, key: str) -> list[str]:
        """The words that follow `key + "/"` in existing keys, each once, sorted; [] if there are none. May name a word for a
        short while below which nothing is left."""

    async def aclose(self) -> None:  # noqa: B027 - a default, not an oversight
        """Gives up connections and files. Idempotent."""

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns soon after the key has another version than this (None: after it exists). May return early."""
        await self._poll(lambda: self._version(key), version)

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns soon after the children differ from these. May return early."""
        await self._poll(lambda: self.children(key), list(known))

    async def _poll(self, look: Callable[[], Awaitable[object]], known: object) -> None:
        while True:
            try:
                if await look() != known:
                    return
            except MetastoreCorruptError:
                raise
            except MetastoreError:
                pass  # a wait goes on while the store can't be reached
            await trio.sleep(_POLL_S)

    async def _version(self, key: str) -> int | None:
        try:
            return (await self.get(key)).version
        except KeyNotFoundError:
            return None

    async def values(self, key: str) -> dict[str, Versioned]:
        """What stands right below this key, by its last word. As many reads, not one: each value is one that was there."""
        found = {}
        for word in await self.children(key):
            with suppress(KeyNotFoundError):  # it only has something below, or left between the two calls
                found[word] = await self.get(f"{key}/{word}")
        return found

    # -- who is alive: advice, never safety (M3) ------------------------------------------------------------------

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Keeps the key in existence while the context is open and this process lives; it vanishes soon after, or, if the
        process dies, when `announced` or `announce` notice. Raises `KeyExistsError` if somebody else announces it, or it is
        there anyhow; `MetastoreError`. What `get` tells of it is the store's own: ask `announced`.

        Made of `put`, a few times per `lease_s`: override it where the store itself knows who is alive."""
        async with self._leases.announce(key, value):
            yield

    async def announced(self, key: str) -> dict[str, bytes]:
        """What is announced right below this key by those who live, by its last word: no other keys."""
        return await self._leases.announced(key)

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        """Waits until nobody else is elected there, and is while the context is open and this process lives. `candidate` says
        who it is, to people. Raises `MetastoreError` if the store can't be reached at first; waits on if that happens
        later. Nothing tells that an election was lost: safe is only what a fence guards (M3). The key is used for nothing
        else; what stands at it or below it is the store's own."""
        async with AsyncExitStack() as stack:
            is_first = True
            while not await self._try_to_be_elected(stack, key, candidate, is_first):
                is_first = False
                with trio.move_on_after(self.lease_s / 4):
                    version = await self._version_or_none(key)
                    if version is None:
                        await trio.sleep(_POLL_S)
                    else:
                        await self.wait_changed(key, version)
            yield

    async def _try_to_be_elected(self, stack: AsyncExitStack, key: str, candidate: bytes, is_first: bool) -> bool:
        try:
            await stack.enter_async_context(self.announce(key, candidate))
        except KeyExistsError:
            return False
        except MetastoreCorruptError:
            raise
        except MetastoreError:
            if is_first:
                raise
            return False
        return True

    async def _version_or_none(self, key: str) -> int | None:
        try:
            return await self._version(key)
        except MetastoreCorruptError:
            raise
        except MetastoreError:
            return None

    @property
    def _leases(self) -> Leases:
        leases: Leases = self.__dict__.setdefault("_leases", Leases(self, self.lease_s))
        return leases


_POLL_S = 0.05


# -- placement ----------------------------------------------------------------------------------------------------


class Random(Protocol):
    """The part of `random.Random` that placement may use: randomness is passed in."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def shuffle(self, x: list[str]) -> None:
        """Shuffles in place."""


class PlacementPolicy(ABC):
    """Which bookies store what. Pure: no I/O, no state, randomness passed in.

    Availability comes before what a policy wishes (C8). The client passes bookies that are there; only if they are fewer than
    an ensemble, it passes exactly as many as the ensemble has, some of which are away, and may then change the order of the
    indices so that every write set keeps enough that are there (C7)."""

    __slots__ = ()

    @abstractmethod
    def choose_ensemble(self, quorum: Quorum, usable: Sequence[str], random: Random) -> tuple[str, ...]:
        """E distinct bookies for a new ledger. Raises `NotEnoughBookiesError`: then none is created, even if there are E
        usable ones. So a policy can insist on what it wishes, and give up availability for it."""

    @abstractmethod
    def replace_bookies(
        self, metadata: LedgerMetadata, failed: Sequence[int], usable: Sequence[str], random: Random
    ) -> dict[int, str]:
        """Bookies for as many of these failed indices of the last ensemble as can be had: by index, distinct, and not
        in the ensemble already (C2). {} if there are none."""

    @abstractmethod
    def read_order(self, write_set: Sequence[int], random: Random) -> list[int]:
        """These indices in the order in which a reader should ask them."""
