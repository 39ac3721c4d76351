"""A bookie's proofs of the last add confirmed, and their cost (R11)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from replog.abc import Storage
from replog.backends.files import storage as files
from replog.backends.lmdb import storage as lmdb
from replog.backends.memory import MemoryStorage
from replog.config import BookieOptions
from replog.errors import StorageUncertainError
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import AddRequest, Request, Response, Status, WriteLastAddConfirmedRequest
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.mutations import PutBatch, SetMarks
from replog.protocol.proofs import claimed, prove, proven
from replog.protocol.quorum import Quorum
from tests.bookie.disks import SmallStorage
from tests.bookie.test_server import KEY, each_kind, fence, poll, serving
from tests.kit import FaultyStorage

OPTIONS = BookieOptions(storage="memory")
DIGESTS = [Digest(digest_type, 1, b"password") for digest_type in DigestType]
each_digest = pytest.mark.parametrize("digest", DIGESTS, ids=lambda digest: digest.digest_type.name)


def a_batch(first: int, digest: Digest, count: int = 1) -> Batch:
    return batches.build(
        digest,
        ledger_id=1,
        first_entry_id=first,
        stride=1,
        payloads=[b"payload"] * count,
        last_add_confirmed=first - 1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=0,
    )


def add(first: int, digest: Digest) -> AddRequest:
    return AddRequest(0, 1, KEY, 1, a_batch(first, digest))


def proven_by(answer: Response, digest: Digest) -> int:
    assert answer.status is Status.OK
    record = LedgerMetadata(1, Quorum(1, 1, 1), digest.digest_type, "", (Fragment(0, ("b1",), 1),))
    return proven(answer.proof, digest, record)


@each_kind
@each_digest
async def test_fences_and_questions_are_answered_with_a_proof(is_instant: bool, digest: Digest) -> None:
    async with serving(OPTIONS, is_instant=is_instant) as served:
        assert proven_by(await served.ask(poll()), digest) == -1
        for first in range(4):
            assert not (await served.ask(add(first, digest))).proof, "adds need none"
        assert proven_by(await served.ask(poll()), digest) == 2
        explicit = prove(digest, 1, 1, 3)
        assert not (await served.ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, explicit))).proof
        assert (await served.ask(poll())).proof == (await served.ask(fence())).proof == explicit


@each_digest
async def test_a_long_poll_gets_the_proof_before_the_batch_is_durable(digest: Digest) -> None:
    """D1: a follower learns as soon as before; the number is true whatever becomes of the batch that carries it."""
    async with serving(OPTIONS) as served:
        await served.ask(add(0, digest))
        (waiting,) = served.asker.send(poll(-1, 10_000))
        served.asker.send(add(1, digest))
        assert proven_by(served.asker.answers[waiting], digest) == 0


@each_kind
@each_digest
@pytest.mark.parametrize("request_of", [poll, fence], ids=["question", "fence"])
async def test_a_restarted_bookie_reads_one_batch_for_its_proof(
    request_of: Callable[[], Request], digest: Digest, is_instant: bool
) -> None:
    """Once: then it has it. In a thread, if that may wait for a disk."""
    storage = FaultyStorage(MemoryStorage(), is_instant=is_instant)
    storage.inner.commit([PutBatch(a_batch(first, digest)) for first in range(4)])
    storage.inner.commit([SetMarks(1, None, 1, 1, prove(digest, 1, 1, 1))])
    async with serving(OPTIONS, storage=storage) as served:
        assert proven_by(await served.ask(request_of()), digest) == 2
        storage.read_errors[1] = StorageUncertainError("it is read no more")
        assert proven_by(await served.ask(poll()), digest) == 2
        assert proven_by(await served.ask(fence()), digest) == 2


@each_kind
@each_digest
@pytest.mark.parametrize("request_of", [poll, fence], ids=["question", "fence"])
async def test_unreadable_entry_is_not_proven(
    request_of: Callable[[], Request], digest: Digest, is_instant: bool
) -> None:
    """The best that can be proven is told, and no question waits for ever."""
    storage = FaultyStorage(MemoryStorage(), is_instant=is_instant)
    storage.inner.commit([PutBatch(a_batch(first, digest)) for first in range(4)])
    storage.inner.commit([SetMarks(1, None, 1, 1, prove(digest, 1, 1, 1))])
    storage.read_errors[1] = StorageUncertainError("damaged")
    async with serving(OPTIONS, storage=storage) as served:
        answer = await served.ask(request_of())
        assert proven_by(answer, digest) == 1
        assert answer.last_add_confirmed == 2, "the bare number stays as it was, and counts for nothing"
        await served.ask(WriteLastAddConfirmedRequest(0, 1, KEY, 2, prove(digest, 1, 1, 3)))
        assert proven_by(await served.ask(poll()), digest) == 3


def open_files(path: Path) -> Storage:
    return files.open_storage(str(path))


def open_lmdb(path: Path) -> Storage:
    return lmdb.open_storage(str(path))


@each_digest
@pytest.mark.parametrize("open_storage", [open_files, open_lmdb])
async def test_proofs_survive_restarts(open_storage: Callable[[Path], Storage], digest: Digest, tmp_path: Path) -> None:
    """Explicit ones verbatim, in the marks; heads are read again from what is stored."""
    explicit = prove(digest, 1, 1, 3)
    requests: list[Request] = [
        *(add(first, digest) for first in range(4)),
        WriteLastAddConfirmedRequest(0, 1, KEY, 1, explicit),
    ]
    wanted = [-1, 0, 1, 2, 3]
    for request, last in zip(requests, wanted, strict=True):
        with closing(open_storage(tmp_path / "storage")) as storage:
            async with serving(OPTIONS, storage=FaultyStorage(storage, is_instant=False)) as served:
                assert (await served.ask(request)).status is Status.OK
        with closing(open_storage(tmp_path / "storage")) as storage:
            async with serving(OPTIONS, storage=FaultyStorage(storage, is_instant=False)) as served:
                assert proven_by(await served.ask(poll()), digest) == last


@each_kind
@each_digest
async def test_a_full_disk_keeps_the_proof_of_a_refused_batch(digest: Digest, is_instant: bool) -> None:
    """R3, B5: what was accepted behind it stands on the marks that it raised."""
    storage = SmallStorage(MemoryStorage(), 150, is_instant=is_instant)  # for marks, not for a batch
    storage.tells_space = False
    async with serving(OPTIONS, storage=storage) as served:
        refused = await served.ask(add(5, digest))
        assert refused.status is Status.READ_ONLY
        assert proven_by(await served.ask(poll()), digest) == 4
    marks = storage.inner.marks(1)
    assert marks is not None
    assert (marks.last_add_confirmed, claimed(marks.proof)) == (4, 4)
