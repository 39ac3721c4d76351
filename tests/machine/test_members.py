"""Members of a machine in one process: commands of all are applied once everywhere; reads are linearizable."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import trio

import replog
from replog.errors import (
    AddTimeoutError,
    CommandFailedError,
    CommandRefusedError,
    CommandTimeoutError,
    ConfigError,
    FencedError,
    LedgerNotFoundError,
    SessionExpiredError,
    StateDivergedError,
    UnknownCommandError,
)
from replog.machine import core as cores
from replog.machine import visits
from replog.machine.entries import Answer, Code, Kind, MachineEntry
from replog.machine.leading import Leader
from replog.machine.visits import Reception, Visit, request_of
from replog.protocol.messages import AdminCommand, AdminRequest, Request, Response, Status
from replog.runtime.entropy import Entropy, use_entropy
from tests.kit import Cluster, cluster, until
from tests.machine.counters import OPTIONS, Counters, member


async def test_command_returns_its_result_once_it_is_applied() -> None:
    async with cluster(1) as made, member(made) as counters:
        assert await counters.add("visits", 1) == 1
        assert await counters.call(Counters.add, "visits", amount=2) == 3
        assert await counters.read(lambda state: state.values["visits"]) == 3
        assert counters.local.values == {"visits": 3}
        assert counters.status.commands == 2
        assert counters.status.leads_from is not None


async def test_commands_of_all_members_are_applied_everywhere() -> None:
    async with cluster() as made, member(made) as first, member(made) as second, member(made) as third:
        machines = [first, second, third]

        async def call(counters: replog.RunningMachine[Counters]) -> None:
            for _ in range(10):
                await counters.add("visits", 1)

        async with trio.open_nursery() as nursery:
            for counters in machines:
                for _ in range(3):
                    nursery.start_soon(call, counters)
        for counters in machines:
            assert await counters.read(lambda state: state.values) == {"visits": 90}
        assert sum(counters.status.leads_from is not None for counters in machines) == 1


async def test_read_sees_every_earlier_answered_command() -> None:
    async with cluster() as made, member(made) as leader, member(made) as other:
        for number in range(1, 20):
            assert await leader.add("visits") == number
            assert await other.read(lambda state: state.values["visits"]) == number


async def test_reads_share_an_append() -> None:
    async with cluster(1) as made, member(made) as counters:
        await counters.add("visits")
        before = counters.status.position
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(counters.read, len_of_values)
        assert counters.status.position.entry - before.entry <= 2


def len_of_values(state: Counters) -> int:
    return len(state.values)


async def test_raising_command_fails_in_its_caller_and_is_applied() -> None:
    async with cluster(1) as made, member(made) as leader, member(made) as other:
        for counters in (leader, other):
            with pytest.raises(CommandFailedError, match="ValueError: x is") as caught:
                await counters.take("x", 5)
            assert caught.value.kind == "ValueError"
        assert await other.read(lambda state: state.values) == {"x": -10}


async def test_wrong_arguments_raise_before_anything_is_sent() -> None:
    async with cluster(1) as made, member(made) as counters:
        await counters.add("visits")
        before = counters.status.position
        with pytest.raises(TypeError):
            await counters.add("visits", "1")
        with pytest.raises(AttributeError, match="no command 'sub'"):
            counters.sub  # noqa: B018
        with pytest.raises(ConfigError):
            await counters.call(len_of_values)
        assert counters.status.position == before


async def test_next_member_leads_when_the_leader_leaves() -> None:
    async with cluster() as made, trio.open_nursery() as nursery:
        leaving = trio.Event()

        async def lead(task_status: trio.TaskStatus[None]) -> None:
            async with member(made) as counters:
                await counters.add("visits", 5)
                task_status.started()
                await leaving.wait()

        await nursery.start(lead)
        async with member(made) as counters:
            assert await counters.add("visits") == 6
            assert counters.status.leads_from is None
            leaving.set()
            for number in range(7, 20):
                assert await counters.add("visits") == number
            assert counters.status.leads_from is not None


@pytest.mark.slow
async def test_deposed_leader_repeats_its_commands_at_the_next_one() -> None:
    """Another client takes the log over in the middle: what was under way is applied once. The leader says that it was deposed:
    nobody waits for its silence."""
    options = attrs.evolve(OPTIONS, repeat_after_s=1e4, session_timeout_s=1e5)
    async with (
        cluster() as made,
        member(made, options=options) as first,
        member(made, options=options) as second,
        made.client() as thief,
    ):
        for bookie in made.bookies:
            bookie.wire.delay_s = 0.03
        total, is_over = 0, False

        async def call(counters: replog.RunningMachine[Counters]) -> None:
            nonlocal total
            while not is_over:
                await counters.add("visits")
                total += 1

        async with trio.open_nursery() as nursery:
            for counters in (first, second):
                nursery.start_soon(call, counters)
            for _ in range(3):
                await trio.sleep(0.5)
                async with thief.write_log("counters"):
                    pass
            is_over = True
        assert total > 10
        assert await second.read(lambda state: state.values) == {"visits": total}


async def test_idle_leader_learns_of_its_deposition() -> None:
    async with cluster() as made, member(made) as counters, made.client() as thief:
        await counters.add("visits")
        before = counters.status.leads_from
        async with thief.write_log("counters"):
            pass
        await trio.sleep(10)
        assert before is not None
        assert counters.status.leads_from is not None
        assert counters.status.leads_from > before
        assert await counters.add("visits") == 2


@pytest.mark.parametrize(
    "error", [LedgerNotFoundError(8, "trimmed away"), FencedError(8, "fenced"), AddTimeoutError(8, "too slow")]
)
async def test_leader_competes_again_after_its_writer_failed(error: replog.ReplogError) -> None:
    """Among them: it was paused, and the next leader has trimmed away the ledger that it writes to."""
    async with cluster() as made, member(made) as counters:
        await counters.add("visits")
        host = counters._member.reception.leader
        assert isinstance(host, Leader)
        host.fail(error)
        assert await counters.add("visits") == 2


async def test_lost_messages_are_repeated_and_applied_once() -> None:
    """Bookies that lose adds make the log slow: callers repeat what is not answered in time."""
    options = attrs.evolve(OPTIONS, repeat_after_s=0.5)
    async with cluster() as made, member(made, options=options) as leader, member(made, options=options) as other:
        await other.add("visits", 0)
        for bookie in made.bookies:
            bookie.wire.is_held = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.add, "visits")
            nursery.start_soon(leader.add, "visits")
            await trio.sleep(3)
            for bookie in made.bookies:
                bookie.wire.release()
        assert await leader.read(lambda state: state.values) == {"visits": 2}


async def test_call_without_a_leader_times_out_with_unknown_outcome() -> None:
    options = attrs.evolve(OPTIONS, call_timeout_s=2.0)
    async with cluster() as made, member(made, options=options) as counters:
        await counters.add("visits")
        for bookie in made.bookies:
            bookie.wire.is_held = True
        with pytest.raises(CommandTimeoutError):
            await counters.add("visits")
        with pytest.raises(CommandTimeoutError):
            await counters.read(len_of_values)
        for bookie in made.bookies:
            bookie.wire.release()
        assert await counters.add("visits") in (2, 3)


async def test_caller_repeats_by_its_id_after_its_own_restart() -> None:
    async with cluster() as made:
        async with made.client() as client:
            await client.logs()
        async with member(made) as leader:
            async with trio.open_nursery() as nursery:
                first = await nursery.start(run_until_cancelled, made)
                command_id = await first.next_id()
                assert await first.call_as(command_id, Counters.add, "visits", 3) == 3
                nursery.cancel_scope.cancel()
            async with member(made) as again:
                assert await again.call_as(str(command_id), Counters.add, "visits", 3) == 3
                assert await again.add("visits") == 4
                with pytest.raises(SessionExpiredError):
                    await again.call_as("99:1", Counters.add, "visits")
        assert leader.local.values == {"visits": 4}


async def test_unanswered_command_is_repeated_after_its_caller_left() -> None:
    options = attrs.evolve(OPTIONS, call_timeout_s=2.0)
    async with cluster(1) as made, member(made) as leader:
        async with member(made, options=options) as caller:
            command_id = await caller.next_id()
            made.bookies[0].wire.is_held = True
            with pytest.raises(CommandTimeoutError):
                await caller.call_as(command_id, Counters.add, "visits")
            made.bookies[0].wire.release()
        assert await leader.call_as(command_id, Counters.add, "visits") == 1
        assert await leader.add("visits") == 2


async def run_until_cancelled(made: Cluster, task_status: trio.TaskStatus[replog.RunningMachine[Counters]]) -> None:
    async with member(made) as counters:
        task_status.started(counters)
        await trio.sleep_forever()


async def test_floor_is_the_lowest_command_without_an_answer() -> None:
    """Above it, the leader would forget an answer that may be lost and asked for again."""
    async with cluster(1) as made, member(made) as counters:
        first, second = await counters.next_id(), await counters.next_id()
        session = counters._ids
        assert [session.floor(first), session.floor(second)] == [first.sequence, first.sequence]
        await counters.call_as(second, Counters.add, "visits")
        assert session.floor(second) == first.sequence
        session.ended(first)
        third = await counters.next_id()
        assert session.floor(third) == second.sequence, "an interrupted caller may ask for the last answers again"
        session.make_room(second.session, second.sequence)
        assert session.floor(third) == third.sequence
        assert session.floor(replog.CommandId(99, 1)) == 0


async def test_silent_session_expires_and_its_caller_learns_it() -> None:
    options = attrs.evolve(OPTIONS, session_timeout_s=8.0)
    async with cluster() as made, member(made, options=options) as leader:
        async with trio.open_nursery() as nursery:
            silent = await nursery.start(run_until_cancelled, made)
            command_id = await silent.next_id()
            nursery.cancel_scope.cancel()
        await leader.add("visits")
        await trio.sleep(30)
        with pytest.raises(SessionExpiredError):
            await leader.call_as(command_id, Counters.add, "visits")
        # Its own session lived on, by signs of life.
        assert leader.status.sessions == 1
        assert await leader.add("visits") == 2


async def test_leader_refuses_a_command_unknown_to_its_readers() -> None:
    @attrs.define
    class Newer(Counters):
        @replog.command
        def double(self, name: str) -> int:
            self.values[name] *= 2
            return self.values[name]

    async with cluster() as made:
        async with member(made) as older, member(made, Newer) as newer:
            await older.add("visits")
            with pytest.raises(CommandRefusedError, match="nothing was written"):
                await newer.double("visits")
        with pytest.raises(UnknownCommandError, match="double"):
            async with member(made, Newer) as newer, member(made) as older:
                assert await newer.double("visits") == 2
                await trio.sleep(10)


async def test_foreign_log_stops_the_member() -> None:
    async with cluster() as made, made.client() as client:
        async with client.write_log("counters") as log:
            await log.append(b"hello")
        with pytest.raises(UnknownCommandError, match="hello"):
            async with member(made):
                await trio.sleep(10)


async def test_members_stop_when_their_states_diverge() -> None:
    @attrs.define
    class Diverging(Counters):
        @replog.command
        def add(self, name: str, amount: int = 1) -> int:
            self.values[name] = id(self)
            return 0

    options = attrs.evolve(OPTIONS, check_every=5)
    with pytest.raises(StateDivergedError):
        async with cluster() as made, member(made, Diverging, options), member(made, Diverging, options) as other:
            for _ in range(20):
                await other.add("visits")
            await trio.sleep(10)


async def test_equal_states_pass_the_checks() -> None:
    options = attrs.evolve(OPTIONS, check_every=5)
    async with cluster() as made, member(made, options=options) as leader, member(made, options=options) as other:
        for _ in range(20):
            await leader.add("visits")
        await other.read(len_of_values)
        assert other._member.core.checked is not None
        assert other._member.core.checked == leader._member.core.checked


async def test_clock_set_back_causes_no_difference_of_states() -> None:
    """The time of a leader's first entries counts in the leader, too."""
    time_ns = 2 * 10**18
    use_entropy(Entropy(time_ns=lambda: time_ns))
    async with cluster(1) as made, member(made) as leader, member(made) as other:
        await until(lambda: leader.status.leads_from is not None)
        time_ns -= 10**9
        applied_at_ns = await leader.call(Counters.time)
        assert await other.read(lambda state: state.now_ns) == applied_at_ns


