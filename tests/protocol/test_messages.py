"""What clients and bookies say to each other."""

from __future__ import annotations

import attrs

from replog.protocol.effects import SendAdd
from replog.protocol.messages import AddRequest, FenceRequest, LedgerRequest, ReadRequest, Response, Status, size_of
from tests.protocol.driving import Cluster


def test_the_size_of_a_message_counts_batches_it_keeps_alive() -> None:
    """W6: what the bounds of queues add up."""
    writer = Cluster().writer()
    writer.add(bytes(10_000))
    batch = writer.find(SendAdd)[0].batch
    empty = size_of(FenceRequest(1, 7, b"", 2))
    assert 0 < empty <= 1000
    assert size_of(ReadRequest(1, 7, b"", 0, 1, 1 << 20)) == size_of(Response(1, Status.OK)) == empty
    assert size_of(AddRequest(1, 7, b"", 1, batch)) == empty + len(batch.data)
    assert size_of(Response(1, Status.OK, batches=(batch, batch))) == empty + 2 * len(batch.data)


def test_only_one_status_says_that_something_is_absent() -> None:
    """R4: a new status is a doubt until somebody decides otherwise; their numbers stand in formats."""
    assert {status.name: status.value for status in Status} == {
        "OK": 0,
        "NO_ENTRY": 1,
        "UNKNOWN": 2,
        "FENCED": 3,
        "CONFLICT": 4,
        "UNAUTHORIZED": 5,
        "READ_ONLY": 6,
        "BAD_REQUEST": 7,
        "TOO_BUSY": 8,
        "NO_ENTRY_IN_DOUBT": 9,
        "NO_ENTRY_AFTER_LOSS": 10,
        "IN_DOUBT": 11,
    }


def test_every_request_names_its_ledger_and_itself() -> None:
    """B7, T1: key, ledger and request id in each; a term in each that writes or fences."""
    for kind in LedgerRequest.__args__:
        names = [field.name for field in attrs.fields(kind)]
        assert names[:3] == ["request_id", "ledger_id", "key"]
