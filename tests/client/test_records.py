"""Ledgers' records: every call ends, and what it says of the outcome is true (M1, M2, W6)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.client.ledger_records import LedgerRecords
from replog.errors import (
    KeyExistsError,
    LedgerNotFoundError,
    MetastoreError,
    MetastoreFullError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
)
from replog.metastores.memory import MemoryMetastore
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.records.paths import ledger_key_path
from replog.testing import Fault, FaultyMetastore

FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]


def a_ledger(ledger_id: int = 1, token: str = "mine") -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), DigestType.CRC32C, "", (Fragment(0, ("a",)),), token=token)


def made() -> tuple[FaultyMetastore, LedgerRecords]:
    metastore = FaultyMetastore(MemoryMetastore())
    return metastore, LedgerRecords(metastore, 5.0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", ["create", "get", "put"])
async def test_ids_are_unique_despite_lost_messages(
    operation: str, fault: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    metastore, records = made()
    ids = []
    for turn in range(10):
        if turn % 2 or operation == "create":
            metastore.fail_next(operation, fault)
        ids.append(await records.new_id())
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("fault", FAULTS)
async def test_record_is_created_once_despite_lost_messages(
    fault: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    metastore, records = made()
    metastore.fail_next("create", fault)
    version, _ = await records.create(a_ledger())
    assert await records.get(1) == (a_ledger(), version)


async def test_create_raises_when_another_client_made_the_record() -> None:
    """M1: only the token tells whose record it is."""
    _, records = made()
    await records.create(a_ledger(token="theirs"))
    with pytest.raises(KeyExistsError):
        await records.create(a_ledger(token="mine"))
    assert (await records.get(1))[0].token == "theirs"


@pytest.mark.parametrize("fault", FAULTS)
async def test_record_is_deleted_despite_lost_messages(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    metastore, records = made()
    await records.create(a_ledger())
    metastore.fail_next("delete", fault)
    await records.delete(1)
    await records.delete(1)
    with pytest.raises(LedgerNotFoundError):
        await records.get(1)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.REQUEST_LOST, None], ids=["down", "uncertain", "silent"])
async def test_every_call_ends_in_a_named_error(fault: Fault | None, autojump_clock: trio.testing.MockClock) -> None:
    metastore, records = made()
    await records.create(a_ledger())
    if fault is None:
        metastore.delay_s = 100.0
    metastore._choose = lambda _operation, _key: fault
    for verb in (
        lambda: records.get(1),
        lambda: records.new_id(),
        lambda: records.create(a_ledger(2)),
        lambda: records.delete(1),
    ):
        started = trio.current_time()
        with trio.fail_after(30), pytest.raises(MetastoreError):
            await verb()
        assert trio.current_time() - started <= 11


async def test_a_call_cut_short_by_its_deadline_is_uncertain(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Though the calls before it failed without effect."""
    metastore, records = made()
    version, _ = await records.create(a_ledger())
    calls = 0

    async def put() -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise MetastoreUnavailableError("down")
        await metastore.inner.put(ledger_key_path(1), b"applied", version)
        await trio.sleep(100)
        return 0

    with pytest.raises(MetastoreUncertainError):
        await records.persist("changing", put)
    assert (await metastore.inner.get(ledger_key_path(1))).value == b"applied"


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE])
async def test_a_change_is_not_repeated_when_its_answer_was_lost(
    fault: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    """M1: only who compares what is there with what it wrote can tell what became of the change."""
    metastore, records = made()
    version, _ = await records.create(a_ledger())
    metastore.fail_next("put", fault)
    with pytest.raises(MetastoreUncertainError):
        await records.put(a_ledger(), version)
    assert [call.operation for call in metastore.calls].count("put") == 1


async def test_a_create_is_repeated_when_its_request_may_be_late(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """M1: if the record is deleted, the late request would bring it back."""
    metastore, records = made()
    metastore.fail_next("create", Fault.ARRIVES_LATE)
    _, is_only_request = await records.create(a_ledger())
    assert not is_only_request
    _, is_only_request = await records.create(a_ledger(2))
    assert is_only_request


async def test_store_failure_without_effect_leaves_no_doubt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    _, records = made()

    async def fail() -> None:
        raise MetastoreUnavailableError("down")

    started = trio.current_time()
    with pytest.raises(MetastoreError, match="down") as caught:
        await records.persist("changing", fail)
    assert not isinstance(caught.value, MetastoreUncertainError)
    assert trio.current_time() - started == pytest.approx(5.0)


@pytest.mark.parametrize("kind", [MetastoreFullError, MetastoreError])
async def test_a_lasting_failure_is_raised_at_once(
    kind: type[MetastoreError], autojump_clock: trio.testing.MockClock
) -> None:
    """A disk that is full, or may not be written, is the operator's: repeating until the deadline only hides why."""
    _, records = made()

    async def fail() -> None:
        raise kind("no space")

    started = trio.current_time()
    with pytest.raises(kind, match="no space"):
        await records.persist("changing", fail)
    assert trio.current_time() == started


@pytest.mark.parametrize("own_s", [5.0, 2.0], ids=["same deadline", "shorter deadline"])
async def test_silent_metastore_names_its_servers_once(own_s: float, autojump_clock: trio.testing.MockClock) -> None:
    """Only it knows its servers; and what was being done is said once."""
    _, records = made()

    async def ask() -> None:
        await trio.sleep(own_s)
        raise MetastoreUnavailableError("Members: m1 (it does not run)")

    started = trio.current_time()
    for call in (records.read, records.persist):
        with pytest.raises(MetastoreError, match="Members: m1") as caught:
            await call("reading log 'a'", ask)
        assert str(caught.value).count("reading log 'a'") == 1
        # A change that was cut short may have happened, whatever the attempts before it say.
        is_cut = own_s < 5.0 and call == records.persist
        assert isinstance(caught.value, MetastoreUncertainError) == is_cut
    assert trio.current_time() - started <= 11.0


async def test_read_cut_short_names_its_subject_once(autojump_clock: trio.testing.MockClock) -> None:
    _, records = made()
    with pytest.raises(MetastoreUnavailableError) as caught:
        await records.read("reading log 'a'", trio.sleep_forever)
    assert str(caught.value) == "reading log 'a': the metastore did not answer in 5 s"
