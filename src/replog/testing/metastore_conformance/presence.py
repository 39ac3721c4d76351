"""Announcements and elections, while no client dies."""

from __future__ import annotations

import trio

from replog.abc import Metastore
from replog.errors import KeyExistsError
from replog.testing.metastore_conformance.bench import LOOK_AGAIN_S, MOMENT_S, Bench, until_children
from replog.testing.promises import WAIT_MAX_S, promise, promised_error, soon

_PLAIN = "what nobody announces is not announced"
_TAKEN = "announcing what somebody else announces raises KeyExistsError, which has the key"
_MOMENTS = 10
_LATER_S = 0.01
_WHILE_S = 0.15  # in which a wrong candidate would be elected


async def check_announce(bench: Bench) -> None:
    """An announced key exists as long as its context is open."""
    root, key = bench.root, f"{bench.root}/me"
    promise(await bench.one.announced(root) == {}, "announced is {} if nothing is")
    async with bench.one.announce(key, b"here"):
        promise(await bench.other.announced(root) == {"me": b"here"}, "what is announced is seen by others")
        promise(await bench.other.children(root) == ["me"], "what is announced is a child")
        for client in bench.clients:
            with promised_error(KeyExistsError, _TAKEN) as raised:
                async with client.announce(key, b"another"):
                    pass
            promise(raised[0].key == key, _TAKEN)
            with promised_error(KeyExistsError, "what is announced exists: it can't be created"):
                await client.create(key, b"another")
        promise(await bench.one.announced(root) == {"me": b"here"}, "who may not announce changes nothing")
    with soon("what is announced vanishes soon after its context"):
        await until_children(bench.other, root, ["me"], [])
    promise(await bench.other.announced(root) == {}, "what vanished is no longer announced")
    async with bench.other.announce(key, b"there"):
        promise(await bench.one.announced(root) == {"me": b"there"}, "what vanished may be announced again")
    with soon("what is announced vanishes soon after its context"):
        await until_children(bench.one, root, ["me"], [])


async def check_what_is_announced_and_what_is_not(bench: Bench) -> None:
    """`announced` returns announced keys right below a key, with any value, and no other keys."""
    root = bench.root
    await bench.one.create(f"{root}/plain", b"plain")
    promise(await bench.other.announced(root) == {}, _PLAIN)
    for client in bench.clients:
        with promised_error(KeyExistsError, "announcing a key that is there anyhow raises KeyExistsError"):
            async with client.announce(f"{root}/plain", b"announced"):
                pass
    promise((await bench.one.get(f"{root}/plain")).value == b"plain", "who may not announce changes nothing")
    values = {"a": b"", "b": bytes(range(256)), "c": b"c"}
    async with (
        bench.one.announce(f"{root}/a", values["a"]),
        bench.one.announce(f"{root}/b", values["b"]),
        bench.other.announce(f"{root}/c", values["c"]),
        bench.other.announce(f"{root}/deeper/d", b"d"),
    ):
        for client in bench.clients:
            promise(await client.announced(root) == values, "announced is what is announced right below, by its word")
            promise(await client.announced(f"{root}/deeper") == {"d": b"d"}, "a key below another may be announced")
    await bench.one.delete(f"{root}/plain")


async def check_announcing_at_once(bench: Bench) -> None:
    """Of several clients that announce a key at once, one succeeds."""
    key = f"{bench.root}/me"
    all_tried, tried, winners = trio.Event(), 0, 0

    async def announce(client: Metastore) -> None:
        nonlocal tried, winners
        try:
            async with client.announce(key, b"the same"):
                winners += 1
                await all_tried.wait()
        except KeyExistsError:
            tried += 1
            if tried == 7:
                all_tried.set()

    # If several succeed, not all of the others fail.
    with trio.move_on_after(WAIT_MAX_S):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(announce, bench.clients[number % 2])
    promise(winners == 1, f"of several who announce a key one succeeds; {winners} did")


async def check_announcers_leave(bench: Bench) -> None:
    """The context of announce ends in order, by an error, by cancellation, or after another client deleted the key."""
    key = f"{bench.root}/me"
    with promised_error(ZeroDivisionError, "an error leaves the context of announce as it is, in no group"):
        async with bench.one.announce(key, b""):
            _fail()
    with soon("what is announced vanishes soon after its context ended in an error"):
        await until_children(bench.other, bench.root, ["me"], [])
    with trio.CancelScope() as scope:
        async with bench.one.announce(key, b""):
            scope.cancel()
            await trio.sleep_forever()
    with soon("what is announced vanishes soon after its context was cancelled"):
        await until_children(bench.other, bench.root, ["me"], [])
    for number in range(_MOMENTS):
        with trio.move_on_after(number * MOMENT_S):
            async with bench.one.announce(key, b""):
                await trio.sleep_forever()
        with soon("what was being announced when it was cancelled vanishes soon, whether it was announced or not"):
            await _until_announceable(bench.other, key)
    with soon("what is announced vanishes soon after somebody deleted it"):
        async with bench.one.announce(key, b""):
            await bench.other.delete(key)  # leaving the context raises nothing then
        promise(await bench.one.announced(bench.root) == {}, "what was deleted is not announced")
    async with bench.open() as third, third.announce(key, b"third"):
        promise(await bench.one.announced(bench.root) == {"me": b"third"}, "any client may announce")