@attrs.define
class Large(Counters):
    @replog.command
    def repeat(self, text: str, count: int) -> str:
        return text * count


async def test_oversized_command_harms_no_member() -> None:
    """Without a bound, each leader in turn would fail at the answer."""

    async with cluster(1) as made, member(made, Large) as counters:
        with pytest.raises(CommandRefusedError, match="nothing was sent"):
            await counters.add("x" * (33 << 20))
        with pytest.raises(CommandFailedError, match="the limit is"):
            await counters.repeat("x" * 1024, 33 << 10)
        assert await counters.add("visits") == 1


async def test_answers_beyond_one_message_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone, if need be, however large it is."""
    monkeypatch.setattr(visits, "ANSWER_BYTES_MAX", 100)

    async with cluster(1) as made, member(made, Large) as counters:
        await counters.add("visits")
        found: dict[int, str] = {}

        async def ask(number: int) -> None:
            found[number] = await counters.repeat("x", 40 * number)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(ask, number)
        assert found == {number: "x" * 40 * number for number in range(10)}


async def entries_of(made: Cluster) -> int:
    async with made.client() as client, client.read_log("counters") as log:
        return sum([1 async for _ in log])


async def test_kept_id_delays_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its caller takes to save it."""
    monkeypatch.setattr(cores, "RESULTS_MAX", 4)
    async with cluster(1) as made, member(made) as counters:
        command_id = await counters.next_id()
        with trio.fail_after(10):
            for number in range(1, 21):
                assert await counters.add("visits") == number
            assert await counters.call_as(command_id, Counters.add, "visits") == 21


