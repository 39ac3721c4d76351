"""Real processes that append and are killed with SIGKILL: what they acknowledged is there (B1)."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replog.abc import Doubt
from replog.backends.lmdb import maintenance
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.storage import open_storage
from replog.protocol.mutations import DELETED_TERM
from replog.testing.storage_conformance import make_batch
from tests.forks import Forked

COUNT = 4
SIZE_BYTES = 1500
KEPT = 4  # ledgers, before the one that is written
OPTIONS = LMDBStorageTuning(map_bytes=1 << 20)  # so that it grows again and again

# Appends to one ledger after the other, drops old ones, fences as it goes; says on standard output what is durable.
WRITER = f"""
import os, sys
from replog.abc import DropLedger, PutBatch, SetMarks
from replog.backends.lmdb.storage import open_storage
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.testing.storage_conformance import make_batch

storage = open_storage(sys.argv[1], LMDBStorageTuning(map_bytes={OPTIONS.map_bytes}))
ledger_id = max(storage.ledger_ids(), default=0) + 1
while True:
    for first in range(0, 40, {COUNT}):
        mutations = [PutBatch(make_batch(ledger_id, first, {COUNT}, size_bytes={SIZE_BYTES}, last_add_confirmed=first - 1))]
        if first == 0:
            mutations.append(DropLedger(ledger_id - {KEPT + 1}))
        if first == 20:
            mutations.append(SetMarks(ledger_id, b"key", ledger_id, first))
        storage.commit(mutations)
        os.write(1, b"%d %d\\n" % (ledger_id, first))
    ledger_id += 1
"""


def kill_one(directory: Path, after_s: float) -> list[tuple[int, int]]:
    """Lets a writer run for this long after its first commit; returns what it said was durable."""
    command = [sys.executable, "-c", WRITER, str(directory)]
    with Forked(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        head = writer.stdout.readline()
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)
        said = head + writer.stdout.read()
    lines = said.decode().split("\n")[:-1]  # the last line may be torn
    return [(int(ledger_id), int(first)) for ledger_id, first in (line.split() for line in lines)]


def verify(directory: Path, acknowledged: set[tuple[int, int]]) -> None:
    with contextlib.closing(open_storage(str(directory), OPTIONS)) as storage:
        assert storage.doubt() == Doubt(), "a kill weakens nothing (B8)"
        newest = max(ledger_id for ledger_id, _ in acknowledged)
        for ledger_id, first in acknowledged:
            found = storage.read(ledger_id, first + 1, 1, 0)
            marks = storage.marks(ledger_id)
            assert marks is not None
            if ledger_id > newest - KEPT:
                batch = make_batch(ledger_id, first, COUNT, size_bytes=SIZE_BYTES, last_add_confirmed=first - 1)
                assert found == [batch]
                assert marks.last_entry_id >= first + COUNT - 1
                assert marks.last_add_confirmed >= (first if first == 20 else first - 1)
                if first >= 20:
                    assert (marks.key, marks.fence_term) == (b"key", ledger_id)
            elif ledger_id <= newest - KEPT - 1:
                assert found == []
                assert marks.fence_term == DELETED_TERM
        storage.scrub()
        assert storage.damage() == []


def kill_often(directory: Path, kills: int) -> int:
    """More often if the writers were too slow to do something."""
    chance = random.Random(kills)
    acknowledged: set[tuple[int, int]] = set()
    for done in range(10 * kills):
        if done >= kills and len(acknowledged) >= 4 * kills:
            break
        acknowledged.update(kill_one(directory, chance.random() * 0.05))
        verify(directory, acknowledged)
    return len(acknowledged)


@pytest.mark.sized
@pytest.mark.crash
def test_acknowledged_entries_survive_kills(tmp_path: Path, is_long: bool) -> None:
    kills = 200 if is_long else 5
    assert kill_often(tmp_path, kills) >= 4 * kills


# Stores a ledger of very many batches, deletes it, says so when some are removed, and waits to be killed.
DROPPER = """
import sys
from replog.abc import DropLedger, PutBatch, SetMarks
from replog.backends.lmdb import maintenance
from replog.backends.lmdb.storage import open_storage
from replog.testing.storage_conformance import make_batch

maintenance._REST_FACTOR = 1e6
storage = open_storage(sys.argv[1])
for first in range(0, 10_000, 1000):
    storage.commit([PutBatch(make_batch(1, at, 1)) for at in range(first, first + 1000)])
storage.commit([PutBatch(make_batch(2, 0))])
storage.commit([DropLedger(1)])
while not storage.statistics()["removed_pieces"]:
    pass
print("dropped", flush=True)
sys.stdin.read()
"""


@pytest.mark.crash
def test_half_removed_ledger_is_removed_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_REST_FACTOR", 1e6)  # here too: one piece, and then a rest that outlasts the test
    command = [sys.executable, "-c", DROPPER, str(tmp_path)]
    with Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"dropped\n"
        writer.send_signal(signal.SIGKILL)
    with contextlib.closing(open_storage(str(tmp_path))) as storage:
        assert storage.ledger_ids() == [2]
        assert storage.read(1, 9_999, 1, 0) == []
        marks = storage.marks(1)
        assert marks is not None
        assert marks.fence_term == DELETED_TERM
        before = storage.statistics()
        assert before["deleted_ledgers_to_remove"] == 1, "10 000 batches are removed in pieces, with rests between"
        storage.compact()
        after = storage.statistics()
        assert after["deleted_ledgers_to_remove"] == 0
        assert after["live_bytes"] < before["live_bytes"] / 10
        assert storage.read(2, 0, 1, 0) == [make_batch(2, 0)]
