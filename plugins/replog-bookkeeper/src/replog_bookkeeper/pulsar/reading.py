"""Reading a topic: its ledgers one after the other, from bookies alone, and without fencing the broker that writes it.

In memory are a batch of entries as bookies send them, one entry of it expanded, and the chunks of messages that are not complete,
which `message_bytes_max` bounds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Self

from replog.config import check_number
from replog.errors import EntryNotFoundError, LedgerError, ReplogError
from replog_bookkeeper.client import Client
from replog_bookkeeper.pulsar.errors import ChunksMissingError, MessageTooLargeError
from replog_bookkeeper.pulsar.messages import Marker, Message, Piece, Unreadable, joined, take_apart
from replog_bookkeeper.pulsar.names import TopicName
from replog_bookkeeper.pulsar.topics import Topic, TopicLedger, describe_topic

MESSAGE_BYTES_MAX = 64 << 20
_FAILURES_MAX = 3  # entries in a row, after which the rest of their fragment is taken for lost
Found = Message | Unreadable


class TopicReader:
    """An async iterator over the messages of a topic, and over what could not be read of it, in their order."""

    def __init__(self, client: Client, topic: Topic, password: bytes, message_bytes_max: int) -> None:
        self.topic = topic  #: The topic and its ledgers, as they were when it was opened.
        #: Transactions found to be aborted so far: their messages don't count.
        self.aborted: set[tuple[int, int]] = set()
        self._client = client
        self._password = password
        self._message_bytes_max = message_bytes_max
        self._pieces = Pieces(message_bytes_max)
        self._groups = self._read()
        self._found: Iterator[Found] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Found:
        while True:
            for found in self._found:
                return found
            group = await self.receive_batch()
            if group is None:
                raise StopAsyncIteration
            self._found = iter(group)

    async def receive_batch(self) -> list[Found] | None:
        """The messages of the next entry, or a part that could not be read; None at the end.

        Raises `MetastoreError`, and nothing for what is damaged, missing or offloaded. After an error, or if it is cancelled, the
        reader is at its end: read the topic again."""
        return await anext(self._groups, None)

    async def aclose(self) -> None:
        """Ends the reader. Idempotent."""
        await self._groups.aclose()

    async def _read(self) -> AsyncGenerator[list[Found], None]:
        for ledger in self.topic.ledgers:
            if ledger.problem is not None:
                yield [Unreadable(ledger.ledger_id, None, None, ledger.problem)]
                continue
            async with aclosing(self._read_ledger(ledger)) as groups:
                async for group in groups:
                    yield group
        yield self._pieces.left()

    async def _read_ledger(self, ledger: TopicLedger) -> AsyncGenerator[list[Found], None]:
        """Reads on behind entries that no bookie can give, unless these are several in a row."""
        ledger_id = ledger.ledger_id
        at, failures, end, firsts = 0, 0, -1, list[int]()
        # Of an entry that is known to be unreadable: those before it are read by themselves.
        lost: EntryNotFoundError | None = None
        while True:
            is_opened = False
            try:
                async with self._client.open_ledger(ledger_id, password=self._password, first=at) as reader:
                    is_opened, end = True, max(end, reader.last_add_confirmed)
                    firsts = [each.first_entry_id for each in reader.metadata.fragments]
                    if lost is None or at < lost.entry_id:
                        batches = reader.batches() if lost is None else reader.batches_between(at, lost.entry_id - 1)
                        async for batch in batches:
                            for entry_id, data in enumerate(batch.payloads(), batch.first_entry_id):
                                at, failures = entry_id + 1, 0
                                yield self._messages(ledger_id, entry_id, data)
                if lost is None:
                    break
            except LedgerError as error:
                if not is_opened or not isinstance(error, EntryNotFoundError):
                    first, last = (at, max(end, at)) if is_opened or at else (None, None)
                    yield [Unreadable(ledger_id, first, last, error)]
                    return
                # It may be raised before all entries before this one were given out.
                lost = error
                if at < lost.entry_id:
                    continue
            failures += 1
            last = at
            if failures >= _FAILURES_MAX:
                last = min((each - 1 for each in firsts if each > at), default=end)
            yield [Unreadable(ledger_id, at, last, lost)]
            at, lost = last + 1, None
            if at > end:
                break
        if ledger.entries is not None and end + 1 < ledger.entries:
            problem = f"the topic's record counts {ledger.entries} entries, and this ledger ends at {end}"
            yield [Unreadable(ledger_id, end + 1, ledger.entries - 1, EntryNotFoundError(ledger_id, end + 1, problem))]

    def _messages(self, ledger_id: int, entry_id: int, data: bytes) -> list[Found]:
        found = take_apart(ledger_id, entry_id, data, self._message_bytes_max)
        if isinstance(found, Piece):
            return self._pieces.add(found)
        if isinstance(found, Marker):
            if found.aborted is not None:
                self.aborted.add(found.aborted)
            return []
        return found


class Pieces:
    """Chunks of messages that are not complete yet; `bytes_max` bounds them all together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # By message, the one that was begun first before the others.
        self._begun: dict[tuple[bytes, bytes], list[Piece]] = {}

    def add(self, piece: Piece) -> list[Found]:
        """Takes a chunk; returns the message that it completes, and what had to be given up."""
        found: list[Found] = []
        number, total = piece.metadata.chunk_id, piece.metadata.num_chunks_from_msg
        if number == 0:
            self._drop(piece.message)  # its producer began again
        have = len(self._begun.get(piece.message, ()))
        if number < have:
            return found  # sent again after a lost answer
        if number > have or number >= total:
            self._drop(piece.message)
            problem = f"it is chunk {number} of {total} of a message, and chunk {have} was the next"
            return [Unreadable(piece.ledger_id, piece.entry_id, piece.entry_id, ChunksMissingError(problem))]
        self._begun.setdefault(piece.message, []).append(piece)
        self._bytes += piece.entry_bytes
        if number + 1 == total:
            pieces = self._drop(piece.message)
            try:
                return [joined(pieces, self._bytes_max)]
            except ReplogError as error:
                return [_given_up(pieces, error)]
        while self._bytes > self._bytes_max:
            problem = f"message_bytes_max, {self._bytes_max}, is too little for all messages that are not complete"
            found.append(_given_up(self._drop(next(iter(self._begun))), MessageTooLargeError(problem)))
        return found

    def left(self) -> list[Found]:
        """The messages that are not complete at the end of the topic."""
        return [_given_up(self._drop(each), None) for each in list(self._begun)]

    def _drop(self, message: tuple[bytes, bytes]) -> list[Piece]:
        pieces = self._begun.pop(message, [])
        self._bytes -= sum(each.entry_bytes for each in pieces)
        return pieces


