"""The conformance suite of senders: what sends a writer's entries to bookies, and says which are confirmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from replog.abc import Reply, Sender
from replog.api.contexts import client_context
from replog.client.driving import ClientContext
from replog.config import ClientOptions
from replog.errors import AddTimeoutError, FencedError, NotEnoughBookiesError
from replog.hookspecs import Event
from replog.metastores.memory import MemoryMetastore
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest, DigestType, ledger_key, ledger_key_check
from replog.protocol.messages import AddRequest, Request, Response, Status, WriteLastAddConfirmedRequest
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.proofs import claimed
from replog.protocol.quorum import Quorum
from replog.protocol.writing import LedgerWriting
from replog.records.bookies import BookieAddress, Endpoint, announcement_key, encode_address
from replog.registry import Registry
from replog.runtime.nursery import open_service_nursery
from replog.runtime.ticker import Ticker
from replog.testing.promises import plain_assertions, promise, soon
from replog.transports.memory import MemoryTransport

MakeSender = Callable[
    [LedgerWriting, bytes, ClientContext, ClientOptions, Callable[[Event], None], Ticker],
    Sender,
]

_LEDGER = 7
_LOOKS = 10  # turns of the event loop in which something would happen that happens too early
_MANY = 1000
_BATCHES_MAX = 4  # that many entries make which gathered while one batch was under way


async def check_sender(make_sender: MakeSender) -> None:
    """Check a sender; raise `AssertionError` with the first promise of `replog.abc.Sender` that it breaks.

    `BatchSender` itself is a `make_sender`. The bookies are in this process, and answer when a check says so; needs no pytest."""
    for check in _CHECKS:
        with plain_assertions(), soon("the exam ends"):
            await check(make_sender)


class _Bookie:
    """A request handler that keeps what it gets, and answers when it is told to."""

    def __init__(self) -> None:
        self.adds: list[tuple[AddRequest, Reply]] = []  # that came, answered or not
        self.published: list[WriteLastAddConfirmedRequest] = []
        self.came: Callable[[], None] = lambda: None  # called for each add
        self._answered = 0

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        for request in requests:
            if isinstance(request, AddRequest):
                self.adds.append((request, reply))
                self.came()
            else:
                promise(isinstance(request, WriteLastAddConfirmedRequest), "a sender sends what writers send")
                self.published += [request] if isinstance(request, WriteLastAddConfirmedRequest) else []
                reply([Response(request.request_id, Status.OK)])

    @property
    def batches(self) -> list[Batch]:
        return [request.batch for request, _ in self.adds]

    def answer(self, status: Status = Status.OK, *, times: int = 1, fence_term: int = 0) -> None:
        """Answers the first add that was not answered; so often."""
        request, reply = self.adds[self._answered]
        self._answered += 1
        for _ in range(times):
            reply([Response(request.request_id, status, fence_term=fence_term)])

    def answer_last(self) -> None:
        """Answers the last add, before those that came earlier."""
        request, reply = self.adds[-1]
        reply([Response(request.request_id, Status.OK)])

    def answer_all(self) -> None:
        while self._answered < len(self.adds):
            self.answer()


class _Metastore(MemoryMetastore):
    """Records change when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.gate.set()

    async def put(self, key: str, value: bytes, expected: int) -> int:
        await self.gate.wait()
        return await super().put(key, value, expected)


@attrs.define
class _Bench:
    """A sender, its bookies by name, and what it needs."""

    sender: Sender
    machine: LedgerWriting
    bookies: dict[str, _Bookie]
    listening: dict[str, AsyncExitStack]
    metastore: _Metastore
    context: ClientContext

    @property
    def ensemble(self) -> list[_Bookie]:
        return [self.bookies[each] for each in self.machine.ensemble()]

    def push(self, *entries: bytes) -> None:
        """As a writer pushes entries."""
        backlog = self.sender.backlog
        for entry in entries:
            backlog.gathered.append(entry)
            backlog.unconfirmed_bytes += len(entry)
            backlog.last_add_pushed += 1
        self.sender.drive()

    @property
    def confirmed(self) -> int:
        promise(
            self.sender.backlog.confirmed == self.machine.last_add_confirmed,
            "the machine knows of what is confirmed before anybody looks",
        )
        return self.sender.backlog.confirmed

    async def look(self) -> None:
        for _ in range(_LOOKS):
            await trio.lowlevel.checkpoint()

    async def record(self) -> LedgerMetadata:
        metadata, _ = await self.context.records.get(_LEDGER)
        return metadata


