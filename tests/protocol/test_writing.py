"""The writer under a hostile world: random acks, failures, replacements, CAS answers, and everything late.

Single rules: test_spec_writing.py and test_spec_changing.py."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replog.protocol.digest import Digest, DigestType
from replog.protocol.effects import (
    ChooseReplacements,
    Confirmed,
    Failed,
    Finished,
    ReadMetadata,
    SendAdd,
    WriteMetadata,
)
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.writing import LedgerWriting

BOOKIES = [f"b{number}" for number in range(9)]
QUORUMS = [Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(5, 2, 2), Quorum(5, 3, 2)]


class Writing(RuleBasedStateMachine):
    """Knows what the machine can't: which bookie really holds what, and what the metadata really says."""

    @initialize(quorum=st.sampled_from(QUORUMS), data=st.data())
    def create(self, quorum: Quorum, data: st.DataObject) -> None:
        """Indices may be missing from the start (C7)."""
        self.quorum = quorum
        missing = data.draw(st.sampled_from([each for each in range(1 << quorum.ensemble) if quorum.may_lack(each)]))
        fragment = Fragment(0, tuple(BOOKIES[: quorum.ensemble]))
        self.record = LedgerMetadata(7, quorum, DigestType.CRC32C, "", (fragment,), token="creator's")
        self.version = 0
        kept_bytes_max = data.draw(st.sampled_from([0, 3, 9, 1 << 20]))
        digest = Digest(DigestType.CRC32C, 7, b"")
        self.machine = LedgerWriting(self.record, 0, digest, "nonce", missing=missing, kept_bytes_max=kept_bytes_max)
        self.proposals: dict[str, LedgerMetadata] = {}  # by token
        self.was_missing = missing
        self.away = {index for index in range(quorum.ensemble) if missing >> index & 1}
        self.sent: list[SendAdd] = []  # everything ever sent: an answer may come at any time, or twice
        self.disks: dict[tuple[str, int], bytes] = {}  # what really is durable, by bookie and entry
        self.payloads: list[bytes] = []
        self.told_failed: list[SendAdd] = []
        self.is_closing = False
        self.confirmed = -1
        self.waiting: list[Any] = []
        self.end: Finished | Failed | None = None

    def collect(self) -> None:
        for effect in self.machine.take_effects():
            assert self.end is None, "nothing follows the end"
            if isinstance(effect, SendAdd):
                assert effect.bookie_id in self.record.last_fragment.ensemble  # C3: durable before it is used
                assert effect.index in self.quorum.write_set(effect.batch.first_entry_id)
                assert effect.index not in self.away, "nothing is sent to a bookie that was away from the start (C7)"
                self.sent.append(effect)
            elif isinstance(effect, Confirmed):
                assert self.confirmed < effect.last_add_confirmed < len(self.payloads)  # W2: in order
                assert not self.machine.is_changing or self.quorum.may_lack(self.machine.unused)  # C1, C9
                self.confirmed = effect.last_add_confirmed
            elif isinstance(effect, Finished | Failed):
                self.end = effect
            else:
                if isinstance(effect, WriteMetadata):
                    self.check_proposal(effect.metadata)
                self.waiting.append(effect)

    def check_proposal(self, proposed: LedgerMetadata) -> None:
        """C9: behind what is confirmed when it is sent for the first time; and a repeat sends the same."""
        if proposed.token in self.proposals:
            assert proposed == self.proposals[proposed.token]
        elif proposed.state is LedgerState.OPEN:
            assert proposed.last_fragment.first_entry_id == self.confirmed + 1
        self.proposals[proposed.token] = proposed

    def take(self, kind: type) -> Any:
        effect = next(each for each in self.waiting if isinstance(each, kind))
        self.waiting.remove(effect)
        return effect

    def waits_for(self, kind: type) -> bool:
        return any(isinstance(each, kind) for each in self.waiting)

    def is_open(self) -> bool:
        return self.end is None

    # -- what happens ------------------------------------------------------------------------------------------------

    @precondition(is_open)
    @rule(count=st.integers(1, 7))
    def add(self, count: int) -> None:
        new = [b"%d" % entry_id for entry_id in range(len(self.payloads), len(self.payloads) + count)]
        self.payloads += new
        self.machine.add(new, 1)
        self.collect()

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), is_recent=st.booleans())
    def acknowledge(self, data: st.DataObject, is_recent: bool) -> None:
        """Any add that was ever sent is durable now, and says so: for the first time, or again."""
        effect = data.draw(st.sampled_from(self.sent[-9:] if is_recent else self.sent))
        for entry_id, payload in zip(effect.batch.entry_ids, effect.batch.payloads(), strict=True):
            stored = self.disks.setdefault((effect.bookie_id, entry_id), payload)
            assert stored == payload, "other bytes for an identity (T3, W4)"
        self.machine.add_confirmed(effect.index, effect.bookie_id, effect.batch.first_entry_id)
        self.collect()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """An add got no answer; the bookie may be one that was replaced long ago."""
        effect = data.draw(st.sampled_from(self.sent))
        self.machine.bookie_failed(effect.index, effect.bookie_id, effect.batch)
        if not self.is_closing:
            self.told_failed.append(effect)
        self.collect()

    @precondition(lambda self: self.waits_for(ChooseReplacements))
    @rule(data=st.data(), same=st.booleans())
    def choose(self, data: st.DataObject, same: bool) -> None:
        """Spare bookies for some of the failed indices, or some of the failed ones again."""
        effect = self.take(ChooseReplacements)
        ensemble = self.machine.ensemble()
        chosen: dict[int, str] = {}
        for index in data.draw(st.sets(st.sampled_from(effect.failed))):
            spare = [each for each in BOOKIES if each not in ensemble and each not in chosen.values()]
            if same or not spare:
                chosen[index] = ensemble[index]
            else:
                chosen[index] = data.draw(st.sampled_from(spare))
        self.away -= chosen.keys()
        self.machine.replacements_chosen(chosen)
        self.collect()

    @precondition(lambda self: self.waits_for(WriteMetadata))
    @rule(is_applied=st.booleans(), is_answered=st.booleans())
    def write(self, is_applied: bool, is_answered: bool) -> None:
        effect = self.take(WriteMetadata)
        if not is_applied:
            self.machine.metadata_uncertain()
        elif effect.expected != self.version:
            self.machine.metadata_conflict()
        else:
            self.check_successor(effect.metadata)
            self.record, self.version = effect.metadata, self.version + 1
            if is_answered:
                self.machine.metadata_written(self.version)
            else:
                self.machine.metadata_uncertain()
        self.collect()

    def check_successor(self, new: LedgerMetadata) -> None:
        """O8: an ensemble is changed at the end only; closed is closed at what is confirmed."""
        firsts = [fragment.first_entry_id for fragment in new.fragments]
        assert firsts == sorted(set(firsts))
        assert all(len(set(fragment.ensemble)) == self.quorum.ensemble for fragment in new.fragments)
        if new.state is LedgerState.CLOSED:
            assert new.last_entry_id == self.confirmed
        else:
            assert new.last_fragment.first_entry_id <= self.confirmed + 1

    @precondition(lambda self: self.waits_for(ReadMetadata))
    @rule()
    def read(self) -> None:
        self.take(ReadMetadata)
        self.machine.metadata_read(self.record, self.version)
        self.collect()

    @precondition(lambda self: self.record.state is LedgerState.OPEN)
    @rule()
    def somebody_changes_the_record(self) -> None:
        """Something that is not the writer's: it must survive the writer's next change."""
        custom = {"changes": str(self.version)}
        self.record = attrs.evolve(self.record, custom=custom, token=f"somebody's {self.version}")
        self.version += 1

    @rule()
    def bookies_changed(self) -> None:
        self.machine.bookies_changed()
        self.collect()

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def each_confirmed_entry_is_at_its_ack_quorum(self) -> None:
        """W2, C5, I3: in the ensemble that the durable metadata names for it."""
        for entry_id in range(self.confirmed + 1):
            ensemble = self.record.fragment_of(entry_id).ensemble
            copies = [
                self.disks[ensemble[index], entry_id] == self.payloads[entry_id]
                for index in self.quorum.write_set(entry_id)
                if (ensemble[index], entry_id) in self.disks
            ]
            assert all(copies)
            assert len(copies) >= self.quorum.ack

    @invariant()
    def nothing_else_is_said_to_be_confirmed(self) -> None:
        assert self.machine.last_add_confirmed == self.confirmed
        assert self.machine.unconfirmed == range(self.confirmed + 1, len(self.payloads))

    def teardown(self) -> None:
        """I10: once the world is kind, everything is confirmed and the ledger closes there."""
        if not hasattr(self, "machine"):
            return
        for _ in range(2000):
            if self.waiting:
                self.settle(self.waiting[0])
            elif self.end is None and self.confirmed + 1 < len(self.payloads):
                self.machine.bookies_changed()
                self.collect()
                failed = {id(effect) for effect in self.told_failed}  # these answer nothing any more
                for effect in [each for each in self.sent if id(each) not in failed]:
                    self.disks.update(
                        ((effect.bookie_id, entry_id), payload)
                        for entry_id, payload in zip(effect.batch.entry_ids, effect.batch.payloads(), strict=True)
                    )
                    self.machine.add_confirmed(effect.index, effect.bookie_id, effect.batch.first_entry_id)
                    self.collect()
            elif self.end is None:
                self.is_closing = True
                self.machine.close()
                self.collect()
            else:
                break
            self.each_confirmed_entry_is_at_its_ack_quorum()
        self.check_gaps()
        assert isinstance(self.end, Finished)
        assert self.record.last_entry_id == self.confirmed == len(self.payloads) - 1

    def check_gaps(self) -> None:
        """W7: whatever a member lacks is in a gap, but for what was sent to it and did not fail since; and where nothing
        failed, nothing is."""
        assert all(gap.last_entry_id is not None for gap in self.record.gaps)
        sent = {(each.bookie_id, entry_id): id(each) for each in self.sent for entry_id in each.batch.entry_ids}
        failed = {id(each) for each in self.told_failed}
        for entry_id in range(self.confirmed + 1):
            fragment = self.record.fragment_of(entry_id)
            lacking = self.record.lacking(entry_id)
            for index in self.quorum.write_set(entry_id):
                place = (fragment.ensemble[index], entry_id)
                if place not in self.disks and (place not in sent or sent[place] in failed):
                    assert index in lacking
        assert self.told_failed or self.was_missing or not self.record.gaps

    def settle(self, effect: Any) -> None:
        if isinstance(effect, ChooseReplacements):
            self.take(ChooseReplacements)
            self.away.clear()
            self.machine.replacements_chosen({index: self.machine.ensemble()[index] for index in effect.failed})
            self.collect()
        elif isinstance(effect, WriteMetadata):
            self.write(True, True)
        else:
            self.read()


TestWriting = Writing.TestCase
TestWriting.settings = settings(stateful_step_count=40)
