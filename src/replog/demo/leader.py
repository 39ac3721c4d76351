"""The leader's process in act one: `python -m replog.demo.leader CONFIG`, with CONFIG as JSON.

Takes the log over, replays it, and appends the input's lines from there on. Reports on standard output; ends at once when
its standard input does, for then the process that watches it is gone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import attrs
import cattrs
import trio

from replog.api import Client, embed
from replog.demo.appending import CLIENT_OPTIONS, LOG_NAME, Appender, Quota
from replog.demo.input import Input
from replog.demo.observing import Observer
from replog.demo.reports import Closed, Opened, Replayed, Report, TakenOver, encode
from replog.errors import ReplogError
from replog.nursery import open_service_nursery

_ORPHANED = 3  # the exit status, which nobody is there to see


@attrs.frozen
class LeaderConfig:
    """What a leader is told."""

    directory: str
    bookies: int
    input_path: str | None
    entries: int | None
    seconds: float | None

    def encode(self) -> str:
        """As the argument of the command."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def decode(cls, text: str) -> LeaderConfig:
        """Reads it back."""
        return cattrs.structure(json.loads(text), cls)


async def replay(client: Client) -> int:
    """Reads the whole log, as an application would to get its state back; returns how many entries there are."""
    entries = 0
    async with client.read_log(LOG_NAME) as reader:
        async for batch in reader.batches():
            entries += len(batch.payloads())
    return entries


async def lead(config: LeaderConfig, reports: trio.abc.SendStream) -> None:
    """Leads the log until the quota is reached. Raises `ReplogError` if it can't."""

    async def tell(report: Report) -> None:
        await reports.send_all(encode(report))

    observer = Observer()
    source = Input(Path(config.input_path) if config.input_path is not None else None)
    async with embed(
        config.directory, bookies=config.bookies, options=CLIENT_OPTIONS, registry=observer.registry()
    ) as client:
        await tell(Opened(len(client.bookies)))
        async with client.write_log(LOG_NAME) as log:
            event = observer.taken_over()
            await tell(TakenOver(event.segment, event.recovered, event.duration_s))
            entries = await replay(client)
            lines = source.lines(entries)
            await tell(Replayed(entries))
            appender = Appender(log, lines, entries, tell)
            await appender.run(Quota(config.entries, config.seconds))
        await tell(Closed(appender.confirmed))


async def _end_with_parent() -> NoReturn:
    lifeline = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    while await lifeline.receive_some():
        pass
    os._exit(_ORPHANED)  # as abrupt as a kill: the log bears that


async def _main(config: LeaderConfig) -> None:
    async with open_service_nursery() as nursery, trio.lowlevel.FdStream(os.dup(sys.stdout.fileno())) as reports:
        nursery.start_soon(_end_with_parent)
        await lead(config, reports)


def main() -> None:
    """The process."""
    try:
        trio.run(_main, LeaderConfig.decode(sys.argv[1]))
    except ReplogError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