@pytest.mark.parametrize("results", [0, 20])  # that fill the session, before the id is used
async def test_abandoned_ids_delay_no_other(monkeypatch: pytest.MonkeyPatch, results: int) -> None:
    monkeypatch.setattr(cores, "RESULTS_MAX", 4)
    async with cluster(1) as made, member(made) as counters:
        with trio.fail_after(10):
            for number in range(1, results + 1):
                await counters.next_id()
                assert await counters.call_as(await counters.next_id(), Counters.add, "visits") == number
            late = await counters.next_id()
            with pytest.raises(TypeError):
                await counters.call_as(late, Counters.add, 5)  # type: ignore[arg-type]
            assert await counters.call_as(late, Counters.add, "visits") == results + 1
            assert await counters.add("visits") == results + 2
        assert await entries_of(made) < 4 * results + 20


async def test_calls_with_many_bytes_of_results_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a session keeps. The leader writes no command that it could not apply."""
    monkeypatch.setattr(cores, "RESULTS_BYTES_MAX", 400)
    async with cluster(1) as made, member(made, Large) as counters:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(counters.repeat, "x", 40)
                    nursery.start_soon(counters.call_as, await counters.next_id(), Large.repeat, "x", 40)  # type: ignore[arg-type]
        assert await entries_of(made) < 400


async def test_answers_to_other_processes_fill_no_session_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of one member, all used by another one: the first one does not hear of the answers."""
    monkeypatch.setattr(cores, "RESULTS_MAX", 4)
    options = attrs.evolve(OPTIONS, session_timeout_s=4.0)
    async with cluster(1) as made, member(made) as leader, member(made, options=options) as giver:
        with trio.fail_after(30):
            for number in range(1, 10):
                assert await leader.call_as(await giver.next_id(), Counters.add, "visits") == number


