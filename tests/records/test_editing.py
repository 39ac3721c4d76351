"""Changes of a record by compare-and-set: none is lost, none is made twice, whatever becomes of requests and answers (M1)."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from replog.abc import Metastore
from replog.client.ledger_records import LedgerRecords
from replog.errors import KeyNotFoundError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.memory import MemoryMetastore
from replog.records.editing import edit
from replog.testing import Fault
from replog.testing.faults import FaultyMetastore

KEY = "records/one"
Names = list[str]
FAULTS = (None, Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.CONFLICT)


class Editor:
    """A client that adds its name to the list in a record."""

    def __init__(self, metastore: Metastore, name: str) -> None:
        self._metastore = metastore
        self._name = name
        self.made = 0  # changes that it asked for

    async def read(self) -> tuple[Names, int | None]:
        try:
            found = await self._metastore.get(KEY)
        except KeyNotFoundError:
            return [], None
        names: Names = json.loads(found.value)
        return names, found.version

    async def added(self, names: Names) -> Names | None:
        if self._name in names:
            return None
        self.made += 1
        return [*names, self._name]

    async def write(self, names: Names, version: int | None) -> None:
        value = json.dumps(names).encode()
        if version is None:
            await self._metastore.create(KEY, value)
        else:
            await self._metastore.put(KEY, value, version)

    async def edit(self) -> Names:
        return await edit(self.read, self.added, self.write)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(FAULTS), max_size=12),
    st.integers(min_value=1, max_value=4),
    st.booleans(),
)
def test_m1_each_change_is_made_once(faults: list[Fault | None], editors: int, is_there: bool) -> None:
    async def run() -> None:
        inner = MemoryMetastore()
        if is_there:
            await inner.create(KEY, b'["first"]')
        coming = iter(faults)

        def choose(operation: str, key: str) -> Fault | None:
            fault = next(coming, None) if operation in ("create", "put") else None
            # There is nothing that another client could have written before.
            return None if operation == "create" and fault is Fault.CONFLICT else fault

        metastore = FaultyMetastore(inner, choose, delay_s=0.001)
        names = [f"editor-{number}" for number in range(editors)]
        returned: list[Names] = []

        async def add(name: str) -> None:
            found = await Editor(metastore, name).edit()
            assert name in found
            returned.append(found)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(add, name)
        last: Names = json.loads((await inner.get(KEY)).value)
        assert Counter(last) == Counter(names + ["first"] * is_there)
        # Each editor saw a state that the record had: changes are only added behind it.
        assert all(last[: len(each)] == each for each in returned)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_made_change_is_not_made_again(autojump_clock: trio.testing.MockClock) -> None:
    metastore = FaultyMetastore(MemoryMetastore())
    editor = Editor(metastore, "it")
    metastore.fail_next("create", Fault.ANSWER_LOST)
    assert await editor.edit() == ["it"]
    assert (editor.made, metastore.planned()) == (1, 0)
    assert await editor.edit() == ["it"]
    assert editor.made == 1


async def test_deleted_record_is_read_again() -> None:
    metastore = MemoryMetastore()
    await metastore.create(KEY, b"[]")
    editor = Editor(metastore, "it")

    async def deleted_then_added(names: Names) -> Names | None:
        if not editor.made:
            await metastore.delete(KEY)
        return await editor.added(names)

    assert await edit(editor.read, deleted_then_added, editor.write) == ["it"]
    assert editor.made == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault.CONFLICT, MetastoreUnavailableError), (Fault.REQUEST_LOST, MetastoreUncertainError)],
)
async def test_clients_edit_ends_at_its_deadline(
    fault: Fault, error: type[Exception], autojump_clock: trio.testing.MockClock
) -> None:
    metastore = FaultyMetastore(MemoryMetastore())
    await metastore.create(KEY, b"[]")
    metastore.fail_next("put", fault, times=100_000)
    editor, began_s = Editor(metastore, "it"), trio.current_time()
    with trio.fail_after(60), pytest.raises(error):
        await LedgerRecords(metastore, 2.0).edit("changing it", editor.read, editor.added, editor.write)
    assert trio.current_time() - began_s >= 2.0
