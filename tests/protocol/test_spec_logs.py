"""Logs of ledgers (rules L)."""

from __future__ import annotations

import pytest

from replog.errors import FencedError, LedgerNotFoundError, LogNotFoundError, PositionError, RecoveryUndecidedError
from replog.protocol.chaining import CreateLedger, DeleteLedger, ReadLog, RecoverLedger, WriteLog
from replog.protocol.dropping import DropSegments
from replog.protocol.effects import SendAdd
from replog.protocol.model import LedgerState, LogMetadata, Position
from tests.protocol.driving import Cluster, Writer
from tests.protocol.driving_jobs import adding, splicing, write_ledger
from tests.protocol.driving_logs import NAME, deleting, rolling, segments, takeover, trimming


def leader(cluster: Cluster, nonce: str) -> Writer:
    """Takes the log over, and returns the writer of its new ledger."""
    actor = takeover(cluster, nonce).run()
    assert actor.changed is not None
    assert actor.changed.ledger_id is not None
    return cluster.writer(actor.changed.ledger_id, nonce)


def rolled(cluster: Cluster, nonce: str) -> Writer:
    """Rolls the log, and returns the writer of its new ledger. The previous one stays open."""
    actor = rolling(cluster, nonce).run()
    assert actor.changed is not None
    assert actor.changed.ledger_id is not None
    return cluster.writer(actor.changed.ledger_id, nonce)


def read_log(cluster: Cluster, after: Position | None = None) -> list[tuple[Position, bytes]]:
    """All that is confirmed, as a log's reader would read it: ledger by ledger, in the order of the list."""
    records = []
    for segment in cluster.logs[NAME][0].segments:
        first = after.entry + 1 if after is not None and after.segment == segment.number else 0
        if after is not None and segment.number < after.segment:
            continue
        reader = cluster.reader(segment.ledger_id, first)
        reader.poll()
        for entry_id, payload in enumerate(reader.read_all(), start=first):
            records.append((Position(segment.number, entry_id), payload))
    return records


# -- L1: taking over -----------------------------------------------------------------------------------------------


def test_l1_a_new_log_is_created_by_its_first_takeover() -> None:
    """L1: nothing to recover: create a ledger, then create the list."""
    cluster = Cluster()
    actor = takeover(cluster).run()
    assert actor.changed is not None
    assert (actor.changed.metadata, actor.changed.version) == cluster.logs[NAME]
    assert segments(cluster) == [(1, 1)]
    assert cluster.logs[NAME][0].created_at_ms == 5


def test_l1_two_ledgers_are_recovered_before_one_is_created() -> None:
    """L1: of three, the last two; both are closed before a ledger is created, and that before the CAS."""
    cluster = Cluster()
    for nonce in ("t1", "t2", "t3"):
        leader(cluster, nonce)
    actor = takeover(cluster, "t4")
    actor.deliver(ReadLog)
    assert [effect.ledger_id for effect in actor.find(RecoverLedger)] == [2, 3]
    actor.deliver(RecoverLedger)
    assert not actor.find(CreateLedger)
    actor.deliver(RecoverLedger)
    assert actor.find(CreateLedger)
    assert not actor.find(WriteLog)
    assert all(cluster.metadata(ledger_id).state is LedgerState.CLOSED for ledger_id in (1, 2, 3))


def test_l1_nothing_is_served_before_the_cas() -> None:
    """L1: neither the ledger's existence nor a CAS without an answer makes a leader."""
    cluster = Cluster()
    actor = takeover(cluster)
    actor.run_until(WriteLog)
    assert actor.changed is None
    actor.write_loses_answer()
    assert actor.changed is None
    actor.run()
    assert actor.changed is not None


def test_l1_the_loser_deletes_its_ledger_and_starts_again() -> None:
    """L1: t2 wins between t1's reading and its CAS: t1 deletes its own ledger, fences t2's, and wins the next round."""
    cluster = Cluster()
    t1 = takeover(cluster, "t1")
    t1.run_until(WriteLog)
    mine = t1.find(WriteLog)[0].metadata.segments[-1].ledger_id
    t2 = leader(cluster, "t2")
    t2.add(b"a")
    t2.run()
    t1.run_until(RecoverLedger)
    assert [effect.ledger_id for effect in t1.find(DeleteLedger)] == [mine]
    t1.run()
    assert t1.changed is not None
    assert [number for number, _ in segments(cluster)] == [1, 2]
    assert mine not in cluster.records
    t2.add(b"b")
    t2.run()
    assert isinstance(t2.error, FencedError)
    assert [payload for _, payload in read_log(cluster)] == [b"a"]