async def _until(condition: Callable[[], bool], contract: str) -> None:
    with soon(contract):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for it
            await trio.sleep(0.01)


@asynccontextmanager
async def _sending(
    make_sender: MakeSender, quorum: Quorum, *, spare: int = 0, options: ClientOptions | None = None
) -> AsyncIterator[_Bench]:
    """A sender for a new ledger on bookies that listen, `spare` of them not in its ensemble."""
    metastore, transport, chosen = _Metastore(), MemoryTransport(), options or ClientOptions()
    names = [f"bookie-{number}" for number in range(quorum.ensemble + spare)]
    bookies, listening = {name: _Bookie() for name in names}, {name: AsyncExitStack() for name in names}
    async with AsyncExitStack() as stack, open_service_nursery() as nursery:
        for name in names:
            each = await stack.enter_async_context(listening[name])
            address = await each.enter_async_context(transport.listen("", bookies[name], bookie_id=name))
            value = encode_address(BookieAddress((Endpoint("memory", address),)))
            await stack.enter_async_context(metastore.announce(announcement_key(name, read_only=False), value))
        registry = Registry(load_installed=False)
        context = await stack.enter_async_context(client_context(metastore, registry, chosen, "random", nursery))
        await context.connections.connect_all(names)
        key = ledger_key(_LEDGER, b"")
        fragment = Fragment(0, tuple(names[: quorum.ensemble]))
        metadata = LedgerMetadata(_LEDGER, quorum, DigestType.CRC32C, ledger_key_check(key), (fragment,), token="t")
        version, _ = await context.records.create(metadata)
        machine = LedgerWriting(metadata, version, Digest(DigestType.CRC32C, _LEDGER, b""), "nonce")
        ticker = Ticker(0.05)
        sender = make_sender(machine, key, context, chosen, lambda _event: None, ticker)
        nursery.start_soon(ticker.run)
        nursery.start_soon(context.turns.run)
        nursery.start_soon(sender.run)
        yield _Bench(sender, machine, bookies, listening, metastore, context)
        sender.closed.set()
        nursery.cancel_scope.cancel()


# -- confirming -----------------------------------------------------------------------------------------------------


async def _check_quorums(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 3, 2)) as bench:
        one, two, three = bench.ensemble
        bench.push(b"one", b"", b"three")
        backlog = bench.sender.backlog
        promise(not backlog.gathered, "with nothing under way, what has gathered is sent at once")
        promise((backlog.in_flight, backlog.in_flight_bytes) == (1, 8), "a batch that was sent is in flight")
        for each in bench.ensemble:
            promise(len(each.adds) == 1, "each bookie of the write set gets a batch once (W1)")
            request = each.adds[0][0]
            promise(request.batch.payloads() == [b"one", b"", b"three"], "a batch has the entries in order")
            promise(request.batch.data == one.batches[0].data, "each bookie gets the same bytes (W3)")
            named = (request.ledger_id, request.key, request.term, request.batch.stamp, request.batch.first_entry_id)
            promise(named == (_LEDGER, ledger_key(_LEDGER, b""), 1, 1, 0), "a request names its ledger, key and term")
        one.answer(times=2)
        promise(bench.confirmed == -1, "a bookie that answers twice is counted once (W2)")
        two.answer()
        promise(bench.confirmed == 2, "what an ack quorum has is confirmed (W2)")
        counted = (backlog.unconfirmed_bytes, backlog.in_flight, backlog.in_flight_bytes)
        promise(counted == (0, 0, 0), "what is confirmed is not in flight any more")
        three.answer()
        promise(bench.confirmed == 2, "the last copy changes nothing")
        bench.push(b"next")
        await _until(lambda: len(one.adds) == 2, "with nothing under way, what has gathered is sent soon")
        promise(one.batches[1].last_add_confirmed == 2, "a batch carries what is confirmed (W5)")
        sent = (bench.sender.batches_sent, bench.context.batches_sent)
        promise(sent == (2, 2), "batches are counted once for all bookies, in the context, too")


