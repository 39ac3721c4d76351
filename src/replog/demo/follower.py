"""The process of the follower: `python -m replog.demo.follower METASTORE`. Reads the log along, for ever, and reports."""

from __future__ import annotations

import os
import sys
import time

import trio

from replog.api import connect
from replog.demo.options import LOG_NAME, client_options
from replog.demo.reports import Connected, Followed, encode
from replog.demo.verdict import EntriesDigest
from replog.errors import ReplogError


async def follow(metastore: str, reports: trio.abc.SendStream) -> None:
    """Reads the log from its first entry, also before there is one. Raises `ReplogError` if it can't."""
    digest = EntriesDigest()
    entries = 0
    async with connect(metastore, options=client_options()) as client:
        await reports.send_all(encode(Connected(len(await client.remote_bookies()))))
        async with client.read_log(LOG_NAME, follow=True) as reader:
            async for batch in reader.batches():
                payloads = batch.payloads()
                digest.update(payloads)
                entries += len(payloads)
                await reports.send_all(encode(Followed(entries, digest.hexdigest(), time.monotonic())))


async def _main(metastore: str) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdout.fileno())) as reports:
        await follow(metastore, reports)


def main() -> None:
    """The process."""
    try:
        trio.run(_main, sys.argv[1])
    except ReplogError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