def test_l1_written_change_counts_after_a_later_takeover() -> None:
    """L1, M1: the answer to t1's CAS is lost, and t2 takes over behind it. t1's ledger is named: it must not be
    deleted, though t1 has lost."""
    cluster = Cluster()
    t1 = takeover(cluster, "t1")
    t1.run_until(WriteLog)
    t1.write_loses_answer()
    leader(cluster, "t2")
    t1.deliver(ReadLog)
    assert not t1.find(DeleteLedger)
    assert t1.changed is None
    t1.run()
    assert segments(cluster) == [(1, 1), (2, 2), (3, 3)]
    assert set(cluster.records) == {1, 2, 3}


def test_l1_a_ledger_trimmed_away_meanwhile_is_not_missed() -> None:
    """L1, L3: between reading the list and recovering its ledgers the older one is trimmed: read again, go on."""
    cluster = Cluster()
    leader(cluster, "t1")
    leader(cluster, "t2")
    actor = takeover(cluster, "t3")
    actor.deliver(ReadLog)
    trimming(cluster, before_segment=2).run()
    actor.run()
    assert actor.changed is not None
    assert segments(cluster) == [(2, 2), (3, 3)]


def test_l1_a_ledger_deleted_by_hand_is_an_error() -> None:
    """L1: the list still names it: the log's end is unknown, and taking over would hide that."""
    cluster = Cluster()
    leader(cluster, "t1")
    del cluster.records[1]
    actor = takeover(cluster, "t2").run()
    assert isinstance(actor.error, LedgerNotFoundError)
    assert segments(cluster) == [(1, 1)]


def test_l1_undecided_recovery_ends_the_takeover() -> None:
    """L1, R4: without two of three bookies nobody takes over, and the list is as it was."""
    cluster = Cluster()
    leader(cluster, "t1")
    cluster.down = {"b1", "b2"}
    actor = takeover(cluster, "t2").run()
    assert isinstance(actor.error, RecoveryUndecidedError)
    assert segments(cluster) == [(1, 1)]
    cluster.down = set()
    assert takeover(cluster, "t3").run().changed is not None


# -- L8: segments that may be open -----------------------------------------------------------------------------------


def spliced(cluster: Cluster, count: int) -> Writer:
    """The leader adds ledgers of a job and rolls. Returns the writer of its new ledger; the previous one stays open."""
    actor = splicing(cluster, [write_ledger(cluster, "job") for _ in range(count)]).finish()
    assert actor.changed is not None
    assert actor.changed.ledger_id is not None
    return cluster.writer(actor.changed.ledger_id, "spliced")


@pytest.mark.parametrize("count", [1, 2, 150])
def test_l8_a_ledger_behind_spliced_ones_is_fenced(count: int) -> None:
    """L8: a leader stays while a job's ledgers are added between its own two. It still writes to the first of those when
    somebody takes over. To recover the last two of the list would leave it unfenced."""
    cluster = Cluster()
    old = leader(cluster, "t1")
    old.add(b"a")
    spliced(cluster, count)
    new = leader(cluster, "t2")
    new.add(b"b")
    new.run()
    old.run()
    assert isinstance(old.error, FencedError)
    assert old.confirmed == []
    states = {cluster.metadata(ledger_id).state for _, ledger_id in segments(cluster)[:-1]}
    assert states == {LedgerState.CLOSED}


def test_l8_job_and_deletion_recover_possibly_open_ledgers() -> None:
    """L8: not only a takeover fences all from the first segment that may be open."""
    cluster = Cluster()
    leader(cluster, "t1")
    spliced(cluster, 3)
    commit = adding(cluster, [write_ledger(cluster, "another job")]).until(RecoverLedger)
    assert [effect.ledger_id for effect in commit.find(RecoverLedger)] == [1, 2, 3, 4, 5]
    commit.finish()
    assert cluster.logs[NAME][0].first_open_number == cluster.logs[NAME][0].next_segment_number
    cluster = Cluster()
    leader(cluster, "t1")
    spliced(cluster, 3)
    deletion = deleting(cluster)
    deletion.run_until(RecoverLedger)
    assert [effect.ledger_id for effect in deletion.find(RecoverLedger)] == [1, 2, 3, 4, 5]


def test_l8_record_names_the_ledger_in_use() -> None:
    """L8: after a takeover the new ledger may be open, after a roll the one before it as well."""
    cluster = Cluster()
    for nonce, number in (("t1", 1), ("t2", 2)):
        leader(cluster, nonce)
        assert cluster.logs[NAME][0].first_open_number == number
    rolled(cluster, "r1")
    assert cluster.logs[NAME][0].first_open_number == 2


# -- L2: rolling ---------------------------------------------------------------------------------------------------