async def _check_prefixes(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 3, 2)) as bench:
        bench.push(b"small")
        bench.push(bytes(1000))
        await _until(lambda: len(bench.ensemble[0].adds) == 2, "a second batch may be under way")
        for each in bench.ensemble:
            each.answer_last()
        promise(bench.confirmed == -1, "an entry is confirmed only with all before it (W2)")
        for each in bench.ensemble[:2]:
            each.answer()
        promise(bench.confirmed == 1, "then everything is, whose quorum is there (W2)")


async def _check_gathering(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 3, 2)) as bench:
        bench.push(bytes(100))
        for number in range(_MANY):
            bench.push(bytes([number % 256]))
        while bench.sender.backlog.confirmed < _MANY:
            for each in bench.ensemble:
                each.answer_all()
            await bench.look()
        entries = [entry for batch in bench.ensemble[2].batches for entry in batch.payloads()]
        promise(
            entries == [bytes(100), *(bytes([number % 256]) for number in range(_MANY))],
            "every entry is sent, in order",
        )
        few = len(bench.ensemble[2].batches) <= _BATCHES_MAX
        promise(few, "what is pushed while a batch is under way gathers into the next")


async def _check_stripes(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 2, 2)) as bench:
        bench.push(*(bytes([number]) for number in range(30)))
        stored: dict[int, list[int]] = {}
        for index, bookie in enumerate(bench.ensemble):
            for batch in bookie.batches:
                for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True):
                    promise(payload == bytes([entry_id]), "an entry has the payload that was pushed under its id")
                    stored.setdefault(entry_id, []).append(index)
        write_sets = {number: sorted({number % 3, (number + 1) % 3}) for number in range(30)}
        promise(stored == write_sets, "each entry goes to its write set (W1)")
        bench.ensemble[0].answer_all()
        bench.ensemble[1].answer_all()
        promise(bench.confirmed < 29, "each entry needs a quorum of its own write set (W2)")
        bench.ensemble[2].answer_all()
        promise(bench.confirmed == 29, "then all are confirmed")


# -- fences and failures --------------------------------------------------------------------------------------------


async def _check_fenced(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 3, 2)) as bench:
        bench.push(b"entry")
        bench.ensemble[0].answer(Status.FENCED, fence_term=2)
        error = bench.sender.error
        promise(isinstance(error, FencedError), "a writer that is fenced fails with FencedError (W4)")
        is_named = isinstance(error, FencedError) and error.unconfirmed == range(1)
        promise(is_named, "the error says which entries have an unknown fate (W4)")
        promise(bench.sender.closed.is_set(), "a writer that has failed is closed")
        promise(bench.sender.backlog.bytes_max == -1, "a writer that has failed takes nothing more")
        bench.ensemble[1].answer()
        bench.ensemble[2].answer()
        promise(bench.confirmed == -1, "nothing is confirmed after a fence (W4)")


