"""A bookie's ledger under random requests, group commits, full disks and crashes.

Single rules: test_spec_terms.py, test_spec_bookies.py."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replog.protocol.batch import Batch, build
from replog.protocol.bookie import Accepted, settle_add
from replog.protocol.digest import Digest, DigestType, stored_ledger_key
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.proofs import claimed
from tests.protocol.bookies import Bookie, proof_of

KEY = b"k" * 32
DIGEST = Digest(DigestType.CRC32C, 7, b"")


def batch_of(first: int, payloads: list[bytes], stamp: int = 1, stride: int = 1, confirmed: int = -1) -> Batch:
    return build(
        DIGEST,
        ledger_id=7,
        first_entry_id=first,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=confirmed,
        stamp=stamp,
        timestamp_ns=1,
        cumulative_length=1,
    )


class OneLedger(RuleBasedStateMachine):
    """Accepts in groups, commits them or finds no space, crashes in between, and remembers what was promised."""

    @initialize()
    def format(self) -> None:
        self.bookie = Bookie()
        self.group: list[Accepted] = []
        self.promised_term = 0  # the highest term that an OK or a negative was given under
        self.promised: dict[tuple[int, int], bytes] = {}  # acknowledged payloads, by entry and stamp
        self.denied: set[int] = set()  # entries that were said to be absent, to term 2 and above
        self.promised_confirmed = -1

    @rule(
        term=st.integers(1, 4),
        first=st.integers(0, 6),
        payloads=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=3),
        is_recovery=st.booleans(),
    )
    def add(self, term: int, first: int, payloads: list[bytes], is_recovery: bool) -> None:
        batch = batch_of(first, payloads, 1 if is_recovery else term)
        self.group.append(self.bookie.accept(AddRequest(1, 7, KEY, term, batch, is_recovery, proof_of(first - 1))))

    @rule(term=st.integers(1, 4))
    def fence(self, term: int) -> None:
        self.group.append(self.bookie.accept(FenceRequest(2, 7, KEY, term)))

    @rule(term=st.integers(2, 4), entry_id=st.integers(0, 8))
    def recovery_read(self, term: int, entry_id: int) -> None:
        self.group.append(self.bookie.accept(RecoveryReadRequest(3, 7, KEY, term, entry_id, 1)))

    @rule(term=st.integers(1, 4), confirmed=st.integers(-1, 8))
    def publish(self, term: int, confirmed: int) -> None:
        self.group.append(self.bookie.accept(WriteLastAddConfirmedRequest(4, 7, KEY, term, proof_of(confirmed))))

    @rule()
    def foreigner(self) -> None:
        """Somebody without the password tries everything; it only matters once the key is set."""
        if self.bookie.ledger(7).stored_key is not None:
            accepted = self.bookie.accept(FenceRequest(5, 7, b"x" * 32, 4))
            assert accepted.refusal is not None
            assert accepted.refusal.status is Status.UNAUTHORIZED
            assert not accepted.mutations

    @rule()
    def commit(self) -> None:
        """The group is durable, then answered, in order."""
        for accepted in self.group:
            self.remember(accepted, self.bookie.finish(accepted))
        self.group = []

    @rule()
    def find_no_space(self) -> None:
        """Nothing of the group happened; the bookie goes on with the machine that it has."""
        self.group = []

    @rule(kept=st.integers(0, 5))
    def crash(self, kept: int) -> None:
        """Some of the group are durable, and nobody was told; then the machine is made anew."""
        for accepted in self.group[:kept]:
            self.bookie.finish(accepted)
        self.group = []
        self.bookie.crash()

    def remember(self, accepted: Accepted, response: Response) -> None:
        request = accepted.request
        if response.status is Status.FENCED:
            assert response.fence_term > request.term
            return
        if response.status in (Status.BAD_REQUEST, Status.CONFLICT):
            return
        assert request.term >= self.promised_term  # T1
        self.promised_term = max(self.promised_term, request.term)
        if isinstance(request, AddRequest):
            self.remember_add(request)
        elif isinstance(request, RecoveryReadRequest) and response.status is Status.NO_ENTRY:
            assert (request.entry_id, 1) not in self.promised
            self.denied.add(request.entry_id)
        elif isinstance(request, WriteLastAddConfirmedRequest):
            self.promised_confirmed = max(self.promised_confirmed, claimed(request.proof))

    def remember_add(self, request: AddRequest) -> None:
        batch = request.batch
        for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True):
            assert self.promised.setdefault((entry_id, batch.stamp), payload) == payload  # T3
            if not request.recovery and request.term == 1:
                assert entry_id not in self.denied  # O10

    @invariant()
    def what_was_promised_is_durable(self) -> None:
        """R3, B2: looked up on the disk, not in the machine."""
        if not hasattr(self, "bookie"):
            return
        disk = self.bookie.disk
        if self.promised_term:
            assert disk.marks[7].fence_term >= self.promised_term
            assert disk.marks[7].key == stored_ledger_key(KEY)
        assert self.bookie.ledger(7).last_add_confirmed >= self.promised_confirmed
        for (entry_id, stamp), payload in self.promised.items():
            (batch,) = [each for each in disk.batches[7] if each.stamp == stamp and each.holds(entry_id)]  # once (T3)
            assert batch.payloads()[entry_id - batch.first_entry_id] == payload


TestOneLedger = OneLedger.TestCase
TestOneLedger.settings = settings(stateful_step_count=30)


def test_settling_finds_every_overlap() -> None:
    """T3: by ids, whatever the strides, and only within one stamp."""
    striped = batch_of(3, [b"3", b"8", b"13"], stride=5)
    assert settle_add(striped, []) is None
    assert settle_add(striped, [striped]) is Status.OK
    assert settle_add(batch_of(4, [b"x"] * 4), [striped]) is None  # 4..7 lie between
    assert settle_add(batch_of(4, [b"x"] * 5), [striped]) is Status.CONFLICT  # 8 is in both
    assert settle_add(batch_of(8, [b"8"], stride=5), [striped]) is Status.CONFLICT  # the payload, but not the bytes
    assert settle_add(batch_of(4, [b"x"], stride=5), [striped]) is None  # another rotation
    assert settle_add(batch_of(3, [b"x"], stamp=2), [striped]) is None
    assert settle_add(striped, [striped, batch_of(18, [b"x"], stride=5)]) is Status.OK


def test_an_entry_may_come_again_under_another_header() -> None:
    """T3: what makes two copies the same is for the bookie's transport to say; the stored one is named first."""
    stored, again = batch_of(0, [b"x"], confirmed=-1), batch_of(0, [b"x"], stride=2)
    compared: list[tuple[Batch, Batch]] = []

    def is_same(one: Batch, other: Batch) -> bool:
        compared.append((one, other))
        return one.payloads() == other.payloads()

    assert settle_add(again, [stored]) is Status.CONFLICT
    assert settle_add(again, [stored], is_same) is Status.OK
    assert settle_add(batch_of(0, [b"y"]), [stored], is_same) is Status.CONFLICT
    assert [one for one, _ in compared] == [stored, stored]


