"""The changers and their judge find what they are there to find."""

from __future__ import annotations

import random

import pytest
import trio

from replog.errors import MetastoreError, MetastoreUncertainError
from replog.metastores.memory import MemoryMetastore
from replog.testing import Fault, FaultyMetastore
from tests.metastores.zookeeper.changes import Changer, Made, decode, encode, judge


async def changed(metastores: list[MemoryMetastore | FaultyMetastore], changes_min: int = 300) -> list[Made]:
    """What a changer on each of these made."""
    changers = [Changer(metastore, f"changer-{number}", tasks=3) for number, metastore in enumerate(metastores)]
    async with trio.open_nursery() as nursery:
        for changer in changers:
            nursery.start_soon(changer.run)
        while sum(changer.made.total() for changer in changers) < changes_min:  # noqa: ASYNC110 - a count has no event
            await trio.sleep(0.01)
        for changer in changers:
            changer.stop()
    return [changer.made for changer in changers]


async def test_every_allowed_fault_is_survived() -> None:
    inner = MemoryMetastore()
    chance = random.Random(1)

    def choose(_operation: str, _key: str) -> Fault | None:
        return chance.choice(list(Fault)) if chance.random() < 0.2 else None

    made = await changed([FaultyMetastore(inner, choose), FaultyMetastore(inner, choose)])
    assert await judge(inner, made) == []
    assert all(each.written_unanswered and each.uncertain and each.conflicts and each.failures for each in made)


class Liar(MemoryMetastore):
    """Breaks its promises, some of the time."""

    def __init__(self, lie: str) -> None:
        super().__init__()
        self.lie = lie
        self._puts = 0

    async def put(self, key: str, value: bytes, expected: int) -> int:
        self._puts += 1
        if self._puts % 40:
            return await super().put(key, value, expected)
        if self.lie == "nothing was written":
            return expected + 1000
        if self.lie == "others were overwritten":
            found = await super().get(key)
            record = decode(found.value)
            record = {"items": record["items"][:-1]} if "items" in record else {**record, "count": record["count"] - 1}
            await super().put(key, encode(record), found.version)
            raise MetastoreUncertainError("the answer was lost")
        await super().put(key, value, expected)
        if self.lie == "it was written after all":
            raise MetastoreError("nothing was written")
        return expected  # which this key had already


@pytest.mark.parametrize(
    "lie", ["nothing was written", "others were overwritten", "it was written after all", "a version twice"]
)
async def test_contract_breaking_metastore_is_detected(lie: str) -> None:
    liar = Liar(lie)
    if lie == "it was written after all":
        with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="was not written"), flatten_subgroups=True):
            await changed([liar])
    else:
        assert await judge(liar, await changed([liar])) != []


async def test_lost_and_doubled_changes_raise_named_errors() -> None:
    metastore = MemoryMetastore()
    await metastore.create("changes/lists/0", encode({"items": ["a.0/1", "a.0/1", "a.0/3"]}))
    await metastore.create("changes/counters/0", encode({"count": 3, "last": {"a.0": 4}}))
    changes = {"changes/lists/0": ["a.0/1", "a.0/2"], "changes/counters/0": ["a.0/4", "a.0/5"]}
    findings = await judge(metastore, [Made("a", changes, {"changes/lists/0": [1, 1]})])
    assert findings == [
        "changes/lists/0: version 1 was given 2 times",
        "changes/counters/0: 2 changes were made, and 3 are counted",
        "changes/lists/0: a.0/1 is there 2 times",
        "changes/lists/0: a.0/2 is lost",
        "changes/lists/0: nobody made a.0/3",
    ]
