"""The one process of a machine that keeps entries on its disk. Web workers and others reach it by a Unix socket.

python examples/web_host.py DIRECTORY
"""

from __future__ import annotations

import signal
import sys

import trio

import replog


async def main(directory: str) -> None:
    options = replog.BookieOptions(listen=(f"unix:{directory}/bookie.sock",))
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with replog.embed(directory, bookie_options=options):
            print("serving", flush=True)
            await anext(aiter(signals))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    trio.run(main, sys.argv[1])
