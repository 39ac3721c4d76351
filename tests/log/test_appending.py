"""Adding ledgers to a log that others wrote and closed: all or none, once, and nobody writes on behind them (L1, L5, M1)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    CustomMismatchError,
    FencedError,
    JobAbandonedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    LogNotFoundError,
    MetastoreUncertainError,
    ReplogError,
    TakeoverFailedError,
    TooManyLedgersError,
    TransactionTableFullError,
    UnauthorizedError,
)
from replog.log import checking
from replog.protocol.model import Position
from replog.records.paths import log_key_path
from replog.testing import Fault
from tests.kit import cluster, read_log

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]


async def written(
    client: replog.Client, *entries: bytes, log: str | None = "log", password: bytes = b"", **custom: str
) -> int:
    """A closed ledger with these entries, made for the log."""
    custom = custom if log is None else {"log": log, "job": "j", **custom}
    async with client.create_ledger(custom=custom, password=password) as writer:
        if entries:
            await writer.extend(list(entries))
    return writer.ledger_id


async def test_ledgers_are_added_in_their_order_and_the_log_is_created(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        second, first, empty = await written(client, b"3"), await written(client, b"1", b"2"), await written(client)
        added = await client.jobs.append_ledgers("log", [first, empty, second], custom={"values": "json"})
        assert added.is_new
        assert added.first == Position(1, 0)
        assert [segment.ledger_id for segment in added.segments] == [first, empty, second]
        assert list(added.segments) == await client.log_segments("log")
        assert (await client.log_metadata("log")).custom == {"values": "json"}
        assert await read_log(client) == [b"1", b"2", b"3"]


async def test_the_live_leader_is_deposed_and_may_lead_again(autojump_clock: trio.testing.MockClock) -> None:
    """L1, L5: nothing of the old leader's is confirmed behind the ledgers that were added."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.lead_log("log") as log:
            await log.append(b"1")
            await log.roll()
            await log.append(b"2")
            added = await other.jobs.append_ledgers("log", [await written(other, b"3", b"4")], patience_s=0)
            assert added.first == Position(3, 0)
            with pytest.raises(FencedError):
                await log.append(b"lost")
            with pytest.raises(FencedError):
                await log.roll()
        async with client.lead_log("log") as log:
            assert await log.append(b"5") == Position(4, 0)
        assert await read_log(client) == [b"1", b"2", b"3", b"4", b"5"]


