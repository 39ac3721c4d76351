"""The process of a leader: `python -m replog.demo.leader CONFIG`, with CONFIG as JSON.

Takes the log over, replays it, and appends the input's lines from there on. Reports on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import attrs
import cattrs
import trio

from replog.api import Client, connect
from replog.demo.appending import Appender, Quota
from replog.demo.input import Input
from replog.demo.observing import Observer
from replog.demo.options import LOG_NAME, QUORUM, client_options
from replog.demo.reports import Closed, Connected, Fenced, Replayed, Report, TakenOver, encode
from replog.errors import FencedError, ReplogError
from replog.protocol.model import Position


@attrs.frozen
class LeaderConfig:
    """What a leader is told. `entries` and `seconds` are its quota; without them it appends until it is stopped."""

    metastore: str
    input_path: str | None = None
    entries: int | None = None
    seconds: float | None = None
    roll_bytes: int | None = None

    def encode(self) -> str:
        """As the argument of the command."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def decode(cls, text: str) -> LeaderConfig:
        """Reads it back."""
        return cattrs.structure(json.loads(text), cls)


class Leader:
    """Leads the log, and tells of it."""

    def __init__(self, config: LeaderConfig, reports: trio.abc.SendStream) -> None:
        self._config = config
        self._reports = reports
        self._observer = Observer()
        self._appender: Appender | None = None

    async def lead(self) -> None:
        """Until the quota is reached, or it is deposed, which is a good end too. Raises other `ReplogError`."""
        config = self._config
        options = client_options(config.roll_bytes)
        async with connect(
            config.metastore, options=options, quorum=QUORUM, registry=self._observer.registry()
        ) as client:
            await self._tell(Connected(len(await client.remote_bookies())))
            try:
                await self._append(client)
            except FencedError as error:
                if self._appender is None:
                    raise
                await self._tell_doubts(self._appender, error)

    async def _append(self, client: Client) -> None:
        config = self._config
        source = Input(Path(config.input_path) if config.input_path is not None else None)
        async with client.write_log(LOG_NAME) as log:
            event = self._observer.taken_over()
            await self._tell(TakenOver(event.segment, event.recovered, event.duration_s))
            entries = await _replay(client)
            lines = source.lines(entries)
            await self._tell(Replayed(entries))
            self._appender = Appender(log, lines, entries, self._tell)
            await self._appender.run(Quota(config.entries, config.seconds))
        await self._tell(Closed(self._appender.confirmed))

    async def _tell(self, report: Report) -> None:
        for replaced in self._observer.take_replaced():
            await self._reports.send_all(encode(replaced))
        await self._reports.send_all(encode(report))

    async def _tell_doubts(self, appender: Appender, error: FencedError) -> None:
        """What is confirmed of all that was pushed is what the error doesn't name; that too is checked by reading back."""
        now = time.monotonic()
        doubts = [position for position in error.positions if isinstance(position, Position)]
        await appender.tell_what_remains(len(doubts))
        if doubts:
            await self._tell(Fenced(doubts[0], doubts[-1], len(doubts), now))


async def _replay(client: Client) -> int:
    """Reads the whole log, as an application would to get its state back; returns how many entries there are."""
    entries = 0
    async with client.read_log(LOG_NAME) as reader:
        async for batch in reader.batches():
            entries += len(batch.payloads())
    return entries


async def _main(config: LeaderConfig) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdout.fileno())) as reports:
        await Leader(config, reports).lead()


def main() -> None:
    """The process."""
    try:
        trio.run(_main, LeaderConfig.decode(sys.argv[1]))
    except ReplogError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
