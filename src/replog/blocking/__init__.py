"""The same nouns and verbs for programs without trio: plain calls, `with` and `for`, from any number of threads.

    with replog.blocking.embed("./wal") as client, client.write_log("orders") as log:
        position = log.append(b"survives from here on")

Each client has one thread in which trio runs; leaving its block joins it.
"""

from replog.runtime.on_demand import on_demand

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "replog.blocking.bookies": ["embed", "serve_bookie"],
        "replog.blocking.administration": ["serve_repairs"],
        "replog.blocking.client": ["Client", "connect"],
        "replog.blocking.machines": ["RunningMachine"],
        "replog.blocking.readers": ["Cursor", "LedgerReader", "LogReader"],
        "replog.blocking.writers": ["LedgerWriter", "LogWriter"],
    },
)

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