async def test_full_session_without_its_member_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "RESULTS_MAX", 2)
    options = attrs.evolve(OPTIONS, call_timeout_s=2.0)
    async with cluster(1) as made, member(made, options=options) as leader:
        async with member(made) as gone:
            ids = [await gone.next_id() for _ in range(4)]
        for each in ids[1:3]:
            await leader.call_as(each, Counters.add, "visits")
        before = await entries_of(made)
        with pytest.raises(CommandTimeoutError, match=f"{ids[3]} was not applied .* full of answers"):
            await leader.call_as(ids[3], Counters.add, "visits")
        assert await entries_of(made) <= before + 2, "it is written once at most, and not with each repeat"
        assert await leader.add("visits") == 3


async def test_leader_without_room_is_asked_again_after_a_pause() -> None:
    """It says so later, as it finds out when it pushes: the answer itself must not be what ends the pause."""
    asked: list[float] = []
    token = trio.lowlevel.current_trio_token()

    class Full:
        def take(self, visit: Visit, requests: Sequence[MachineEntry]) -> None:
            asked.append(trio.current_time())
            assert len(asked) < 500, f"asked so often within {asked[-1] - asked[0]} s"
            for place in range(len(requests)):
                response = visit.answered(place, Answer(Code.BUSY))
                if response is not None:
                    token.run_sync_soon(visit.reply, [response])

    async with cluster(1) as made, member(made) as counters:
        await counters.add("visits")
        reception = counters._member.reception
        leader, reception.leader = reception.leader, Full()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counters.add, "visits")
            await trio.sleep(2)
            reception.leader = leader
        assert await counters.add("visits") == 3


