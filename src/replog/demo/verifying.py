"""Reading a log back through a client that knows nothing of those who wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replog.api import connect
from replog.demo.following import Follower
from replog.demo.input import Input
from replog.demo.options import LOG_NAME, client_options
from replog.demo.reports import Confirmed
from replog.demo.results import Reading
from replog.demo.verdict import Verification
from replog.demo.view import View
from replog.protocol.model import Position

Feed = Callable[[Position, Sequence[bytes]], None]


async def read_back(metastore: str, feed: Feed) -> None:
    """Gives all entries of the log, in order, through a client of its own. Raises as `LogReader` does."""
    async with connect(metastore, options=client_options()) as client, client.read_log(LOG_NAME) as reader:
        async for batch in reader.batches():
            feed(batch.first_position, batch.payloads())


async def verify(
    metastore: str, source: Input, confirmations: Sequence[Confirmed], follower: Follower, view: View
) -> Reading:
    """Reads the log back and compares it with the input, with what was confirmed, and with what the follower has read."""
    view.step("reading everything back through a fresh client")
    verification = Verification(source.lines(), confirmations)
    last = max(confirmations, key=lambda each: each.entries)

    def feed(first: Position, entries: Sequence[bytes]) -> None:
        verification.feed(first, entries)
        view.progress(verification.read, str(first), fraction=verification.read / max(last.entries, 1))

    await read_back(metastore, feed)
    findings = verification.finish()
    what = "NOT what was confirmed" if findings.faults else "exactly those confirmed, in order"
    view.done(f"read back {findings.read:,} entries: {what}", bad=bool(findings.faults))
    view.step("the follower reads to the end")
    followed = await follower.read_so_many(last.entries)
    reading = Reading(findings, followed.entries, followed.digest, followed.at_s - last.at_s)
    same = "NOT the same" if reading.followers_faults else "the same"
    view.done(f"the follower read {followed.entries:,} entries along: {same}", bad=bool(reading.followers_faults))
    return reading
