"""The nursery behind the public context managers: what its body raises comes out as it is, and no cancellation leaks.

These run trio themselves: the nursery of pytest-trio would hide a cancellation that comes out of the tested one.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.runtime.nursery import open_service_nursery


async def fail() -> None:
    raise ValueError("background")


async def cancel_soon(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


def test_the_bodys_own_error_is_never_wrapped() -> None:
    async def main() -> None:
        async with open_service_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trio.run(main)


def test_a_failed_task_ends_the_body_and_is_raised_alone() -> None:
    async def main() -> None:
        async with open_service_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ValueError, match="background"):
        trio.run(main)


def test_a_failed_task_is_raised_alone_through_an_inner_nursery() -> None:
    async def main() -> None:
        async with open_service_nursery() as nursery, trio.open_nursery():
            nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ValueError, match="background"):
        trio.run(main)


def test_cancelling_it_ends_a_body_with_nurseries_of_its_own() -> None:
    async def main() -> str:
        async with open_service_nursery() as nursery, open_service_nursery() as inner, trio.open_nursery():
            inner.start_soon(trio.sleep_forever)
            nursery.start_soon(cancel_soon, nursery.cancel_scope)
            await trio.sleep_forever()
        return "behind it"

    assert trio.run(main) == "behind it"


def test_an_error_of_the_body_is_raised_without_a_cancellation() -> None:
    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("mine")

    async def main() -> None:
        async with open_service_nursery() as nursery, trio.open_nursery() as own:
            nursery.start_soon(cancel_soon, nursery.cancel_scope)
            own.start_soon(fail_when_cancelled)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main)
    assert [type(each) for each in caught.value.exceptions] == [KeyError]


def test_a_cancellation_from_outside_passes_through() -> None:
    async def main() -> bool:
        with trio.CancelScope() as scope:
            async with open_service_nursery(), trio.open_nursery():
                scope.cancel()
                await trio.sleep_forever()
        return scope.cancelled_caught

    assert trio.run(main)