def test_answers_name_mark_and_term() -> None:
    """R2: a fence's answer reports the highest mark, from headers and explicit ones alike."""
    bookie = Bookie()
    bookie.handle(AddRequest(1, 7, KEY, 1, batch_of(4, [b"x"], confirmed=3)))
    bookie.handle(WriteLastAddConfirmedRequest(2, 7, KEY, 1, proof_of(2)))
    response = bookie.handle(FenceRequest(3, 7, KEY, 2))
    assert (response.request_id, response.last_add_confirmed, response.fence_term) == (3, 3, 2)


def test_state_is_persisted_again_after_a_failed_commit() -> None:
    """R3, B7: the fence's term and the ledger's key are kept in memory first, and nobody is told before they are durable."""
    bookie = Bookie()
    failed = bookie.accept(FenceRequest(1, 7, KEY, 3))  # and its commit finds no space
    repeated = bookie.accept(FenceRequest(2, 7, KEY, 3))
    assert repeated.mutations == failed.mutations != []
    assert bookie.finish(repeated).status is Status.OK
    assert bookie.disk.marks[7].fence_term == 3
    assert bookie.disk.marks[7].key == stored_ledger_key(KEY)
    assert bookie.accept(FenceRequest(3, 7, KEY, 3)).mutations == []
