"""What the benchmarks of the storages write is what a writer would, and what they check is wrong when it is."""

from pathlib import Path

import pytest

from benchmarks.setting import NotMeasured
from benchmarks.storage.stores import STAMP, Kind, Source, Written, as_wal, check, fresh, in_turn, kinds, write
from replog.protocol.batch import build, check_damage
from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import DropLedger, PutBatch

MIB = 1 << 20


def test_a_batch_is_as_a_writer_builds_it() -> None:
    source = Source(10, 100)
    batch = source.batch(7, 3)
    check_damage(batch)
    assert batch == build(
        Digest(DigestType.CRC32C, 7, b""),
        ledger_id=7,
        first_entry_id=30,
        stride=1,
        payloads=source.payloads,
        last_add_confirmed=29,
        stamp=STAMP,
        timestamp_ns=0,
        cumulative_length=4000,
    )
    assert (batch.first_entry_id, batch.last_entry_id, batch.payloads()) == (30, 39, source.payloads)


def test_ledgers_take_turns_in_commits_of_a_mib() -> None:
    source = Source(100, 1024)
    commits = list(in_turn(source, [1, 2, 3], 21))
    assert [len(mutations) for _, mutations in commits] == [source.batches_per_commit] * 2 + [1]
    batches = [each.batch for _, mutations in commits for each in mutations if isinstance(each, PutBatch)]
    assert [each.ledger_id for each in batches] == [1, 2, 3] * 7
    assert [each.first_entry_id for each in batches[::3]] == list(range(0, 700, 100))
    assert sum(size for size, _ in commits) == 21 * 100 * 1024


def test_trimmed_log_drops_its_old_ledgers() -> None:
    mutations = [each for _, commit in as_wal(Source(1000, 1024), 300 * MIB) for each in commit]
    assert [each.ledger_id for each in mutations if isinstance(each, DropLedger)] == [1, 2]
    assert {each.batch.ledger_id for each in mutations if isinstance(each, PutBatch)} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: str(kind.name))
def test_store_is_not_measured_when_its_content_is_wrong(tmp_path: Path, kind: Kind) -> None:
    source = Source(10, 100)
    with fresh(tmp_path, "here") as directory:
        storage = kind.open(directory)
        try:
            written = write(storage, in_turn(source, [1], 5))
            check(storage, source, 1, 4)
            for expected, number in ((Source(10, 100), 4), (source, 5)):
                with pytest.raises(NotMeasured, match="not what was written"):
                    check(storage, expected, 1, number)
        finally:
            storage.close()
    assert list(tmp_path.iterdir()) == []
    assert written.payload_bytes == 5000
    assert written.figures()["mib_per_s"] >= written.figures()["wall_mib_per_s"] > 0


def test_figures_of_parts_are_added_up() -> None:
    written = Written(2 * MIB, [1.0, 3.0], 1.0, 5.0)
    written.add(Written(2 * MIB, [4.0], 2.0, 5.0))
    figures = written.figures()
    assert (figures["mib_per_s"], figures["wall_mib_per_s"], figures["p50_us"], figures["cpu_us"]) == (
        0.5,
        0.4,
        3e6,
        1e6,
    )
