"""7a: real processes that append, compact and are killed with SIGKILL: what they acknowledged is there (B1, B3, B6)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

from replog.abc import Storage
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import open_storage
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, DropLedger, PutBatch, SetMarks
from replog.testing.storage_conformance import make_batch
from tests.forks import Forked

COUNT = 4
BATCHES = 12  # of one ledger
WIDTH = 3  # ledgers are written in turn, so many at a time
KEPT = 9  # older ones are dropped


def options_of(journal_dir: str) -> FilesTuning:
    return FilesTuning(
        journal_file_bytes=64 << 10,
        journal_dir=journal_dir,
        spare_files=1,
        fill_ahead_bytes=16 << 10,
        flush_bytes=150 << 10,
        open_files_max=2,
        ledger_cache_bytes=1 << 20,
        entry_log_bytes=64 << 10,
        compaction_bytes_per_s=0,
        minor_compaction_threshold=0.7,
        minor_compaction_interval_s=0.03,
        major_compaction_interval_s=0.07,
    )


def batch_of(ledger_id: int, at: int) -> Batch:
    """The at-th batch of a ledger: all that a writer ever stores follows from these two numbers."""
    size_bytes = (40, 1500, 300, 2500)[(ledger_id + at) % 4]
    return make_batch(ledger_id, at * COUNT, COUNT, size_bytes=size_bytes, last_add_confirmed=max(-1, (at - 1) * COUNT))


def write(directory: str, journal_dir: str) -> None:
    """The writer's life: says on standard output what is durable. Runs in a process of its own, until it is killed."""
    storage = open_storage(directory, options_of(journal_dir))
    base = max(storage.ledger_ids(), default=0) + 1
    while True:
        storage.compact(is_major=base % 2 == 0)
        ledgers = range(base, base + WIDTH)
        for at in range(BATCHES):
            for ledger_id in ledgers:
                storage.commit([PutBatch(batch_of(ledger_id, at))])
                _say(f"put {ledger_id} {at}")
            if at == BATCHES // 2:
                storage.commit([SetMarks(each, b"key %d" % each, each, BATCHES * COUNT + each) for each in ledgers])
                for ledger_id in ledgers:
                    _say(f"marks {ledger_id} 0")
        for ledger_id in range(max(1, base - KEPT), base - KEPT + WIDTH):
            storage.commit([DropLedger(ledger_id)])
            _say(f"drop {ledger_id} 0")
        base += WIDTH


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


@attrs.define
class Acknowledged:
    """What a writer said before it was killed, and what it may have been doing."""

    put: set[tuple[int, int]] = attrs.field(factory=set)
    marked: set[int] = attrs.field(factory=set)
    dropped: set[int] = attrs.field(factory=set)
    kinds: Counter[str] = attrs.field(factory=Counter)

    def add(self, said: str) -> None:
        for line in said.split("\n")[:-1]:  # the last line may be torn
            kind, ledger_id, at = line.split()
            self.kinds[kind] += 1
            if kind == "put":
                self.put.add((int(ledger_id), int(at)))
            elif kind == "marks":
                self.marked.add(int(ledger_id))
            else:
                self.dropped.add(int(ledger_id))

    def check(self, storage: Storage) -> None:
        """Byte for byte. Of the ledger that was to be dropped next nothing is known."""
        listed = set(storage.ledger_ids())
        newest = max((ledger_id for ledger_id, _ in self.put), default=0)
        for ledger_id in self.dropped:
            assert ledger_id not in listed
            assert storage.read(ledger_id, 0, 1, 0) == []
            marks = storage.marks(ledger_id)
            assert marks is not None
            assert marks.fence_term == DELETED_TERM
        unsure = set(range(1, newest + 1)) - listed - self.dropped
        assert len(unsure) <= 1, "more than the one deletion under way was done"
        self.dropped |= unsure
        kept = {ledger_id for ledger_id, _ in self.put} - self.dropped
        for ledger_id in kept:
            places = sorted(at for ledger, at in self.put if ledger == ledger_id)
            found = storage.read(ledger_id, 0, 1, 1 << 40)
            assert found[: len(places)] == [batch_of(ledger_id, at) for at in places]
            assert len(found) <= len(places) + 1, "more than the one commit under way was done"
            marks = storage.marks(ledger_id)
            assert marks is not None
            assert marks.last_entry_id >= places[-1] * COUNT + COUNT - 1
            if ledger_id in self.marked:
                assert (marks.key, marks.fence_term) == (b"key %d" % ledger_id, ledger_id)
                assert marks.last_add_confirmed == BATCHES * COUNT + ledger_id
        self.put = {(ledger_id, at) for ledger_id, at in self.put if ledger_id in kept}


def kill_one(directory: Path, journal_dir: str, chance: random.Random) -> str:
    """Lets a writer run for a while after its first commit, or hardly into its start; returns what it said."""
    command = [sys.executable, "-c", WRITER, str(directory), journal_dir]
    with Forked(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        head = b""
        if chance.random() < 0.8:
            head = writer.stdout.readline()
            time.sleep(chance.random() * 0.25)
        else:
            time.sleep(0.1 + chance.random() * 0.3)
        writer.send_signal(signal.SIGKILL)
        return (head + writer.stdout.read()).decode()


WRITER = """
import sys
from tests.backends.files.test_kill import write
write(*sys.argv[1:])
"""


@pytest.mark.sized
@pytest.mark.crash
@pytest.mark.parametrize("where", [pytest.param("inside", marks=pytest.mark.long(is_sampled=False)), "elsewhere"])
def test_acknowledged_entries_survive_kills(where: str, tmp_path: Path, is_long: bool) -> None:
    """More kills than planned if the writers had no time for something: how much they do depends on the machine."""
    kills = 120 if is_long else 3
    journal_dir = "" if where == "inside" else str(tmp_path / "journal")
    directory = tmp_path / "storage"
    chance = random.Random(where)
    acknowledged = Acknowledged()
    removed_files = copied_batches = 0.0
    for done in range(100 * kills):
        has_seen_all = bool(acknowledged.kinds["put"] >= 20 * kills and acknowledged.kinds["drop"])
        if done >= kills and has_seen_all and removed_files and copied_batches:
            break
        acknowledged.add(kill_one(directory, journal_dir, chance))
        with contextlib.closing(open_storage(str(directory), options_of(journal_dir))) as storage:
            acknowledged.check(storage)
            storage.compact(is_major=True)
            acknowledged.check(storage)
            statistics = storage.statistics()
            removed_files += statistics["removed_files"]
            copied_batches += statistics["copied_batches"]
    assert acknowledged.kinds["put"] >= 20 * kills
    assert acknowledged.kinds["drop"] > 0
    assert removed_files > 0
    assert copied_batches > 0