def _given_up(pieces: list[Piece], error: ReplogError | None) -> Unreadable:
    """A message that these are pieces of. Its entries may be in several ledgers: the last one names it."""
    first, last = pieces[0], pieces[-1]
    if error is None:
        total = last.metadata.num_chunks_from_msg
        error = ChunksMissingError(f"a message has {total} chunks, and the topic ends after {len(pieces)} of them")
    is_one_ledger = first.ledger_id == last.ledger_id
    return Unreadable(last.ledger_id, first.entry_id if is_one_ledger else last.entry_id, last.entry_id, error)


@asynccontextmanager
async def read_topic(
    client: Client, topic: str, *, password: bytes = b"", message_bytes_max: int = MESSAGE_BYTES_MAX
) -> AsyncIterator[TopicReader]:
    """A reader of all that BookKeeper has of a topic, as a context manager: `read_topic(client, "persistent://tenant/ns/topic")`.

    Iterate it for each `Message`, and for each `Unreadable` that is in place of what could not be read. Nothing is fenced: of a
    ledger that a broker writes, it reads what is confirmed now. `password` is that of the ledgers, which Pulsar leaves empty.
    `message_bytes_max` bounds a message after it is expanded, and the chunks of all messages that are not complete.

    Raises `TopicNotFoundError`, also for a topic that only has partitions; `TopicDamagedError` if its record cannot be read;
    `ConfigError`, `MetastoreError`."""
    check_number("message_bytes_max", message_bytes_max, lowest=1)
    found = await describe_topic(client, TopicName.parse(topic))
    async with aclosing(TopicReader(client, found, password, message_bytes_max)) as reader:
        yield reader
