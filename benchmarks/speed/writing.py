"""Cases: appending, from the application's call to the bookies' memory and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from benchmarks.speed.setting import Case, Work, embedded

_BOOKIES = 3
_ENTRY_BYTES = 100


def _payloads(count: int, entry_bytes: int = _ENTRY_BYTES) -> list[bytes]:
    return [number.to_bytes(4, "little") * (entry_bytes // 4) for number in range(count)]


@asynccontextmanager
async def _push(directory: Path) -> AsyncIterator[Work]:
    rounds, payloads = 3, _payloads(400)

    async with embedded(directory, _BOOKIES) as client, client.write_log("speed") as log:

        async def run(payloads: list[bytes]) -> None:
            for _ in range(rounds):
                for data in payloads:
                    log.push_nowait(data)
                await log.flush()

        yield Work(lambda: payloads, run, rounds * len(payloads))


@asynccontextmanager
async def _extend(count: int, entry_bytes: int, rounds: int, directory: Path) -> AsyncIterator[Work]:
    payloads = _payloads(count, entry_bytes)

    async with embedded(directory, _BOOKIES) as client, client.write_log("speed") as log:

        async def run(payloads: list[bytes]) -> None:
            for _ in range(rounds):
                await log.extend(payloads)

        yield Work(lambda: payloads, run, rounds * count, rounds * count * entry_bytes if rounds == 1 else 0)


@asynccontextmanager
async def _append(directory: Path) -> AsyncIterator[Work]:
    payloads = _payloads(80)

    async with embedded(directory, _BOOKIES) as client, client.write_log("speed") as log:

        async def run(payloads: list[bytes]) -> None:
            for data in payloads:
                await log.append(data)

        yield Work(lambda: payloads, run, len(payloads))


@asynccontextmanager
async def _tasks(directory: Path) -> AsyncIterator[Work]:
    tasks, payloads = 50, _payloads(10)

    async with embedded(directory, _BOOKIES) as client, client.write_log("speed") as log:

        async def one() -> None:
            for data in payloads:
                await log.append(data)

        async def run(_: object) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(one)

        yield Work(lambda: None, run, tasks * len(payloads))


@asynccontextmanager
async def _ledgers(directory: Path) -> AsyncIterator[Work]:
    ledgers, payloads = 20, _payloads(4)

    async with embedded(directory, _BOOKIES) as client, trio.open_nursery() as writers:
        opened = []

        async def keep(task_status: trio.TaskStatus[None]) -> None:
            async with client.create_ledger() as writer:
                opened.append(writer)
                task_status.started()
                await trio.sleep_forever()

        for _ in range(ledgers):
            await writers.start(keep)

        async def run(_: object) -> None:
            for data in payloads:
                for writer in opened:
                    writer.push_nowait(data)
                for writer in opened:
                    await writer.flush()

        yield Work(lambda: None, run, ledgers * len(payloads))
        writers.cancel_scope.cancel()


CASES = (
    Case("push", "log.push_nowait of 100 B, 400 and then flush; three bookies in memory", _push),
    Case("extend", "log.extend of 1000 x 100 B; three bookies in memory", partial(_extend, 1000, 100, 5)),
    Case(
        "extend-large", "log.extend of 16 x 16 KiB, a batch; three bookies in memory", partial(_extend, 16, 16 << 10, 1)
    ),
    Case("append", "log.append of 100 B, one at a time: each is a batch; three bookies in memory", _append),
    Case("tasks", "the same from 50 tasks at once", _tasks),
    Case("ledgers", "20 ledgers in turn, push_nowait of 100 B; three bookies in memory", _ledgers),
)
