"""A client that does not know a ledger's password, and tries everything all the same (B7)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replog.protocol import batch as batches
from replog.protocol.digest import Digest, DigestType, ledger_key
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import RECOVERY_TERM, WRITER_TERM, LedgerMetadata
from replog.protocol.proofs import prove
from tests.simulator.clients import Client

if TYPE_CHECKING:
    from tests.simulator.facts import LedgerTruth

_GUESS = b"guessed"
_PLENTY = 1 << 20


def intrude(client: Client, truth: LedgerTruth) -> None:
    """Asks every bookie that knows the ledger's key for everything, with a wrong one."""
    key = ledger_key(truth.ledger_id, _GUESS)
    for bookie in client.setting.bookies.values():
        disk = bookie.disk.get(truth.ledger_id)
        if disk is None or disk.key is None or bookie.history is not None:
            continue  # it takes the first key that it is shown, also after it has forgotten one
        for kind, request in _requests(truth.record, key):
            client.call(
                bookie.name, kind, 1000 * truth.ledger_id, request, partial(_answered, client, bookie.name, truth, kind)
            )


def _requests(record: LedgerMetadata, key: bytes) -> list[tuple[str, LedgerRequest]]:
    ledger_id, stamp = record.ledger_id, record.last_fragment.term
    digest = Digest(DigestType.CRC32C, ledger_id, _GUESS)
    proof = prove(digest, ledger_id, stamp, _PLENTY)
    forged = batches.build(
        digest,
        ledger_id=ledger_id,
        first_entry_id=0,
        stride=record.quorum.stride,
        payloads=[b"forged"],
        last_add_confirmed=-1,
        stamp=WRITER_TERM,
        timestamp_ns=0,
        cumulative_length=6,
    )
    return [
        ("fence", FenceRequest(0, ledger_id, key, RECOVERY_TERM)),
        ("recovery-read", RecoveryReadRequest(0, ledger_id, key, RECOVERY_TERM, 0, stamp)),
        ("add", AddRequest(0, ledger_id, key, RECOVERY_TERM, forged, True, proof)),
        ("write-confirmed", WriteLastAddConfirmedRequest(0, ledger_id, key, WRITER_TERM, proof)),
        ("read", ReadRequest(0, ledger_id, key, 0, stamp, _PLENTY)),
    ]


def _answered(
    client: Client, bookie_id: str, truth: LedgerTruth, kind: str, response: Response | None, in_time: bool
) -> None:
    if response is None:
        return
    if response.status is Status.READ_ONLY:  # which bookies say before they look at anything
        client.world.count("a wrong password met a full bookie")
    elif response.status is Status.UNAUTHORIZED:
        client.world.count("a wrong password was refused")
    elif not truth.deleted:
        client.setting.oracle.fail(
            "B7", f"{bookie_id} answered {response.status.name} to a {kind} with a wrong password"
        )
