"""Telling a ledger's bookies that it was deleted, so that they look soon whether it still exists (B6).

A hint only: whoever does not hear it finds out at its next garbage collection. So nobody waits for an answer.
"""

from __future__ import annotations

from replog.client.channel import Answer
from replog.client.connections import Connections
from replog.config import ClientOptions
from replog.protocol.messages import AdminCommand, AdminRequest
from replog.protocol.model import LedgerMetadata


async def tell_deleted(metadata: LedgerMetadata, connections: Connections, options: ClientOptions) -> None:
    """Tells all bookies of the ledger with this record, once it is deleted. Returns when they were sent the hint, as far as they
    can be connected to without much waiting. If cancelled, some are not told."""
    bookie_ids = dict.fromkeys(each for fragment in metadata.fragments for each in fragment.ensemble)
    await connections.connect_most(bookie_ids, connections.patience_s)
    for bookie_id in bookie_ids:
        channel = connections.channel(bookie_id)
        if channel is not None:
            request = AdminRequest(next(channel.request_ids), AdminCommand.LEDGER_DELETED, metadata.ledger_id)
            channel.ask(request, _answered, None, options.read_timeout_s)


def _answered(_answer: Answer, _context: object) -> None:
    pass
