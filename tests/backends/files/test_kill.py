"""Real processes that append and are killed with SIGKILL: what they acknowledged is there (B1)."""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replog.backends.files import FilesOptions, open_storage
from replog.testing.storage_exam import make_batch

COUNT = 4
SIZE_BYTES = 1500
OPTIONS = FilesOptions(journal_file_bytes=128 << 10, spare_files=1)

# Appends to one ledger after the other, drops old ones, fences as it goes; says on standard output what is durable.
WRITER = f"""
import os, sys
from replog.abc import DropLedger, PutBatch, SetMarks
from replog.backends.files import FilesOptions, open_storage
from replog.testing.storage_exam import make_batch

storage = open_storage(sys.argv[1], FilesOptions(journal_file_bytes={OPTIONS.journal_file_bytes}, spare_files=1))
ledger_id = max(storage.ledger_ids(), default=0) + 1
while True:
    for first in range(0, 40, {COUNT}):
        mutations = [PutBatch(make_batch(ledger_id, first, {COUNT}, size_bytes={SIZE_BYTES}))]
        if first == 0:
            mutations.append(DropLedger(ledger_id - 5))
        if first == 20:
            mutations.append(SetMarks(ledger_id, b"key", ledger_id))
        storage.commit(mutations)
        os.write(1, b"%d %d\\n" % (ledger_id, first))
    ledger_id += 1
"""


def kill_one(directory: Path, after_s: float) -> list[tuple[int, int]]:
    """Lets a writer run for this long after its first commit; returns what it said was durable."""
    command = [sys.executable, "-c", WRITER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        head = writer.stdout.readline()
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)
        said = head + writer.stdout.read()
    lines = said.decode().split("\n")[:-1]  # the last line may be torn
    return [(int(ledger_id), int(first)) for ledger_id, first in (line.split() for line in lines)]


def verify(directory: Path, acknowledged: set[tuple[int, int]]) -> None:
    with contextlib.closing(open_storage(str(directory), OPTIONS)) as storage:
        newest = max(ledger_id for ledger_id, _ in acknowledged)
        for ledger_id, first in acknowledged:
            found = storage.read(ledger_id, first + 1, 1, 0)
            if ledger_id > newest - 4:
                assert found == [make_batch(ledger_id, first, COUNT, size_bytes=SIZE_BYTES)]
            elif ledger_id <= newest - 5:
                assert found == []
            if first >= 20 and ledger_id > newest - 4:
                marks = storage.marks(ledger_id)
                assert marks is not None
                assert (marks.key, marks.fence_term) == (b"key", ledger_id)


def kill_often(directory: Path, kills: int) -> int:
    chance = random.Random(kills)
    acknowledged: set[tuple[int, int]] = set()
    for _ in range(kills):
        acknowledged.update(kill_one(directory, chance.random() * 0.05))
        verify(directory, acknowledged)
    return len(acknowledged)


@pytest.mark.crash
def test_what_was_acknowledged_survives_kills(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A few kills among all tests, many when `make crash` asks for them."""
    is_long = request.config.option.markexpr == "crash"
    kills = 200 if is_long else 5
    assert kill_often(tmp_path, kills) >= 4 * kills