def test_l2_the_previous_ledger_is_open_until_the_next_is_listed() -> None:
    """L2: create, CAS, then close; appends go on in the previous one meanwhile, and their order is kept."""
    cluster = Cluster()
    first = leader(cluster, "t1")
    first.add(b"a")
    roll = rolling(cluster)
    roll.run_until(WriteLog)
    first.add(b"b")
    first.run()
    assert first.confirmed[-1] == 1
    roll.run()
    second = cluster.writer(2, "t1 again")
    second.add(b"c")
    second.run()
    first.close()
    first.run()
    assert cluster.metadata(1).last_entry_id == 1
    second.close()
    second.run()
    assert [payload for _, payload in read_log(cluster)] == [b"a", b"b", b"c"]


def test_l2_roll_losing_to_a_takeover_leaves_no_ledger() -> None:
    """L2, L5: one wins the CAS; the leader that lost deletes the ledger that it created, and ends as fenced."""
    cluster = Cluster()
    leader(cluster, "t1")
    roll = rolling(cluster)
    roll.run_until(WriteLog)
    mine = roll.find(WriteLog)[0].metadata.segments[-1].ledger_id
    leader(cluster, "t2")
    roll.run()
    assert isinstance(roll.error, FencedError)
    assert mine not in cluster.records
    assert mine not in {ledger_id for _, ledger_id in segments(cluster)}


@pytest.mark.parametrize("happened", [True, False])
def test_l2_rolling_continues_after_a_trim(happened: bool) -> None:
    """L2, L3, L7, M1: a trim comes between, which deletes what is pending: the roll creates another ledger, or recognises
    that its own is in the log although its token is gone."""
    cluster = Cluster()
    leader(cluster, "t1")
    leader(cluster, "t2")
    roll = rolling(cluster)
    roll.run_until(WriteLog)
    if happened:
        roll.write_loses_answer()
    trimming(cluster, before_segment=2).run()
    roll.run()
    assert roll.changed is not None
    ledger_id = 3 if happened else 4
    assert segments(cluster) == [(2, 2), (3, ledger_id)]
    assert roll.changed.ledger_id == ledger_id
    assert set(cluster.records) == {2, ledger_id}


def test_l2_takeover_deposes_a_roll_with_a_lost_answer() -> None:
    """L2, M1: the rolled ledger is named and recovered by the takeover: it stays, and the leader ends."""
    cluster = Cluster()
    leader(cluster, "t1")
    roll = rolling(cluster)
    roll.run_until(WriteLog)
    roll.write_loses_answer()
    leader(cluster, "t2")
    roll.run()
    assert isinstance(roll.error, FencedError)
    assert segments(cluster) == [(1, 1), (2, 2), (3, 3)]
    assert cluster.metadata(2).state is LedgerState.CLOSED


# -- L3: trimming --------------------------------------------------------------------------------------------------


def test_l3_the_list_changes_before_the_ledgers_are_deleted() -> None:
    """L3: no ledger is deleted while the list names it, also when the answer to the CAS is lost."""
    cluster = Cluster()
    for nonce in ("t1", "t2", "t3"):
        leader(cluster, nonce)
    trim = trimming(cluster, before_segment=3)
    trim.run_until(WriteLog)
    trim.write_loses_answer()
    assert not trim.find(DropSegments)
    trim.deliver(ReadLog)
    assert [(effect.first, effect.end) for effect in trim.find(DropSegments)] == [(1, 3)]
    trim.run()
    assert trim.machine.dropped == (1, 2)
    assert segments(cluster) == [(3, 3)]
    assert set(cluster.records) == {3}


def test_l3_the_last_segment_stays_and_numbers_are_never_reused() -> None:
    """L3: a trim beyond the end keeps the last; the next takeover's number is above all that ever were."""
    cluster = Cluster()
    for nonce in ("t1", "t2"):
        leader(cluster, nonce)
    assert trimming(cluster, before_segment=99).run().changed is not None
    assert segments(cluster) == [(2, 2)]
    leader(cluster, "t3")
    assert [number for number, _ in segments(cluster)] == [2, 3]


def test_l3_trimming_against_a_takeover_keeps_both_changes() -> None:
    """L3: the trim's CAS loses and is proposed upon the new list: the new ledger stays named."""
    cluster = Cluster()
    for nonce in ("t1", "t2"):
        leader(cluster, nonce)
    trim = trimming(cluster, before_segment=2)
    trim.run_until(WriteLog)
    leader(cluster, "t3")
    trim.run()
    assert segments(cluster) == [(2, 2), (3, 3)]
    assert set(cluster.records) == {2, 3}


