"""A log that is written, followed, and deleted again and again."""

from __future__ import annotations

import trio

from replog.api import Client
from replog.errors import LogNotFoundError, TrimmedError
from replog.log.log_options import LogOptions
from replog.protocol.model import Position
from tests.simulator.shells.world import JudgedWorld

SHORT_LIVED_LOG = "short-lived"


class ShortLived:
    """The actors on that log, and the known facts about it."""

    def __init__(self, world: JudgedWorld) -> None:
        self.world = world
        self.deletion_failed = False  # then it may have left ledgers behind
        self._known: dict[Position, bytes] = {}  # what stood in logs of that name, of all times

    async def write(self, client: Client, process: str) -> None:
        """Writes to a log that others delete."""
        async with client.write_log(SHORT_LIVED_LOG, options=LogOptions(custom={"process": process})) as log:
            for number in range(20):
                data = b"%s#%d" % (process.encode(), number)
                self._stands(await log.append(data), data)
                if number % 3 == 2:
                    await log.roll()
                await trio.sleep(0.05)

    def _stands(self, position: Position, data: bytes) -> None:
        """No position ever means two records, not even in two logs of one name (L4)."""
        if self._known.setdefault(position, data) != data:
            self.world.violated("L4", f"{position} of a deleted log is {data!r}, and was {self._known[position]!r}")

    async def read(self, client: Client, process: str) -> None:
        """Follows it, until it is deleted: then what comes is told to be of another log, or there is none."""
        after: Position | None = None
        try:
            with trio.move_on_after(2):
                async with client.read_log(SHORT_LIVED_LOG, follow=True) as reader:
                    async for record in reader:
                        if after is not None and record.position <= after:
                            self.world.violated("L6", f"{record.position} of the short-lived log came after {after}")
                        after = record.position
                        self._stands(record.position, record.data)
                        self.world.count("short-lived record read")
        except TrimmedError as error:
            self.world.count("short-lived log begun anew under a reader")
            begins_at = error.first_available
            if after is not None and isinstance(begins_at, Position) and begins_at <= after:
                self.world.violated("L4", f"a log begins anew at {begins_at}, and {after} was read before")
            raise

    async def delete(self, client: Client, process: str) -> None:
        """Deletes it."""
        is_done = False
        try:
            await client.delete_log(SHORT_LIVED_LOG)
            is_done = True
            self.world.count("log deleted")
        except LogNotFoundError:
            is_done = True
        finally:
            self.deletion_failed = self.deletion_failed or not is_done
