"""Reading a log back through a client that knows nothing of those who wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from replog.api import embed
from replog.demo.appending import LOG_NAME
from replog.demo.input import Input
from replog.demo.reports import Confirmed
from replog.demo.verdict import Findings, Verification
from replog.demo.view import View
from replog.protocol.model import Position

Feed = Callable[[Position, Sequence[bytes]], None]


async def read_back(directory: Path, bookies: int, feed: Feed) -> None:
    """Opens the bookies' files anew and gives all entries of the log, in order. Raises as `LogReader` does."""
    async with embed(directory, bookies=bookies) as client, client.read_log(LOG_NAME) as reader:
        async for batch in reader.batches():
            feed(batch.first_position, batch.payloads())


async def verify(
    directory: Path, bookies: int, source: Input, confirmations: Sequence[Confirmed], view: View
) -> Findings:
    """Reads the log back and compares it with the input and with what was confirmed."""
    verification = Verification(source.lines(), confirmations)
    confirmed = max((each.entries for each in confirmations), default=0)

    def feed(first: Position, entries: Sequence[bytes]) -> None:
        verification.feed(first, entries)
        view.progress(verification.read, str(first), fraction=verification.read / max(confirmed, 1))

    await read_back(directory, bookies, feed)
    return verification.finish()