def test_l3_an_empty_trim_changes_nothing_and_no_log_raises() -> None:
    """L3: a second trim to the same place is done without a CAS."""
    cluster = Cluster()
    leader(cluster, "t1")
    version = cluster.logs[NAME][1]
    assert trimming(cluster, before_segment=1).run().changed is not None
    assert cluster.logs[NAME][1] == version
    del cluster.logs[NAME]
    assert isinstance(trimming(cluster, before_segment=1).run().error, LogNotFoundError)


# -- L4: positions -------------------------------------------------------------------------------------------------


def test_l4_positions_are_ordered_printable_and_parse_back() -> None:
    """L4: by segment number, then by entry id; what is no position is told so."""
    positions = [Position(segment, entry) for segment in (1, 2, 10) for entry in (0, 9, 10, (1 << 63) - 1)]
    assert sorted(positions) == positions
    assert [Position.parse(str(position)) for position in positions] == positions
    assert Position.parse(" 17:42\n") == Position(17, 42)
    for text in (
        "",
        "17",
        "17:",
        ":42",
        "17:-1",
        "1:2:3",
        "x:1",
        "1.0:2",
        "1_7:4",
        "\uff11:2",
        f"1:{1 << 63}",
        f"{1 << 63}:1",
    ):
        with pytest.raises(PositionError):
            Position.parse(text)


def test_l4_trim_keeps_positions() -> None:
    """L4: trimming and taking over change no position of what remains."""
    cluster = Cluster()
    for nonce in ("t1", "t2", "t3"):
        writer = leader(cluster, nonce)
        writer.add(nonce.encode())
        writer.run()
        writer.close()
        writer.run()
    before = read_log(cluster)
    trimming(cluster, before_segment=2).run()
    leader(cluster, "t4")
    assert read_log(cluster) == before[1:]


# -- L5, L6 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_l5_a_deposed_leader_confirms_nothing_afterwards(in_flight: int) -> None:
    """L5: whatever the takeover found under way is confirmed by nobody but the recovery; the next append says so."""
    cluster = Cluster()
    old = leader(cluster, "t1")
    for entry_id in range(in_flight):
        old.add(b"%d" % entry_id)
        old.deliver(SendAdd, "b1", entry_id)
    leader(cluster, "t2")
    old.add(b"late")
    old.run()
    assert isinstance(old.error, FencedError)
    assert old.confirmed == []
    assert old.error.unconfirmed == range(0, in_flight + 1)
    assert b"late" not in [payload for _, payload in read_log(cluster)]


def test_l5_an_old_leader_in_the_ledger_before_is_fenced_too() -> None:
    """L5, L1: the leader rolled, has not closed the previous ledger, and its last appends there are under way."""
    cluster = Cluster()
    old = leader(cluster, "t1")
    old.add(b"a")
    rolled(cluster, "r1")
    leader(cluster, "t2")
    old.run()
    assert isinstance(old.error, FencedError)
    assert old.confirmed == []


def test_l6_readers_cross_ledgers_in_order_and_resume() -> None:
    """L6: three ledgers of three leaders: every suffix is read from its position, without gap or duplicate."""
    cluster = Cluster()
    expected = []
    for number, nonce in enumerate(("t1", "t2", "t3"), start=1):
        writer = leader(cluster, nonce)
        for entry_id in range(number):
            writer.add(b"%d:%d" % (number, entry_id))
            writer.run()
            expected.append((Position(number, entry_id), b"%d:%d" % (number, entry_id)))
        writer.machine.publish()
        writer.run()
    assert read_log(cluster) == expected
    for place, (position, _) in enumerate(expected):
        assert read_log(cluster, after=position) == expected[place + 1 :]


def test_l6_an_empty_ledger_in_the_middle_is_crossed() -> None:
    """L6, R8: a takeover that appended nothing leaves an empty ledger behind."""
    cluster = Cluster()
    for nonce, payload in (("t1", b"a"), ("t2", None), ("t3", b"b")):
        writer = leader(cluster, nonce)
        if payload is not None:
            writer.add(payload)
            writer.run()
    leader(cluster, "t4")
    assert [payload for _, payload in read_log(cluster)] == [b"a", b"b"]
    assert cluster.metadata(2).last_entry_id == -1


def test_l6_list_keeps_its_order_with_any_ledger_ids() -> None:
    """L6: segments stand in the order in which they were added; ids need not grow."""
    log = LogMetadata(NAME).with_ledger(9, 1).with_ledger(3, 2).with_ledger(5, 3)
    assert [segment.ledger_id for segment in log.segments] == [9, 3, 5]
    assert [segment.number for segment in log.segments] == [1, 2, 3]
    assert log.trimmed_before(3).with_ledger(1, 4).segments[-1].number == 4