async def test_an_idle_deposed_leader_learns_it_at_its_roll_or_close(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with pytest.raises(FencedError):
            async with client.write_log("log") as log:
                await log.append(b"1")
                await other.jobs.append_ledgers("log", [await written(other, b"2")], patience_s=0)
                await log.roll()
        async with client.write_log("log") as log:
            await log.append(b"3")
            await other.jobs.append_ledgers("log", [await written(other, b"4")], patience_s=0)
        assert await read_log(client) == [b"1", b"2", b"3", b"4"], (
            "all of it was confirmed, so leaving says nothing else"
        )


@pytest.mark.slow
async def test_two_jobs_and_leaders_at_once_lose_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        client._opened.logs.page_segments = other._opened.logs.page_segments = 2
        world.metastore.delay_s = 0.01
        confirmed: list[bytes] = []

        async def job(who: replog.Client, name: str) -> None:
            for number in range(5):
                entries = [f"{name} {number} {place}".encode() for place in range(3)]
                ledger_ids = [await written(who, entry) for entry in entries]
                assert (await who.jobs.append_ledgers("log", ledger_ids, transaction=(name, number))).is_new

        async def lead(who: replog.Client) -> None:
            for number in range(10):
                try:
                    async with who.lead_log("log") as log:
                        for place in range(20):
                            await log.append(b"leader %d %d" % (number, place))
                            confirmed.append(b"leader %d %d" % (number, place))
                            await trio.sleep(0.01)
                except FencedError:
                    pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(job, client, "a")
            nursery.start_soon(job, other, "b")
            nursery.start_soon(lead, other)
        found = await read_log(client)
        assert len(set(found)) == len(found)
        assert [entry for entry in found if entry in set(confirmed)] == confirmed
        for name in "ab":
            of_job = [entry for entry in found if entry.startswith(name.encode() + b" ")]
            assert of_job == [b"%s %d %d" % (name.encode(), number, place) for number in range(5) for place in range(3)]
        places = [found.index(f"{name} {number} 0".encode()) for name in "ab" for number in range(5)]
        assert all(found[place + 2].endswith(b" 2") for place in places), "a job's ledgers stand together"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("exists", [False, True])
async def test_the_answer_to_the_cas_may_be_lost(
    fault: Fault, exists: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """M1: with a transaction and without one, it is added once."""
    async with cluster() as world, world.client(QUICK) as client:
        if exists:
            await client.jobs.append_ledgers("log", [await written(client, b"0")])
        for transaction in (None, ("t", 1)):
            operation = "put" if exists or transaction else "create"
            world.metastore.fail_next(operation, fault, under=log_key_path("log"))
            ledger_id = await written(client, b"1")
            added = await client.jobs.append_ledgers("log", [ledger_id], transaction=transaction)
            assert added.is_new
            assert [segment.ledger_id for segment in added.segments] == [ledger_id]
        assert world.metastore.planned() == 0
        assert await read_log(client) == [b"0"] * exists + [b"1", b"1"]


# -- transactions -------------------------------------------------------------------------------------------------


async def test_a_transaction_is_committed_once(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        for number, repeated in ((0, (0,)), (7, (0, 7, 3)), (8, (8,))):
            ledger_id = await written(client, b"%d" % number)
            assert (await client.jobs.append_ledgers("log", [ledger_id], transaction=("q", number))).is_new
            before = await client.log_metadata("log")
            for other in repeated:
                again = await client.jobs.append_ledgers(
                    "log", [await written(client, b"no")], transaction=("q", other)
                )
                assert not again.is_new
                assert again.first is None
                assert again.segments == ()
            assert await client.log_metadata("log") == before
        assert (await client.jobs.append_ledgers("log", [await written(client, b"9")], transaction=("other", 0))).is_new
        assert await read_log(client) == [b"0", b"7", b"8", b"9"]


async def test_repetition_deposes_no_leader(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        await other.jobs.append_ledgers("log", [await written(other, b"1")], transaction=("t", 1))
        async with client.write_log("log") as log:
            assert not (await other.jobs.append_ledgers("log", [], transaction=("t", 1))).is_new
            await log.append(b"2")
        assert await read_log(client) == [b"1", b"2"]


async def test_empty_commit_keeps_its_transaction_and_deposes_none(autojump_clock: trio.testing.MockClock) -> None:
    """A job without rows. A log that it creates is empty, and is read, written, trimmed and deleted as any other."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        none = await other.jobs.append_ledgers("log", [], transaction=("t", 1), custom={"values": "json"})
        assert (none.is_new, none.first, none.segments) == (True, None, ())
        assert await client.logs() == ["log"]
        assert await client.log_segments("log") == []
        assert await read_log(client) == []
        assert not (await other.jobs.append_ledgers("log", [], transaction=("t", 1))).is_new
        async with client.write_log("log") as log:
            await log.append(b"1")
            assert (await other.jobs.append_ledgers("log", [], transaction=("t", 2))).is_new
            await log.append(b"2")
            await log.roll()
            await log.append(b"3")
        head = await client.log_metadata("log")
        assert [(each.transaction_id, each.number) for each in head.transactions] == [("t", 2)]
        assert head.custom == {"values": "json"}
        assert await read_log(client) == [b"1", b"2", b"3"]
        assert (await client.jobs.append_ledgers("log", [])).is_new
        assert await client.log_metadata("log") == head, "nothing was asked for"


async def test_an_empty_log_is_followed_and_deleted(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await client.jobs.append_ledgers("log", [])
        async with client.read_log("log", follow=True) as reader:
            with trio.move_on_after(5) as waiting:
                await reader.receive()
            assert waiting.cancelled_caught
            await client.jobs.append_ledgers("log", [await written(client, b"1")])
            assert (await reader.receive()).data == b"1"
        await client.jobs.append_ledgers("other", [])
        await client.delete_log("other")
        assert await client.logs() == ["log"]
        with pytest.raises(LogNotFoundError):
            await client.delete_log("other")


async def test_deleted_log_forgets_its_transactions(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await client.jobs.append_ledgers("log", [await written(client, b"1")], transaction=("t", 1), custom={"a": "b"})
        await client.delete_log("log")
        added = await client.jobs.append_ledgers(
            "log", [await written(client, b"2")], transaction=("t", 1), custom={"a": "c"}
        )
        assert added.is_new
        assert added.first == Position(2, 0), "numbers are never reused (L4)"
        assert await read_log(client) == [b"2"]


async def test_full_table_takes_no_transaction_until_some_are_retired(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction is forgotten to make room for another: a repetition would be written twice."""
    monkeypatch.setattr("replog.protocol.model.TRANSACTIONS_MAX", 3)
    async with cluster() as world, world.client(QUICK) as client:
        for transaction in (("a", 1), ("b", 1), ("c", 1), ("a", 2)):
            assert (await client.jobs.append_ledgers("log", [], transaction=transaction)).is_new
        with pytest.raises(TransactionTableFullError, match=r"'d'.* replog log transactions; .* 'b', 'c', 'a'") as full:
            await client.jobs.append_ledgers("log", [await written(client, b"1")], transaction=("d", 1))
        assert full.value.oldest == ("b", "c", "a")
        assert not (await client.jobs.append_ledgers("log", [], transaction=("b", 1))).is_new, "nothing was forgotten"
        assert (await client.jobs.append_ledgers("log", [], transaction=("a", 3))).is_new, "its place is there"
        assert await client.jobs.retire_transactions("log", ["b", "nobody's"]) == ["b"]
        assert (await client.jobs.append_ledgers("log", [], transaction=("d", 1))).is_new
        assert await client.jobs.retire_transactions("log", ["c"], older_than_s=3600) == ["c"]
        kept = [(each.transaction_id, each.number) for each in (await client.log_metadata("log")).transactions]
        assert kept == [("a", 3), ("d", 1)]
        assert await client.jobs.retire_transactions("log") == []


async def test_jobs_never_push_out_streams(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replog.protocol.model.TRANSACTIONS_MAX", 2)
    async with cluster() as world, world.client(QUICK) as client:
        for transaction in (("query:1", 7), ("a", 1), ("b", 1)):
            await client.jobs.append_ledgers("log", [], transaction=transaction)
        with pytest.raises(TransactionTableFullError, match="2 jobs"):
            await client.jobs.append_ledgers("log", [], transaction=("c", 1))
        assert not (await client.jobs.append_ledgers("log", [], transaction=("query:1", 7))).is_new
        await client.jobs.append_ledgers("log", [], transaction=("query:2", 0))
        with pytest.raises(TransactionTableFullError, match="2 streaming queries"):
            await client.jobs.append_ledgers("log", [], transaction=("query:3", 0))


async def test_retiring_survives_lost_answers_and_a_leader(autojump_clock: trio.testing.MockClock) -> None:
    """M1: it is read back whether the change was written. The log's writer is not deposed by it."""
    async with cluster() as world, world.client(QUICK) as client:
        await client.jobs.append_ledgers("log", [], transaction=("a", 1))
        lost = 0

        def choose(operation: str, key: str) -> Fault | None:
            nonlocal lost
            lost += operation == "put" and key == "logs/log"
            return Fault.ANSWER_LOST if operation == "put" and key == "logs/log" and lost == 1 else None

        async with client.write_log("log") as log:
            await log.append(b"1")
            world.metastore._choose = choose
            assert await client.jobs.retire_transactions("log", ["a"]) == ["a"]
            assert lost == 1
            await log.roll()
            await log.append(b"2")
        assert await read_log(client) == [b"1", b"2"]
        with pytest.raises(LogNotFoundError):
            await client.jobs.retire_transactions("absent", ["a"])
        for arguments in (("log", "a"), ("log", 7), ("log", [7])):
            with pytest.raises(ConfigError, match="must be a list of texts"):
                await client.jobs.retire_transactions(*arguments)
        assert await client.jobs.retire_transactions("log", None) == []  # type: ignore[arg-type]
        await client.jobs.append_ledgers("log", [], transaction=("b", 1))
        assert await client.jobs.retire_transactions("log", iter(["b"])) == ["b"]  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="finite number of seconds"):
            await client.jobs.retire_transactions("log", older_than_s=-1)


# -- what is refused ----------------------------------------------------------------------------------------------


async def test_a_refused_addition_changes_and_deposes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        good = await written(client, b"no", job="j")
        foreign = await written(client, b"no", log="another")
        unmarked = await written(client, b"no", log=None)
        secret = await written(client, b"no", password=b"secret")
        leaders = await written(client, b"no", job="")
        condemned = await written(client, b"no", job="j", condemned="by a sweep")
        async with client.create_ledger(custom={"log": "log", "job": "j"}, unbounded=True) as unbounded:
            await unbounded.append(b"no")
            await unbounded.finish()
        async with (
            client.write_log("log") as log,
            client.create_ledger(custom={"log": "log", "job": "j"}) as unfinished,
        ):
            await log.append(b"1")
            before = await client.log_metadata("log")
            refused: list[tuple[int, type[ReplogError], str]] = [
                (4711, LedgerNotFoundError, "4711"),
                (foreign, LedgerRefusedError, "made for log 'another'"),
                (unmarked, LedgerRefusedError, "does not say log='log'"),
                (unfinished.ledger_id, LedgerRefusedError, "open, not closed"),
                (log.ledger_id, LedgerRefusedError, "already"),
                (leaders, LedgerRefusedError, "only what a job wrote"),
                (unbounded.ledger_id, LedgerRefusedError, "it is unbounded"),
                (secret, UnauthorizedError, "password"),
                (condemned, JobAbandonedError, "job 'j' was given up"),
            ]
            for ledger_id, error_type, message in refused:
                with pytest.raises(error_type, match=message):
                    await other.jobs.append_ledgers("log", [good, ledger_id], transaction=("t", 1))
            with pytest.raises(LedgerRefusedError, match="made for job 'j', not 'k'"):
                await other.jobs.append_ledgers("log", [good], job="k")
            assert await client.log_metadata("log") == before
            await log.append(b"2")
            await other.jobs.append_ledgers("log", [good], job="j", patience_s=0)
            with pytest.raises(FencedError):
                await log.append(b"3")
        assert await read_log(client) == [b"1", b"2", b"no"]


async def test_a_ledger_named_by_a_page_is_not_added_again(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        ledger_ids = [await written(client, b"%d" % number) for number in range(9)]
        for ledger_id in ledger_ids:
            await client.jobs.append_ledgers("log", [ledger_id])
        assert len((await client.log_metadata("log")).segments) < 6
        for ledger_id in ledger_ids:
            with pytest.raises(LedgerRefusedError, match="already"):
                await client.jobs.append_ledgers("log", [ledger_id])
        assert len(await client.log_segments("log")) == 9


async def test_metadata_contradicting_the_logs_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await client.jobs.append_ledgers("log", [], custom={"values": "json", "schema": "a"})
        with pytest.raises(CustomMismatchError, match="schema='a', and 'b' was asked for") as raised:
            await client.jobs.append_ledgers("log", [await written(client)], custom={"values": "json", "schema": "b"})
        assert raised.value.names == ("schema",)
        await client.jobs.append_ledgers("log", [], custom={"more": "x"})
        assert (await client.log_metadata("log")).custom == {"values": "json", "schema": "a", "more": "x"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": ""}, "name of a log"),
        ({"ledger_ids": [1, 1]}, "twice"),
        ({"ledger_ids": [-1]}, "invalid ledger id"),
        ({"ledger_ids": ["1"]}, "invalid ledger id"),
        ({"transaction": "t"}, "is not a transaction"),
        ({"transaction": ("t",)}, "is not a transaction"),
        ({"transaction": ("t", True)}, "is not a transaction"),
        ({"transaction": ("", 1)}, "1 to 200 bytes"),
        ({"transaction": ("a\nb", 1)}, "1 to 200 bytes"),
        ({"transaction": ("\N{SNOWMAN}" * 67, 1)}, "1 to 200 bytes"),
        ({"transaction": ("t", -1)}, "0 or more"),
        ({"transaction": ("t", 1 << 63)}, "below"),
        ({"job": None}, "not the name of a job"),
        ({"custom": {"a": 1}}, "mapping of texts"),
        ({"password": "secret"}, "password is bytes"),
    ],
)
async def test_bad_arguments(arguments: dict[str, Any], problem: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises(ConfigError, match=problem):
            await client.jobs.append_ledgers(**{"name": "log", "ledger_ids": [], **arguments})
        assert await client.logs() == []


@pytest.mark.slow
async def test_thousands_of_ledgers_go_to_pages_up_to_a_limit(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head names them all until the next change. An overflow is known before any leader is deposed."""
    monkeypatch.setattr(checking, "VALUE_BYTES_MAX", 4096 + 10_000)
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        ledger_ids = [await written(client, b"%d" % number) for number in range(500)]
        async with client.write_log("log") as log:
            await log.append(b"first")
            with pytest.raises(TooManyLedgersError, match=r"at most \d+ ledgers") as raised:
                await other.jobs.append_ledgers("log", ledger_ids)
            await log.append(b"second")
            fitting = raised.value.ledgers_max
            with pytest.raises(TooManyLedgersError, match=f"at most {fitting} ledgers"):
                await other.jobs.append_ledgers("log", ledger_ids[: fitting + 1])
            await other.jobs.append_ledgers("log", ledger_ids[:fitting], patience_s=0)
            with pytest.raises(FencedError):
                await log.append(b"third")
        head = await client.log_metadata("log")
        assert len(head.segments) == 1 + fitting
        async with client.write_log("log") as log:
            await log.append(b"fourth")
        assert len((await client.log_metadata("log")).segments) < 200
        expected = [b"first", b"second", *(b"%d" % number for number in range(fitting)), b"fourth"]
        assert await read_log(client) == expected


# -- time ---------------------------------------------------------------------------------------------------------


async def test_a_hanging_metastore_raises_with_the_known_outcome(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_arguments: object) -> None:
        await trio.sleep_forever()

    options = ClientOptions(metastore_timeout_s=100.0, takeover_timeout_s=5.0)
    async with cluster() as world, world.client(options) as client:
        ledger_id = await written(client, b"1")
        with monkeypatch.context() as patches:
            patches.setattr(world.metastore, "get", hang)
            with pytest.raises(TakeoverFailedError, match="nothing was added"):
                await client.jobs.append_ledgers("log", [ledger_id], transaction=("t", 1))
        with monkeypatch.context() as patches:
            patches.setattr(world.metastore, "create", hang)
            with pytest.raises(MetastoreUncertainError, match="whether they were is unknown"):
                await client.jobs.append_ledgers("log", [ledger_id], transaction=("t", 1))
        assert (await client.jobs.append_ledgers("log", [ledger_id], transaction=("t", 1))).is_new
        assert await read_log(client) == [b"1"]


async def test_an_addition_repeated_after_cancelling_is_made_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        world.metastore.delay_s = 0.1
        await client.jobs.append_ledgers("log", [await written(client, b"0")])
        for number in range(1, 9):
            add = partial(
                client.jobs.append_ledgers, "log", [await written(client, b"%d" % number)], transaction=("t", number)
            )
            with trio.move_on_after(number * 0.075):
                await add()
            await add()
        assert await read_log(client) == [b"%d" % number for number in range(9)]
