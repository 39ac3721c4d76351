"""A program that needs nothing but `pip install replog`: the three faces, both storages, TCP."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import trio

import replog
import replog.aio
import replog.blocking


async def by_trio(directory: str) -> None:
    async with replog.embed(directory) as client:
        async with client.write_log("orders") as log:
            await log.append(b"by trio")


async def by_asyncio(directory: str) -> None:
    async with replog.aio.embed(directory) as client:
        async with client.write_log("orders") as log:
            await log.append(b"by asyncio")


def by_threads(directory: str) -> None:
    with replog.blocking.embed(directory) as client:
        with client.write_log("orders") as log:
            log.append(b"by threads")
        with client.read_log("orders") as reader:
            print(*[record.data.decode() for record in reader], sep="\n")


async def over_tcp(directory: Path, storage: str) -> None:
    metastore = f"lmdb:{directory / 'metadata'}"
    options = replog.BookieOptions(listen=("tcp:127.0.0.1:0",), storage=storage)
    config = replog.BookieConfig(directory=str(directory / "bookie"), metastore=metastore, options=options)

    async def append() -> None:
        one = replog.Quorum(1, 1, 1)
        async with replog.connect(metastore) as client, client.write_log("orders", quorum=one) as log:
            print(f"over TCP to {storage}:", await log.append(b"sent"))

    async with replog.serve_bookie(config):
        # A trio run of its own: clients in this one would reach the bookie without TCP.
        await trio.to_thread.run_sync(trio.run, append)


def main() -> None:
    directory = Path(sys.argv[1])
    for each in ("one", "files", "lmdb"):
        (directory / each).mkdir()
    trio.run(by_trio, str(directory / "one"))
    asyncio.run(by_asyncio(str(directory / "one")))
    by_threads(str(directory / "one"))
    for storage in ("files", "lmdb"):
        trio.run(over_tcp, directory / storage, storage)


if __name__ == "__main__":
    main()
