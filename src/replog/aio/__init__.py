"""replog for asyncio: the same nouns and verbs, arguments, results and errors as in `replog`.

    from replog import aio

    async with aio.embed("./wal") as client, client.write_log("orders") as log:
        position = await log.append(b"survives from here on")

trio runs as a guest of the event loop, in its thread. A cancelled call has the outcome that its docstring states. No
trio object is needed or returned.
"""

from replog.runtime.on_demand import on_demand

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "replog.aio.bookies": ["embed", "serve_bookie"],
        "replog.aio.administration": ["serve_repairs"],
        "replog.aio.client": ["Client", "connect"],
        "replog.aio.machines": ["RunningMachine"],
        "replog.aio.readers": ["Cursor", "LedgerReader", "LogReader"],
        "replog.aio.writers": ["LedgerWriter", "LogWriter"],
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
