"""What the seam of metastores does by default, where a store has no more than a map with CAS."""

from __future__ import annotations

import trio
import trio.testing

from replog.abc import Versioned
from tests.plain_metastore import PlainMap, PlainMetastore


class Counting(PlainMetastore):
    """Counts reads."""

    reads = 0

    async def get(self, key: str) -> Versioned:
        self.reads += 1
        return await super().get(key)


async def test_polling_slows_without_changes_and_waiters_share_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A hundred followers of one log took a whole processor."""
    shared = PlainMap()
    metastore, other = Counting(shared), PlainMetastore(shared)
    version = await other.create("key", b"")
    returned_s: list[float] = []

    async def wait() -> None:
        await metastore.wait_changed("key", version)
        returned_s.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(wait)
            await trio.sleep(0.001 * (number % 3))
        await trio.sleep(10)
        before = metastore.reads
        await trio.sleep(10)
        assert metastore.reads - before <= 10 / 0.05, "one for each twentieth of a second, whoever looks"
        changed_s = trio.current_time()
        await other.put("key", b"", version)
    assert len(returned_s) == 100
    assert max(returned_s) - changed_s <= 0.56
    assert not metastore._versions_seen, "nothing is kept of keys that nobody waits for"


async def test_a_single_wait_ends_soon_after_a_change(autojump_clock: trio.testing.MockClock) -> None:
    metastore = PlainMetastore(PlainMap())
    async with trio.open_nursery() as nursery:
        for pause_s, bound_s in ((0.2, 0.1), (60.0, 0.51)):
            version = await metastore.create(f"key-{pause_s}", b"")
            nursery.start_soon(metastore.wait_changed, f"key-{pause_s}", version)
            await trio.sleep(pause_s)
            await metastore.put(f"key-{pause_s}", b"", version)
            with trio.fail_after(bound_s):
                while nursery.child_tasks:  # noqa: ASYNC110 - the end of a task is what is waited for
                    await trio.sleep(0.01)
