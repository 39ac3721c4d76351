"""The log's memory of its producers, which recognises a repeated append (rule L11).

An entry may have an id: its producer, and a sequence that rises from one of the producer's entries to the next. The
window has the positions of the newest ids, and of each producer's last one. Of older ids it has only the highest
sequence of each producer. Its contents follow from the log's entries alone, in their order:

- An id that is in the window has its first position there.
- An id that is not in it was never in the log, if its sequence is above all that were forgotten of its producer.
- Otherwise it is unknown where it was written, or whether: it is refused, and never appended.
- A producer is forgotten only when an operator retires it. Then its ids are new again.

Entries of closed segments are *folded* in, and then the oldest are forgotten. Entries of later segments may still be
lost, so they make the window forget nothing. So a record of the window through one segment is the same, regardless of
the client that makes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

import attrs

from replog.errors import ConfigError, DuplicateError, ProducersFullError
from replog.protocol.envelope import PRODUCER_BYTES_MAX, SEQUENCE_MAX, EntryId
from replog.protocol.model import Position

IDS_MAX = 2000  # of one log whose positions are kept through its closed segments, beside each producer's last one
PRODUCERS_MAX = 1000  # of one log: so the record fits into a metastore that takes values of 1 MB


@attrs.frozen
class KnownProducer:
    """One producer, as of the last closed segment. `forgotten` is the highest sequence whose position is not kept, or -1;
    `last_ms` is when its last entry was sent; `ids` are a sequence, a segment and an entry each, in the log's order."""

    name: str
    forgotten: int
    last_ms: int
    ids: tuple[tuple[int, int, int], ...]


@attrs.frozen
class RetiredProducer:
    """A producer that an operator made the log forget. `through` is the last segment whose ids were forgotten."""

    name: str
    through: int


@attrs.frozen
class ProducersRecord:
    """The known producers of a log, from its segments up to `through`. `deletions` tells the log from earlier, deleted
    logs of the same name. `retired` is for the writers that know these producers already."""

    log_name: str
    deletions: int
    through: int
    producers: tuple[KnownProducer, ...] = ()
    retired: tuple[RetiredProducer, ...] = ()

    @property
    def is_full(self) -> bool:
        """True if it has as many producers as a log can remember."""
        return len(self.producers) >= PRODUCERS_MAX

    def without(self, names: Collection[str], before_ms: int) -> ProducersRecord:
        """The record without these producers, and without those whose last entry was sent before that time."""
        is_left = {each.name: each.name not in names and each.last_ms >= before_ms for each in self.producers}
        retired = tuple(RetiredProducer(name, self.through) for name, stays in is_left.items() if not stays)
        kept = tuple(each for each in self.producers if is_left[each.name])
        assert len(kept) + len(retired) == len(self.producers), "a producer stays, or is retired"
        return attrs.evolve(self, producers=kept, retired=(*self.retired, *retired))

    @property
    def place(self) -> tuple[int, int]:
        """How far it goes: a record is only replaced by one that goes further."""
        return self.deletions, self.through