async def _check_a_change(make_sender: MakeSender, fail: Callable[[_Bench], Awaitable[None]]) -> None:
    """A bookie is replaced: `fail` makes the first of the ensemble fail."""
    async with _sending(make_sender, Quorum(3, 3, 2), spare=1) as bench:
        spare, (_, two, three) = bench.bookies["bookie-3"], bench.ensemble
        seen: list[tuple[str, ...]] = []
        spare.came = lambda: seen.append(bench.machine.metadata.last_fragment.ensemble)
        bench.push(b"entry")
        bench.metastore.gate = trio.Event()
        await fail(bench)
        two.answer()
        await bench.look()
        promise(bench.confirmed == -1, "a bookie that is being replaced counts for nothing (C6, C9)")
        three.answer()
        await _until(lambda: bench.confirmed == 0, "what the others have is confirmed while one is replaced (C9)")
        promise(not spare.adds, "a bookie gets nothing before the record names it (C3)")
        bench.metastore.gate.set()
        await _until(lambda: bool(spare.adds), "a new bookie gets what its fragment lacks there (C5, C9)")
        ensemble = (await bench.record()).last_fragment.ensemble
        promise(ensemble == ("bookie-3", "bookie-1", "bookie-2"), "the record names the new bookie, at its index (C2)")
        promise(seen[0] == ensemble, "it got nothing before that (C3)")
        promise(spare.batches[0].data == two.batches[0].data, "a batch keeps its bytes (W3)")
        await bench.sender.settle()
        bench.push(b"next")
        await _until(lambda: len(spare.adds) == 2, "what follows goes to the new ensemble")


async def _check_refused(make_sender: MakeSender) -> None:
    async def refuse(bench: _Bench) -> None:
        bench.ensemble[0].answer(Status.READ_ONLY)

    await _check_a_change(make_sender, refuse)


async def _check_lost(make_sender: MakeSender) -> None:
    async def lose(bench: _Bench) -> None:
        await bench.listening["bookie-0"].aclose()

    await _check_a_change(make_sender, lose)


async def _check_silence(make_sender: MakeSender) -> None:
    options = ClientOptions(add_timeout_s=0.1, add_quorum_timeout_s=0.2)
    async with _sending(make_sender, Quorum(3, 3, 2), options=options) as bench:
        bench.push(b"entry")
        bench.ensemble[0].answer()
        with soon("a writer whose entries are not confirmed in time fails (W6)"):
            await bench.sender.closed.wait()
        error = bench.sender.error
        # Which of both depends on whether the last bookie was given up before the entry's own time was over.
        is_named = isinstance(error, AddTimeoutError | NotEnoughBookiesError) and error.unconfirmed == range(1)
        promise(is_named, f"it fails with an error that names the entries, not {error!r} (W6)")


# -- ending -----------------------------------------------------------------------------------------------------------


async def _check_leaving(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 3, 2)) as bench:
        bench.sender.date(1_000)
        bench.push(b"entry")
        promise(bench.ensemble[0].batches[0].timestamp_ns == 1_000, "a batch has the time that was given")
        for each in bench.ensemble:
            each.answer()
        await bench.sender.leave_open(5.0, is_fixed=False)
        promise(bench.sender.closed.is_set(), "a writer that left is closed")
        for each in bench.ensemble:
            known = [claimed(request.proof) for request in each.published]
            promise(known and known[-1] == 0, "bookies are told what no batch carries (W5)")
        promise((await bench.record()).state is LedgerState.OPEN, "the ledger stays open")


async def _check_closing(make_sender: MakeSender) -> None:
    async with _sending(make_sender, Quorum(3, 3, 2)) as bench:
        bench.push(b"confirmed")
        for each in bench.ensemble:
            each.answer()
        bench.push(b"not confirmed")
        bench.machine.close()
        bench.sender.drive()
        with soon("a ledger is closed when its machine says so"):
            await bench.sender.closed.wait()
        record = await bench.record()
        is_cut = record.state is LedgerState.CLOSED and record.last_entry_id == 0
        promise(is_cut, "a ledger is closed at what is confirmed (R1)")


_CHECKS: Sequence[Callable[[MakeSender], Awaitable[None]]] = (
    _check_quorums,
    _check_prefixes,
    _check_gathering,
    _check_stripes,
    _check_fenced,
    _check_refused,
    _check_lost,
    _check_silence,
    _check_leaving,
    _check_closing,
)
