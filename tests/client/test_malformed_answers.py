"""One bookie of three whose answers make no sense: to a writer, readers, a recovery and an administrator.

It counts as one that failed: nobody else's result changes, nothing hangs, and no exception leaves a callback (R4, R11, D2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import BookieError
from replog.protocol.batch import Batch, decode
from replog.protocol.digest import DigestType
from replog.protocol.messages import AddRequest, AdminRequest, FenceRequest, Request, Response, Status
from replog.protocol.model import LedgerState
from tests.kit import Cluster, cluster, settle
from tests.protocol.bookies import proof_of
from tests.protocol.test_answers import NONSENSE, a_batch

QUICK = ClientTuning(read_timeout_s=2.0, speculative_read_after_s=0.5, bookie_retry_after_s=1.0)
PASSWORD = b"open sesame"
LAST = 7
WANTED = [b"%d" % number for number in range(LAST + 1)]

Alter = Callable[[Request, Response], Response]
Scene = Callable[[Cluster, replog.Client, replog.Client, Alter], Awaitable[None]]


def changed(**changes: Any) -> Alter:
    return lambda _request, response: attrs.evolve(response, **changes)


def shifted(_request: Request, response: Response) -> Response:
    """The batches of other entries."""
    return attrs.evolve(response, batches=response.batches[1:] or tuple(map(damaged, response.batches)))


def damaged(batch: Batch) -> Batch:
    data = bytearray(batch.data)
    data[76] ^= 1
    return decode(bytes(data))


ALTERED: dict[str, Alter] = {name: changed(**changes) for name, changes in NONSENSE.items()}
ALTERED |= {f"always {status.name}": changed(status=status) for status in Status if status is not Status.UNAUTHORIZED}
ALTERED |= {
    "never a batch": changed(batches=()),
    "batches of others": shifted,
    "all fields of another kind": lambda request, response: Response(
        response.request_id, Status.OK, 1 << 40, 1 << 40, (a_batch(0), a_batch(2)), "{}", True, proof_of(5)
    ),
    "nothing but the status": lambda request, response: Response(response.request_id, response.status),
    "OK and nothing else": lambda request, response: Response(response.request_id, Status.OK),
    "another request's id": lambda request, response: attrs.evolve(response, request_id=response.request_id + 10**6),
    "the id of the one before": lambda request, response: attrs.evolve(response, request_id=response.request_id - 1),
    "much detail": changed(detail="[" * 100_000),
}
# A bookie that says OK to everything lies about what it stored: no quorum is safe from that, and no client can tell.
LIES_ABOUT_STORING = {"OK and nothing else", "nothing but the status", "always OK"}


async def write(world: Cluster, client: replog.Client, count: int = LAST + 1) -> int:
    """A ledger with these entries, which its writer closed."""
    async with client.create_ledger(password=PASSWORD, digest_type=DigestType.HMAC_SHA256) as writer:
        for number in range(count):
            assert await writer.append(b"%d" % number) == number
        await settle()
    assert writer.metadata.state is LedgerState.CLOSED
    assert writer.metadata.last_entry_id == count - 1
    return writer.ledger_id


async def read_all(client: replog.Client, ledger_id: int) -> list[bytes]:
    async with client.open_ledger(ledger_id, password=PASSWORD) as reader:
        return [entry.data async for entry in reader]


async def write_scene(world: Cluster, client: replog.Client, other: replog.Client, alter: Alter) -> None:
    world.bookies[0].wire.alter = alter
    ledger_id = await write(world, client)
    world.bookies[0].wire.alter = lambda _request, response: response
    assert await read_all(other, ledger_id) == WANTED


async def read_scene(world: Cluster, client: replog.Client, other: replog.Client, alter: Alter) -> None:
    ledger_id = await write(world, client)
    world.bookies[0].wire.alter = alter
    assert await read_all(other, ledger_id) == WANTED


async def follow_scene(world: Cluster, client: replog.Client, other: replog.Client, alter: Alter) -> None:
    async with client.create_ledger(password=PASSWORD, digest_type=DigestType.HMAC_SHA256) as writer:
        await writer.append(WANTED[0])
        world.bookies[0].wire.alter = lambda request, response: (
            response if isinstance(request, AddRequest) else alter(request, response)
        )
        async with other.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
            for number in range(1, LAST + 1):
                await writer.append(WANTED[number])
                while reader.last_add_confirmed < number:
                    assert await reader.refresh(wait_s=5.0) <= number
            assert [entry.data async for entry in reader] == WANTED
    assert writer.error is None


async def recover_scene(world: Cluster, client: replog.Client, other: replog.Client, alter: Alter) -> None:
    with suppress(replog.FencedError):
        async with client.create_ledger(password=PASSWORD, digest_type=DigestType.HMAC_SHA256) as writer:
            for payload in WANTED:
                await writer.append(payload)
            world.bookies[0].wire.alter = alter
            metadata = await other.recover_ledger(writer.ledger_id, password=PASSWORD)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, LAST)
            assert await read_all(other, writer.ledger_id) == WANTED


SCENES: dict[str, Scene] = {"write": write_scene, "read": read_scene, "follow": follow_scene, "recover": recover_scene}


def is_word_of_a_bookie(scene: str, altered: str) -> bool:
    """Answers that the protocol has to believe: a bookie that says that it is fenced above the term deposes a writer or
    a recovery."""
    return altered == "always FENCED" and scene in ("write", "recover", "follow")


LONG = [pytest.mark.long(is_sampled=False)]
LANES: Sequence[list[pytest.MarkDecorator]] = ([], LONG, [pytest.mark.slow], LONG)  # of four answers in a scene


def cases() -> Iterator[Any]:
    """Each answer in half of the scenes, and each scene with half of the answers; the others in the long lane. A quarter is in
    the fast lane."""
    for scene_number, scene in enumerate(SCENES):
        for number, altered in enumerate(ALTERED):
            if is_word_of_a_bookie(scene, altered) or (scene == "write" and altered in LIES_ABOUT_STORING):
                continue
            yield pytest.param(scene, altered, marks=LANES[(number + scene_number) % 4])


@pytest.mark.parametrize(("scene", "altered"), list(cases()))
async def test_one_bookies_nonsense_changes_nothing(
    scene: str, altered: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with trio.fail_after(120):
            await SCENES[scene](world, client, other, ALTERED[altered])


@pytest.mark.parametrize("altered", ALTERED)
async def test_an_administrator_gets_a_named_error(altered: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        bookies = await client.admin.bookies()
        world.bookies[0].wire.alter = ALTERED[altered]
        (liar,) = [each for each in bookies if each.bookie_id == world.bookies[0].bookie_id]
        with trio.fail_after(120):
            for call in (liar.statistics, liar.collect_garbage, liar.compact, liar.scrub):
                with suppress(BookieError):
                    await call(timeout_s=5.0)
            for bookie in bookies:
                if bookie is not liar:
                    assert (await bookie.statistics()).bookie_id == bookie.bookie_id


DETAILS = [
    "",
    "null",
    "[]",
    "{",
    "[" * 100_000,
    '{"x": 1' + "0" * 400 + "}",
    '{"x": "y"}',
    '{"x": null}',
    '{"latencies": []}',
    '{"latencies": {"commit": {"buckets": {"0": 1e999}, "total_s": 1}}}',
    '{"latencies": {"commit": {"buckets": {}, "total_s": 1' + "0" * 400 + "}}}",
    '{"dropped_ledgers": null}',
    '{"dropped_ledgers": [[]]}',
    '{"dropped_ledgers": [Infinity]}',
    '{"damage": 1}',
    '{"damage": [{}]}',
    '{"damage": [{"ledger_id": "1", "stamp": 1, "first_entry_id": 1, "last_entry_id": 1, "description": ""}]}',
]


@pytest.mark.parametrize("detail", DETAILS, ids=lambda detail: detail[:40])
async def test_invalid_details_are_named(detail: str, autojump_clock: trio.testing.MockClock) -> None:
    """Also numbers beyond what a float holds, and JSON nested deeper than Python's stack."""
    async with cluster() as world, world.client(QUICK) as client:
        (liar, *_) = await client.admin.bookies()
        for bookie in world.bookies:
            bookie.wire.alter = lambda request, response: (
                attrs.evolve(response, detail=detail) if isinstance(request, AdminRequest) else response
            )
        for call in (liar.statistics, liar.collect_garbage, liar.scrub):
            with suppress(BookieError):
                await call(timeout_s=5.0)


async def test_recovery_survives_ok_without_a_batch(autojump_clock: trio.testing.MockClock) -> None:
    """R4, R12: found from outside; it was an IndexError in a callback, and the end of the whole client."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:

        def alter(request: Request, response: Response) -> Response:
            keeps = isinstance(request, FenceRequest | AddRequest)
            return response if keeps else Response(response.request_id, Status.OK, response.last_add_confirmed)

        await recover_scene(world, client, other, alter)
