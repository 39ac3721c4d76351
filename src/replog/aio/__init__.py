"""replog for asyncio: the same nouns and verbs, arguments, results and errors as in `replog`.

    from replog import aio

    async with aio.embed("./wal") as client, client.write_log("orders") as log:
        position = await log.append(b"survives from here on")

trio runs as a guest of the event loop, in its thread. A cancelled call has the outcome that its docstring states. No
trio object is needed or returned.
"""

from replog.aio.client import Client, RunningMachine, connect, embed, serve_bookie, serve_repairs
from replog.aio.readers import Cursor, LedgerReader, LogReader
from replog.aio.writers import LedgerWriter, LogWriter

__all__ = [
    "Client",
    "Cursor",
    "LedgerReader",
    "LedgerWriter",
    "LogReader",
    "LogWriter",
    "RunningMachine",
    "connect",
    "embed",
    "serve_bookie",
    "serve_repairs",
]