def entry_id_of(given: object) -> EntryId:
    """The id of an entry that a caller has given as a pair. Raises `TypeError` or `ConfigError`; nothing was written."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"an id is a pair of a producer and a sequence, not {given!r}: nothing was written")
    producer, sequence = given
    if type(producer) is not str or type(sequence) is not int:
        kinds = f"{type(producer).__name__} and {type(sequence).__name__}"
        raise TypeError(f"an id is a text and a whole number, not {kinds}: nothing was written")
    try:
        size_bytes = len(producer.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"the producer {producer!r} is not valid Unicode: nothing was written") from error
    if not 0 < size_bytes <= PRODUCER_BYTES_MAX:
        raise ConfigError(
            f"a producer's name has 1 to {PRODUCER_BYTES_MAX} bytes in UTF-8, not {size_bytes}: nothing was written"
        )
    if not producer.isprintable():  # its record would need six bytes for one
        raise ConfigError(f"the producer {producer!r} has characters that cannot be printed: nothing was written")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ConfigError(f"a sequence is a number from 0 to {SEQUENCE_MAX}, not {sequence}: nothing was written")
    return EntryId(producer, sequence)


class _Producer:
    """The window's state of one producer. `last` is the sequence of its last folded entry; `is_kept`: only that one is
    left, and no longer among the newest of the log."""

    __slots__ = ("forgotten", "ids", "is_kept", "last", "last_ms")

    def __init__(self, forgotten: int = -1, last_ms: int = 0) -> None:
        self.ids: dict[int, Position] = {}
        self.forgotten = forgotten
        self.last_ms = last_ms
        self.last: int | None = None
        self.is_kept = False

    def forget(self, sequence: int) -> None:
        """Keeps of this id only that it was in the log."""
        self.ids.pop(sequence, None)
        self.forgotten = max(self.forgotten, sequence)


class ProducerWindow:
    """The ids of one log: those of the record that it is made of, and what was added since."""

    def __init__(self, record: ProducersRecord) -> None:
        self.through = record.through  # the last segment that is folded in
        self._log_name = record.log_name
        self._deletions = record.deletions
        self._producers = {each.name: _Producer(each.forgotten, each.last_ms) for each in record.producers}
        self._folded: deque[tuple[Position, EntryId]] = deque()  # the newest of closed segments, in the log's order
        self._recent: deque[tuple[Position, EntryId, int]] = deque()  # behind `through`, with their times in ms
        known = [
            (Position(segment, entry), EntryId(each.name, sequence))
            for each in record.producers
            for sequence, segment, entry in each.ids
        ]
        for position, entry_id in sorted(known):
            self._producers[entry_id.producer].ids[entry_id.sequence] = position
            self._fold(position, entry_id)

    @property
    def recent(self) -> int:
        """How many ids are behind `through`."""
        return len(self._recent)

    def find(self, entry_id: EntryId) -> Position | None:
        """The position that an entry of this id has or will have, if it is confirmed; None if there is none. Raises
        `DuplicateError` if the id is below the window."""
        producer = self._producers.get(entry_id.producer)
        if producer is None:
            return None
        position = producer.ids.get(entry_id.sequence)
        if position is None and entry_id.sequence <= producer.forgotten:
            raise DuplicateError(self._log_name, *entry_id, producer.forgotten)
        return position

    def check_room(self, name: str) -> None:
        """Raises `ProducersFullError` if the log can't remember this producer."""
        if name not in self._producers and len(self._producers) >= PRODUCERS_MAX:
            oldest = sorted(self._producers, key=lambda each: (self._producers[each].last_ms, each))[:3]
            raise ProducersFullError(self._log_name, name, PRODUCERS_MAX, oldest)

    def retire(self, retired: Iterable[RetiredProducer]) -> bool:
        """Forgets these producers, except those that have written since; returns whether there was one."""
        gone = set()
        for each in retired:
            known = self._producers.get(each.name)
            if known is None:
                continue
            assert known.ids, "the last id of a producer is kept"
            if all(position.segment <= each.through for position in known.ids.values()):
                gone.add(each.name)
        for name in gone:
            del self._producers[name]
        if gone:
            self._folded = deque(each for each in self._folded if each[1].producer not in gone)
            self._recent = deque(each for each in self._recent if each[1].producer not in gone)
        return bool(gone)

    def add(self, position: Position, entry_id: EntryId, time_ms: int) -> None:
        """An entry of this id was pushed, or read, behind all that were added before."""
        producer = self._producers.setdefault(entry_id.producer, _Producer())
        # If a bug wrote an id twice, the first position counts.
        if entry_id.sequence not in producer.ids:
            assert not self._recent or position > self._recent[-1][0], "ids are added in the log's order"
            producer.ids[entry_id.sequence] = position
            self._recent.append((position, entry_id, time_ms))

    def fold(self, through: int) -> None:
        """All segments up to this one are closed: their entries are final. Forgets the oldest ids."""
        while self._recent and self._recent[0][0].segment <= through:
            position, entry_id, time_ms = self._recent.popleft()
            producer = self._producers[entry_id.producer]
            producer.last_ms = max(producer.last_ms, time_ms)
            self._fold(position, entry_id)
        self.through = max(self.through, through)

    def _fold(self, position: Position, entry_id: EntryId) -> None:
        producer = self._producers[entry_id.producer]
        assert entry_id.sequence in producer.ids, "what is folded in is known"
        if producer.is_kept:
            assert producer.last is not None, "what is kept is the last one"
            producer.forget(producer.last)
            producer.is_kept = False
        producer.last = entry_id.sequence
        self._folded.append((position, entry_id))
        while len(self._folded) > IDS_MAX:
            _, (name, sequence) = self._folded.popleft()
            oldest = self._producers[name]
            # A producer that appends one entry after the other can always repeat the last one.
            if oldest.last == sequence:
                oldest.is_kept = True
            else:
                oldest.forget(sequence)

    def record(self) -> ProducersRecord:
        """The record to keep of the segments up to `through`."""
        places: dict[str, list[tuple[int, int, int]]] = {}
        for name, each in self._producers.items():
            if each.is_kept and each.last is not None:
                places[name] = [(each.last, *each.ids[each.last])]
        for position, (name, sequence) in self._folded:
            assert position.segment <= self.through, "only closed segments are summarised (L11)"
            places.setdefault(name, []).append((sequence, *position))
        producers = tuple(
            KnownProducer(name, self._producers[name].forgotten, self._producers[name].last_ms, tuple(places[name]))
            for name in sorted(places)
        )
        return ProducersRecord(self._log_name, self._deletions, self.through, producers)
