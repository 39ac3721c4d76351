"""The conformance suite of leases: processes of clients are killed and stopped, and others must notice it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import attrs
import trio

from replog.abc import Metastore
from replog.errors import KeyExistsError
from replog.registry import Registry
from replog.runtime.children import Child, ChildFailedError, python_module, running_child
from replog.testing.metastore_conformance.bench import ELECTED, LOOK_AGAIN_S, no_other_error
from replog.testing.promises import plain_assertions, promise

_MEMBER = "replog.testing.metastore_conformance.member"
_START_S = 60.0
_LEASES_MAX = 3  # after which who died or stopped must have been noticed
_SLACK_S = 10.0  # for a machine that is busy


async def check_metastore_leases(url: str, lease_s: float = 10.0) -> None:
    """Check that a metastore notices dead and stopped clients; raise `AssertionError` with the first promise that it breaks.

    `url` opens the store in any process, through the registry. `lease_s` is after how long such a store considers a silent
    client as gone. The suite starts processes that announce themselves and are elected, then kills and stops them. It uses
    keys below "conformance/" and a random word, needs no pytest, and takes about six times `lease_s`. On a machine that pauses
    for longer than the lease, a correct metastore may fail: leases are advice (M3).
    """
    metastore = Registry().open_metastore(url)
    try:
        with plain_assertions(), no_other_error("what becomes of processes"):
            for check in (_check_the_killed, _check_the_stopped):
                await check(_Place(metastore, url, f"conformance/{secrets.token_hex(8)}", lease_s))
    finally:
        with trio.CancelScope(shield=True):
            await metastore.aclose()


@attrs.frozen
class _Place:
    """One client of the store, and the keys that it and the processes use."""

    metastore: Metastore
    url: str
    root: str
    lease_s: float

    @property
    def live(self) -> str:
        return f"{self.root}/live"

    @contextmanager
    def noticed(self, contract: str) -> Iterator[trio.CancelScope]:
        """The block must end within `_LEASES_MAX` leases, or set the deadline to infinity."""
        patience_s = _LEASES_MAX * self.lease_s + _SLACK_S
        with trio.move_on_after(patience_s) as scope:
            yield scope
        promise(not scope.cancelled_caught, f"{contract} (not within {patience_s:.0f} s)")

    @asynccontextmanager
    async def member(self) -> AsyncIterator[Child]:
        """Start a process that is announced and elected, as a context manager."""
        said: list[bytes] = []
        command = python_module(_MEMBER, self.url, self.root)
        async with running_child("a member", command, said.append, may_end=True) as child:
            contract = f"a process that opens {self.url} can announce itself, and is elected"
            try:
                await child.until(lambda: ELECTED in said, "it is elected", _START_S)
            except ChildFailedError as error:
                raise AssertionError(f"{contract}: {error}") from error
            yield child

    async def until_announced(self, expected: dict[str, bytes]) -> None:
        while await self.metastore.announced(self.live) != expected:  # noqa: ASYNC110 - the store knows no such event
            await trio.sleep(LOOK_AGAIN_S)

    async def announced_for(self, duration_s: float, expected: dict[str, bytes], contract: str) -> None:
        end_s = trio.current_time() + duration_s
        while trio.current_time() < end_s:
            found = await self.metastore.announced(self.live)
            promise(found == expected, f"{contract}; announced are {sorted(found)}")
            await trio.sleep(self.lease_s / 20)

    @asynccontextmanager
    async def announced_instead(self) -> AsyncIterator[None]:
        """Announce the key of the dead member, as soon as that succeeds."""
        with self.noticed("what a process announced that died or stopped may soon be announced by another") as patience:
            async with AsyncExitStack() as stack:
                while patience.deadline < float("inf"):
                    try:
                        await stack.enter_async_context(self.metastore.announce(f"{self.live}/member", b"successor"))
                        patience.deadline = float("inf")
                    except KeyExistsError:
                        await trio.sleep(LOOK_AGAIN_S)
                yield

    @asynccontextmanager
    async def elected_instead(self) -> AsyncIterator[None]:
        """Be elected in place of the dead member, as soon as that succeeds."""
        with self.noticed("another is elected soon after the process of the elected died or stopped") as patience:
            async with self.metastore.elect(f"{self.root}/leader", b"successor"):
                patience.deadline = float("inf")
                yield

    async def clean_up(self) -> None:
        """Take over the announcement and the leadership of a dead process, then leave both."""
        async with self.announced_instead(), self.elected_instead():
            pass


async def _check_the_killed(place: _Place) -> None:
    elected = trio.Event()

    async def succeed() -> None:
        async with place.metastore.elect(f"{place.root}/leader", b"successor"):
            elected.set()

    async with place.member() as member, trio.open_nursery() as nursery:
        nursery.start_soon(succeed)
        alive = "a process that lives stays announced, as long as it lives"
        # Longer than a lease: a client that does not renew its own would be gone by then.
        await place.announced_for(1.5 * place.lease_s, {"member": b"member"}, alive)
        promise(not elected.is_set(), "nobody is elected as long as a process that lives is")
        await member.kill()
        with place.noticed("another is elected soon after the elected process was killed"):
            await elected.wait()
        with place.noticed("what a process announced vanishes soon after it was killed"):
            await place.until_announced({})
    await place.clean_up()


async def _check_the_stopped(place: _Place) -> None:
    async with place.member() as member:
        promise(
            await place.metastore.announced(place.live) == {"member": b"member"}, "what is announced is seen by others"
        )
        await member.stop()
        with place.noticed("what a process announced vanishes soon after it was stopped"):
            await place.until_announced({})
        async with place.announced_instead(), place.elected_instead():
            # It goes on with what it knew before: it may renew or delete what is its successor's now.
            member.wake()
            contract = "a process that goes on takes nothing from its successor"
            await place.announced_for(place.lease_s, {"member": b"successor"}, contract)
    await place.clean_up()
