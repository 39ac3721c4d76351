"""A process that announces itself, is elected, and prints it: `python -m ... URL KEY`. It runs until it is killed."""

from __future__ import annotations

import sys

import trio

from replog.registry import Registry
from replog.testing.metastore_conformance.bench import ELECTED


async def run(url: str, root: str) -> None:
    """Announce `ROOT/live/member`, be elected at `ROOT/leader`, print it, and stay."""
    metastore = Registry().open_metastore(url)
    async with metastore.announce(f"{root}/live/member", b"member"), metastore.elect(f"{root}/leader", b"member"):
        sys.stdout.buffer.write(ELECTED + b"\n")
        sys.stdout.buffer.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(run, sys.argv[1], sys.argv[2])
