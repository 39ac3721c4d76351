"""The same nouns and verbs for programs without trio: plain calls, `with` and `for`, from any number of threads.

    with replog.blocking.embed("./wal") as client, client.write_log("orders") as log:
        position = log.append(b"survives from here on")

Each client has one thread in which trio runs; leaving its block joins it.
"""

from replog.blocking.client import Client, RunningMachine, connect, embed, serve_bookie, serve_repairs
from replog.blocking.readers import Cursor, LedgerReader, LogReader
from replog.blocking.writers import LedgerWriter, LogWriter

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