def _fail() -> None:
    raise ZeroDivisionError


async def _until_announceable(client: Metastore, key: str) -> None:
    while True:
        try:
            async with client.announce(key, b"again"):
                return
        except KeyExistsError:
            await trio.sleep(LOOK_AGAIN_S)


# -- elections ----------------------------------------------------------------------------------------------------


async def check_elect(bench: Bench) -> None:
    """One candidate is elected at a time, and all in the end."""
    key, leading, led = f"{bench.root}/leader", 0, 0

    async def lead(client: Metastore, number: int) -> None:
        nonlocal leading, led
        # Candidates may have equal values: a store must not tell them apart by these.
        async with client.elect(key, b"the same" if number < 3 else b""):
            leading += 1
            promise(leading == 1, f"one is elected at a time; {leading} are")
            await trio.sleep(MOMENT_S * 10)
            leading, led = leading - 1, led + 1

    with soon("who is elected is succeeded by who waits, until all have been"):
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(lead, bench.clients[number % 2], number)
    promise(led == 5, "whoever waits is elected in the end")


async def check_elections_are_apart(bench: Bench) -> None:
    """Elections of different keys are independent, and a waiting candidate is not elected."""
    key = f"{bench.root}/leader"
    elected: list[str] = []

    async def wait(client: Metastore, name: str) -> None:
        async with client.elect(key, b""):
            elected.append(name)
            await trio.sleep_forever()

    with soon("two keys have nothing to do with one another"):
        async with bench.one.elect(key, b"1"), bench.other.elect(f"{bench.root}/leader-2", b"2"), bench.open() as third:
            with trio.move_on_after(_WHILE_S):
                async with trio.open_nursery() as nursery:
                    for number, client in enumerate((bench.one, bench.other, third)):
                        nursery.start_soon(wait, client, str(number))
            promise(not elected, "nobody is elected as long as somebody else is")


async def check_the_elected_leave(bench: Bench) -> None:
    """The context of elect ends by an error or by cancellation."""
    key = f"{bench.root}/leader"
    with promised_error(ZeroDivisionError, "an error leaves the context of elect as it is, in no group"):
        async with bench.one.elect(key, b""):
            _fail()
    with soon("another is elected soon after the context of elect ended in an error"):
        async with bench.other.elect(key, b""):
            pass
    with trio.CancelScope() as scope:
        async with bench.one.elect(key, b""):
            scope.cancel()
            await trio.sleep_forever()
    with soon("another is elected soon after the context of elect was cancelled"):
        async with bench.other.elect(key, b""):
            pass
    for number in range(_MOMENTS):
        with trio.move_on_after(number * MOMENT_S):
            async with bench.one.elect(key, b""):
                await trio.sleep_forever()
        with soon("who was cancelled while it was being elected keeps nobody from being elected"):
            async with bench.other.elect(key, b""):
                pass


async def check_cancelled_candidates(bench: Bench) -> None:
    """A waiting candidate that is cancelled, at any moment, does not hold up those behind it."""
    key, contract = f"{bench.root}/leader", "nobody is elected as long as somebody else is, whoever leaves the queue"
    for number in range(_MOMENTS):
        behind, cancelled = trio.Event(), trio.CancelScope()

        async def stand_behind(behind: trio.Event = behind) -> None:
            async with bench.other.elect(key, b"behind"):
                behind.set()

        async def be_cancelled(cancelled: trio.CancelScope = cancelled) -> None:
            with cancelled:
                async with bench.one.elect(key, b"cancelled"):
                    promise(False, contract)

        with soon("a candidate that was cancelled keeps nobody from being elected"):
            async with trio.open_nursery() as nursery, bench.one.elect(key, b"first"):
                nursery.start_soon(be_cancelled)
                await trio.sleep(number * MOMENT_S)
                nursery.start_soon(stand_behind)
                await trio.sleep((_MOMENTS - number) * MOMENT_S)
                cancelled.cancel()
                await trio.sleep(_LATER_S)
                promise(not behind.is_set(), contract)


CHECKS = (
    check_announce,
    check_what_is_announced_and_what_is_not,
    check_announcing_at_once,
    check_announcers_leave,
    check_elect,
    check_elections_are_apart,
    check_the_elected_leave,
    check_cancelled_candidates,
)
