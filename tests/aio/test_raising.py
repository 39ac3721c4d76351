"""Whatever a verb of `replog.aio` raises is an error of replog, or asyncio's own cancellation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from replog import aio
from replog.aio.faces import FACES
from replog.runtime.faces import Face
from tests.aio.kit import under_asyncio
from tests.blocking.test_raising import is_made_by_reading
from tests.blocking.walking import OPTIONS, Machine, is_ours, verbs_of
from tests.kit import own_faces

Outcome = Callable[[Callable[[], Any]], Awaitable[BaseException | None]]


async def all_faces(client: Any) -> list[Face]:
    """One of each class that a program can get."""
    ledger = await client.create_ledger().open()
    await ledger.append(b"one")
    log = await client.write_log("log").open()
    await log.append(b"one")
    (remote,) = await client.admin.bookies()
    (own,) = client.bookies
    readers = [await client.open_ledger(ledger.ledger_id).open(), await client.read_log("log").open()]
    readers.append(await client.cursor("log", "mine").open())
    machine = await client.run_machine("waves", Machine, listen=()).open()
    found = [ledger, log, *readers, machine, remote, own, client.admin, client.jobs, client.cursors, client]
    assert {type(each) for each in found} == {
        face for face in own_faces(FACES).values() if not is_made_by_reading(face)
    }
    return found


async def used(call: Callable[[], Any]) -> None:
    """As a program does that uses what the verb gives, too."""
    found = call()
    if inspect.isawaitable(found):
        await found
    elif isinstance(found, AbstractAsyncContextManager):
        async with found:
            pass
    elif isinstance(found, AsyncIterator):
        await anext(found, None)


async def outcome_of(call: Callable[[], Any]) -> BaseException | None:
    try:
        await used(call)
    except Exception as error:
        return error
    return None


async def outcome_when_cancelled(call: Callable[[], Any]) -> BaseException | None:
    """Of a task that is cancelled when it has begun to wait."""
    task = asyncio.ensure_future(used(call))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return None
    return task.exception()


async def outcome_of_a_timeout(call: Callable[[], Any]) -> BaseException | None:
    """Of a call that has no time."""
    try:
        async with asyncio.timeout(0.001):
            await used(call)
    except TimeoutError:
        return None
    except Exception as error:
        return error
    return None


async def not_ours(faces: list[Face], outcome: Outcome) -> list[str]:
    told = []
    for face in faces:
        for name, call in verbs_of(face):
            error = await outcome(call)
            if error is not None and not is_ours(error):
                told.append(f"{type(face).__name__}.{name}: {error!r}")
    return told


@under_asyncio
async def test_open_object_raises_only_our_errors(tmp_path: Path) -> None:
    async with aio.embed(tmp_path, options=OPTIONS) as client:
        assert await not_ours(await all_faces(client), outcome_of) == []


@under_asyncio
async def test_closed_object_raises_only_our_errors(tmp_path: Path) -> None:
    async with aio.embed(tmp_path, options=OPTIONS) as client:
        faces = await all_faces(client)
        for face in faces[:-1]:
            if hasattr(face, "aclose"):
                await face.aclose()
        assert await not_ours(faces[:-1], outcome_of) == []
    assert await not_ours(faces, outcome_of) == []


@under_asyncio
async def test_cancelled_verb_raises_asyncio_or_replog_errors(tmp_path: Path) -> None:
    async with aio.embed(tmp_path / "cancelled", options=OPTIONS) as client:
        assert await not_ours(await all_faces(client), outcome_when_cancelled) == []
    async with aio.embed(tmp_path / "timed-out", options=OPTIONS) as client:
        assert await not_ours(await all_faces(client), outcome_of_a_timeout) == []
