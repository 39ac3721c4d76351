"""The reader before lying, damaged, slow and forgetful bookies. Single rules: test_spec_reading.py."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replog.errors import EntryNotFoundError
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest, DigestType
from replog.protocol.effects import Delivered, Failed, ReadMetadata, SendRead, SendReadLastAddConfirmed
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.protocol.reading import LedgerReading
from replog.testing.simulating.disks import damaged
from tests.protocol.driving import Cluster

QUORUMS = [Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(5, 2, 2), Quorum(6, 3, 2)]
DIGEST = Digest(DigestType.HMAC_SHA256, 7, b"secret")
FORGER = Digest(DigestType.HMAC_SHA256, 7, b"guess")


def build(
    first: int, stride: int, payloads: list[bytes], confirmed: int, digest: Digest = DIGEST, **other: int
) -> Batch:
    fields = {"ledger_id": 7, "stamp": 1} | other
    return batches.build(
        digest,
        first_entry_id=first,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=confirmed,
        timestamp_ns=1,
        cumulative_length=1,
        ledger_id=fields["ledger_id"],
        stamp=fields["stamp"],
    )


def as_they_are(write_set: Sequence[int], _ensemble: tuple[str, ...]) -> list[int]:
    return list(write_set)


class Reading(RuleBasedStateMachine):
    """Knows the true entries, and hands the reader true and false answers."""

    @initialize(
        quorum=st.sampled_from(QUORUMS),
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
        first=st.integers(0, 8),
        is_closed=st.booleans(),
    )
    def create(self, quorum: Quorum, sizes: list[int], first: int, is_closed: bool) -> None:
        self.quorum = quorum
        self.truth = [b"true %d" % entry_id for entry_id in range(sum(sizes))]
        self.batches: list[Batch] = []
        start = 0
        for size in sizes:
            payloads = self.truth[start : start + size]
            for rotation in range(min(quorum.stride, size)):
                mine = payloads[rotation :: quorum.stride]
                self.batches.append(build(start + rotation, quorum.stride, mine, start - 1))
            start += size
        fragment = Fragment(0, tuple(f"b{index}" for index in range(quorum.ensemble)))
        self.metadata = LedgerMetadata(7, quorum, DigestType.HMAC_SHA256, "", (fragment,))
        self.closed = self.metadata.closed_at(len(self.truth) - 2)
        self.bound = len(self.truth) - 2 if is_closed else -1  # what anybody has said to be confirmed
        self.machine = LedgerReading(self.closed if is_closed else self.metadata, DIGEST, first, as_they_are)
        self.first = first
        self.delivered: list[bytes] = []
        self.asked: list[SendRead] = []
        self.refreshes = 0
        self.error: Exception | None = None

    def collect(self) -> None:
        for effect in self.machine.take_effects():
            assert self.error is None, "nothing follows the end"
            if isinstance(effect, SendRead):
                assert effect.index in self.quorum.write_set(effect.entry_id)
                assert effect.entry_id <= self.bound  # D1: nothing past the bound is even asked for
                self.asked.append(effect)
            elif isinstance(effect, Delivered):
                self.deliver(effect)
            elif isinstance(effect, ReadMetadata):
                self.refreshes += 1
            else:
                assert isinstance(effect, Failed)
                self.error = effect.error

    def deliver(self, effect: Delivered) -> None:
        held = {
            entry_id: payload
            for batch in effect.batches
            for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True)
        }
        assert effect.first_entry_id == self.first + len(self.delivered)  # D3: no gap, no repetition
        assert effect.first_entry_id <= effect.last_entry_id <= self.bound  # R7
        for entry_id in range(effect.first_entry_id, effect.last_entry_id + 1):
            assert held[entry_id] == self.truth[entry_id]
            self.delivered.append(held[entry_id])

    def is_alive(self) -> bool:
        return self.error is None

    @precondition(lambda self: self.error is not None)
    @rule(first=st.integers(0, 8))
    def begin_again(self, first: int) -> None:
        """The reader gave up: another one comes, that knows nothing of what the first one heard."""
        self.machine = LedgerReading(self.machine.metadata, DIGEST, first, as_they_are)
        self.first, self.delivered, self.error = first, [], None
        self.asked, self.refreshes = [], 0

    @precondition(is_alive)
    @rule()
    def read_on(self) -> None:
        self.machine.read_on()
        self.collect()

    @precondition(is_alive)
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        """Somebody who knows says how far the ledger is confirmed: perhaps long ago."""
        heard = data.draw(st.integers(-1, len(self.truth) - 2))
        self.bound = max(self.bound, heard)
        self.machine.last_add_confirmed_heard(heard)
        self.collect()

    @precondition(is_alive)
    @rule(data=st.data(), count=st.integers(0, 4), is_forged=st.booleans())
    def be_brought(self, data: st.DataObject, count: int, is_forged: bool) -> None:
        """A bookie tells how far the ledger is confirmed, and brings batches: old ones, what comes next, unconfirmed ones."""
        heard = data.draw(st.integers(-1, len(self.truth) - 2))
        brought = self.following(data.draw(st.integers(0, len(self.truth) - 1)))[:count]
        known = max((each.last_add_confirmed for each in brought), default=-1)
        self.bound = max(self.bound, heard, known)
        if is_forged:
            first, stride = self.machine.next_entry_id, self.quorum.stride
            brought.insert(0, build(first, stride, [b"false"], first - 1, FORGER))
            brought.append(build(first, stride, [b"false"], first - 1, stamp=2))
        self.machine.last_add_confirmed_answered(heard, brought)
        self.collect()

    @precondition(lambda self: self.error is None and self.asked)
    @rule(data=st.data(), count=st.integers(1, 4), is_late=st.booleans())
    def answer_truly(self, data: st.DataObject, count: int, is_late: bool) -> None:
        """The batch that holds the entry, and some that follow it in this rotation; perhaps the same answer again."""
        effect = data.draw(st.sampled_from(self.asked))
        if not is_late:
            self.asked.remove(effect)
        self.answer(effect, self.following(effect.entry_id)[:count])

    def following(self, entry_id: int) -> list[Batch]:
        found = [each for each in self.batches if each.holds(entry_id)]
        return found + [each for each in self.batches if each.first_entry_id > entry_id]

    def answer(self, effect: SendRead, answered: list[Batch]) -> None:
        known = max((each.last_add_confirmed for each in answered if each in self.batches), default=-1)
        self.bound = max(self.bound, known)  # the header of a true batch may move it (D1)
        self.machine.read_found(effect.index, effect.entry_id, answered)
        self.collect()

    @precondition(lambda self: self.error is None and self.asked)
    @rule(data=st.data(), lie=st.sampled_from(["forged", "ledger", "stamp", "stride", "elsewhere", "nothing", "mixed"]))
    def answer_falsely(self, data: st.DataObject, lie: str) -> None:
        effect = data.draw(st.sampled_from(self.asked))
        entry_id, stride = effect.entry_id, self.quorum.stride
        claims = {
            "forged": [build(entry_id, stride, [b"false"], entry_id - 1, FORGER)],
            "ledger": [build(entry_id, stride, [b"false"], entry_id - 1, ledger_id=8)],
            "stamp": [build(entry_id, stride, [b"false"], entry_id - 1, stamp=2)],
            "stride": [build(entry_id, stride + 1, [b"false"], entry_id - 1)],
            "elsewhere": [each for each in self.batches if not each.holds(entry_id)][:1],
            "nothing": [],
            "mixed": [*self.following(entry_id)[:1], build(entry_id + stride, stride, [b"false"], entry_id, FORGER)],
        }
        self.answer(effect, claims[lie])

    @precondition(lambda self: self.error is None and self.asked)
    @rule(data=st.data(), is_doubt=st.booleans())
    def answer_in_vain(self, data: st.DataObject, is_doubt: bool) -> None:
        effect = data.draw(st.sampled_from(self.asked))
        self.asked.remove(effect)
        (self.machine.read_unknown if is_doubt else self.machine.read_absent)(effect.index, effect.entry_id)
        self.collect()

    @precondition(lambda self: self.error is None and self.asked)
    @rule(data=st.data())
    def be_slow(self, data: st.DataObject) -> None:
        self.machine.read_slow(data.draw(st.sampled_from(self.asked)).entry_id)
        self.collect()

    @precondition(lambda self: self.error is None)
    @rule(is_closed=st.booleans())
    def refresh(self, is_closed: bool) -> None:
        """The metadata is reread, because the machine asked for it or for no reason."""
        self.refreshes = 0
        if is_closed:
            self.bound = max(self.bound, len(self.truth) - 2)
        self.machine.metadata_read(self.closed if is_closed else self.metadata)
        self.collect()

    @invariant()
    def what_was_handed_out_is_the_truth(self) -> None:
        if self.delivered:
            assert self.delivered == self.truth[self.first : self.first + len(self.delivered)]
            assert self.machine.next_entry_id == self.first + len(self.delivered)

    @invariant()
    def an_error_says_that_it_found_no_copy(self) -> None:
        assert self.error is None or isinstance(self.error, EntryNotFoundError)

    def teardown(self) -> None:
        """Once the bookies are kind, everything up to the bound is handed out, unless the reader has given up before."""
        if not hasattr(self, "machine"):
            return
        for _ in range(200):
            if self.error is not None or (not self.asked and not self.refreshes and self.machine.is_at_end):
                break
            if self.refreshes:
                self.refresh(is_closed=True)
            elif self.asked:
                effect = self.asked.pop()
                self.answer(effect, self.following(effect.entry_id)[:1])
            else:
                self.bound = max(self.bound, len(self.truth) - 2)
                self.machine.metadata_read(self.closed)
                self.read_on()
        if self.error is None:
            assert self.machine.is_at_end or self.first > self.bound
            assert self.delivered == self.truth[self.first : len(self.truth) - 1]


TestReading = Reading.TestCase
TestReading.settings = settings(stateful_step_count=30)


# -- batches that come with the last add confirmed --------------------------------------------------------------------


FRAGMENT = Fragment(0, ("a", "b", "c"))


def reading_of(*fragments: Fragment, quorum: Quorum = QUORUMS[1], first: int = 0) -> LedgerReading:
    metadata = LedgerMetadata(7, quorum, DigestType.HMAC_SHA256, "", fragments or (FRAGMENT,))
    return LedgerReading(metadata, DIGEST, first, as_they_are)


def one(entry_id: int, stride: int = 1, stamp: int = 1) -> Batch:
    return build(entry_id, stride, [b"true %d" % entry_id], entry_id - 1, stamp=stamp)


def spans(machine: LedgerReading) -> list[tuple[int, int]]:
    """The delivered ranges."""
    effects = machine.take_effects()
    return [(each.first_entry_id, each.last_entry_id) for each in effects if isinstance(each, Delivered)]


def questions(machine: LedgerReading) -> list[tuple[int, str, int, int, int]]:
    machine.poll_last_add_confirmed()
    effects = machine.take_effects()
    assert all(isinstance(each, SendReadLastAddConfirmed) for each in effects)
    return [(each.index, each.bookie_id, each.after, each.entry_id, each.stamp) for each in effects]  # type: ignore[union-attr]


def test_brought_entries_above_the_lac_are_not_taken() -> None:
    machine = reading_of()
    machine.last_add_confirmed_answered(0, [one(0), one(1), build(2, 1, [b"x", b"y"], 0)])
    assert spans(machine) == [(0, 0)]
    machine.last_add_confirmed_heard(2)
    machine.read_on()
    assert machine.waiting_for() == [1]  # it was not kept: who stored it then may have lost it since
    machine.take_effects()
    machine.last_add_confirmed_answered(2, [one(1), build(2, 1, [b"x", b"y"], 0)])
    assert spans(machine) == [(1, 1), (2, 2)]  # of a batch that reaches beyond, what is confirmed


def test_brought_entries_of_another_stamp_are_not_taken() -> None:
    """T3: the entry that was confirmed has the stamp that the metadata tells; a bookie may hold another one of that id."""
    machine = reading_of(FRAGMENT, Fragment(1, ("a", "b", "d"), 2))
    machine.last_add_confirmed_answered(2, [one(0), one(1)])
    assert spans(machine) == [(0, 0)]
    machine.last_add_confirmed_answered(2, [one(1, stamp=2), one(2, stamp=2)])
    assert spans(machine) == [(1, 1), (2, 2)]
    assert {stamp for *_, stamp in questions(machine)} == {2}


def test_a_reader_in_an_old_fragment_polls_the_last_fragment() -> None:
    machine = reading_of(FRAGMENT, Fragment(5, ("d", "e", "f")), first=2)
    assert questions(machine) == [(0, "d", 4, 2, 1), (1, "e", 4, 2, 1), (2, "f", 4, 2, 1)]
    machine.last_add_confirmed_answered(6, [one(5), one(6)])  # of the new one, and not what comes next
    assert spans(machine) == []
    machine.read_on()
    (asked,) = machine.take_effects()
    assert isinstance(asked, SendRead)
    assert asked.bookie_id in FRAGMENT.ensemble
    machine.read_found(asked.index, 2, [one(2), one(3)])
    assert spans(machine) == [(2, 2), (3, 3)]


def test_entries_both_brought_and_read_are_delivered_once() -> None:
    machine = reading_of()
    machine.last_add_confirmed_answered(1, [])
    machine.read_on()
    (asked,) = machine.take_effects()
    assert isinstance(asked, SendRead)
    machine.last_add_confirmed_answered(1, [one(0)])
    assert spans(machine) == [(0, 0)]
    assert not machine.waiting_for()
    machine.last_add_confirmed_answered(1, [one(0)])  # another bookie brings the same
    machine.read_found(asked.index, 0, [one(0), one(1)])
    machine.read_absent(1, 0)
    assert spans(machine) == []
    machine.read_on()
    assert machine.waiting_for() == [1]
    machine.take_effects()
    machine.read_found(0, 1, [one(1)])
    assert spans(machine) == [(1, 1)]


def test_fetched_entries_end_a_vain_search() -> None:
    machine = reading_of()
    machine.last_add_confirmed_answered(0, [])
    machine.read_on()
    for index in range(3):
        machine.read_absent(index, 0)
    assert isinstance(machine.take_effects()[-1], ReadMetadata)
    machine.last_add_confirmed_answered(0, [one(0)])
    machine.metadata_read(machine.metadata)
    assert [type(each) for each in machine.take_effects()] == [Delivered]


def test_fetched_damage_is_read_elsewhere() -> None:
    machine = reading_of()
    machine.last_add_confirmed_answered(0, [damaged(one(0))])
    assert spans(machine) == []
    machine.read_on()
    assert machine.waiting_for() == [0]


def test_each_index_of_a_striped_ledger_is_asked_for_its_own() -> None:
    quorum = Quorum(4, 2, 2)
    machine = reading_of(Fragment(0, ("a", "b", "c", "d")), quorum=quorum)
    assert [(index, entry_id) for index, _, _, entry_id, _ in questions(machine)] == [(0, 0), (1, 0), (2, 1), (3, 2)]
    machine.last_add_confirmed_answered(2, [one(1, 4), one(2, 4)])
    assert spans(machine) == []  # the first one is missing
    machine.read_on()
    assert machine.waiting_for() == [0]
    machine.take_effects()
    assert [(index, entry_id) for index, _, _, entry_id, _ in questions(machine)] == [(0, 0), (1, 0), (2, 5), (3, 3)]
    machine.last_add_confirmed_answered(2, [one(0, 4)])
    assert spans(machine) == [(0, 2)]
    for entry_id in range(3, 8):
        machine.last_add_confirmed_answered(entry_id, [one(entry_id, 4)])
        assert spans(machine) == [(entry_id, entry_id)]


def test_guests_ask_for_themselves_when_their_host_is_not_needed() -> None:
    quorum = Quorum(4, 3, 2)
    for brought in range(4):
        machine = reading_of(Fragment(0, ("a", "b", "c", "d")), quorum=quorum)
        machine.last_add_confirmed_answered(3, [])
        machine.read_on()
        machine.last_add_confirmed_answered(3, [one(brought, 4)])
        machine.read_on()
        machine.take_effects()
        for _ in range(4):
            for entry_id in machine.waiting_for():
                machine.read_found(0, entry_id, [one(entry_id, 4)])
                machine.read_on()
        assert machine.next_entry_id == 4


def test_failed_reader_takes_nothing_more() -> None:
    machine = reading_of()
    machine.metadata_missing()
    machine.take_effects()
    machine.last_add_confirmed_answered(0, [one(0)])
    assert machine.take_effects() == []


def test_a_read_brings_several_batches_also_when_entries_stripe() -> None:
    """A bookie is asked once for the batches of all its rotations."""
    for quorum, bookies in ((Quorum(3, 3, 2), 1), (Quorum(6, 3, 2), 2), (Quorum(5, 3, 2), 2), (Quorum(3, 2, 2), 2)):
        cluster = Cluster(quorum)
        writer = cluster.writer()
        for _ in range(20):
            writer.add(*[b"x"] * quorum.stride)
        writer.run()
        writer.close()
        writer.run()
        reader = cluster.reader()
        reader.read_on()
        reads = 0
        while reader.waiting:
            reads += len(reader.find(SendRead))
            reader.run()
            reader.read_on()
        assert len(reader.payloads) == 20 * quorum.stride
        assert reads == bookies
