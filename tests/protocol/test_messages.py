"""The messages between clients and bookies."""

from __future__ import annotations

import attrs

from replog.protocol.messages import LedgerRequest, Status


def test_only_one_status_means_absence() -> None:
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
        "METASTORE_DOUBTED": 12,
        "RECORD_OUTDATED": 13,
    }


def test_every_request_names_its_ledger_and_itself() -> None:
    """B7, T1: key, ledger and request id in each; a term in each that writes or fences."""
    for kind in LedgerRequest.__args__:
        names = [field.name for field in attrs.fields(kind)]
        assert names[:3] == ["request_id", "ledger_id", "key"]