async def test_timed_out_calls_leave_room_for_others() -> None:
    """As many go together afterwards as before."""
    options = attrs.evolve(OPTIONS, call_timeout_s=5.0, calls_bytes_max=500)

    class Silent:
        def take(self, visit: Visit, requests: Sequence[MachineEntry]) -> None:
            pass

    async with cluster(1) as made, member(made, options=options) as counters:
        await counters.add("visits")
        made.bookies[0].wire.delay_s = 0.1

        async def duration_s() -> float:
            began_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(counters.add, "visits")
            return trio.current_time() - began_s

        async def time_out() -> None:
            with pytest.raises(CommandTimeoutError):
                await counters.add("visits")

        before_s = await duration_s()
        reception = counters._member.reception
        leader, reception.leader = reception.leader, Silent()
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(time_out)
        reception.leader = leader
        await trio.sleep(10)  # another link is used by then
        assert await duration_s() <= 1.5 * before_s


async def test_leader_refuses_to_end_invalid_sessions() -> None:
    """In the log it would stop every member."""
    async with cluster(1) as made, member(made) as counters:
        for body in (b"x", b"[true]", b"[" * 100_000):
            answer = await counters._caller.ask(MachineEntry(Kind.EXPIRE, body=body))
            assert answer.code == Code.REFUSED
        assert await counters.add("visits") == 1


@pytest.mark.slow
async def test_calls_without_a_session_time_out_together() -> None:
    async with cluster(1) as made:
        made.bookies[0].wire.is_deaf = True
        async with member(made) as counters, trio.open_nursery() as nursery:
            began_s = trio.current_time()

            async def call() -> None:
                with pytest.raises(CommandTimeoutError):
                    await counters.add("visits")
                assert trio.current_time() - began_s < OPTIONS.call_timeout_s + 1

            for _ in range(3):
                nursery.start_soon(call)


async def test_member_is_left_while_its_signs_of_life_get_lost() -> None:
    async with cluster(1) as made, member(made) as counters:
        await counters.add("visits")
        made.bookies[0].wire.is_deaf = True
        await trio.sleep(0.7 * OPTIONS.session_timeout_s)


async def test_password_keeps_others_out() -> None:
    async with cluster() as made, member(made, password=b"secret") as leader:
        await leader.add("visits")
        options = attrs.evolve(OPTIONS, call_timeout_s=5.0)
        with pytest.raises(replog.errors.UnauthorizedError):
            async with member(made, options=options, password=b"wrong") as other:
                await other.add("visits")


class Nobody:
    def take(self, visit: Visit, requests: Sequence[MachineEntry]) -> None:
        raise AssertionError("nobody is asked")


def test_reception_refuses_impossible_requests() -> None:
    reception, heard = Reception(b""), list[Response]()
    good, bad = MachineEntry(Kind.READ).encode(), b"x"
    requests: list[Request] = [
        AdminRequest(1, AdminCommand.STATISTICS),
        request_of(2, [good], bytes(32)),
        request_of(3, [good], Reception(b"")._key),
    ]
    reception.handle(requests, heard.extend)
    assert [each.status for each in heard] == [Status.BAD_REQUEST, Status.UNAUTHORIZED, Status.FENCED]
    reception.leader = Nobody()
    reception.handle([request_of(4, [bad], Reception(b"")._key)], heard.extend)
    assert heard[-1].status is Status.BAD_REQUEST
