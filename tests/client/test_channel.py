"""Requests to one bookie: each answer finds its caller, and unanswered requests end."""

import itertools
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from replog.abc import Connection
from replog.client.channel import Answer, BookieChannel
from replog.errors import BookieTooBusyError, BookieUnreachableError
from replog.protocol.effects import SendAdd
from replog.protocol.messages import AddRequest, CopyRequest, ReadRequest, Request, Response, Status, ledger_awaited
from tests.protocol.driving import Cluster

TIMEOUT_S = 1.0


class Wire(Connection):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Request] = []

    def send(self, requests: Sequence[Request]) -> None:
        self.sent += requests

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Asker:
    """Asks, and keeps the answers by what they were asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}

    def ask(self, channel: BookieChannel, name: str, request: Request | None = None) -> Request:
        if request is None:
            request = ReadRequest(next(channel.request_ids), 7, bytes(32), 0, 1, 1)
        channel.ask(request, self._answered, name, TIMEOUT_S)
        return request

    def _answered(self, answer: Answer, name: object) -> None:
        assert isinstance(name, str)
        assert name not in self.answers, "one answer for each"
        self.answers[name] = answer


def channels(count: int, outstanding_bytes_max: int = 1 << 20) -> list[BookieChannel]:
    request_ids = itertools.count(1)
    found = [BookieChannel(f"b{n}", outstanding_bytes_max, TIMEOUT_S, request_ids) for n in range(count)]
    for channel in found:
        channel.connected(Wire())
    return found


def test_one_request_may_go_to_several_bookies() -> None:
    one, two = channels(2)
    asker = Asker()
    other = asker.ask(two, "other")
    shared = asker.ask(one, "one")
    assert asker.ask(two, "two", shared) is shared
    assert other.request_id != shared.request_id, "an id is used once for each bookie"
    two.responses_received([Response(shared.request_id, Status.OK)])
    assert list(asker.answers) == ["two"]
    assert (one.outstanding_bytes > 0, two.outstanding_bytes > 0) == (True, True)
    one.responses_received([Response(shared.request_id, Status.OK), Response(shared.request_id, Status.OK)])
    two.responses_received([Response(other.request_id, Status.NO_ENTRY)])
    assert list(asker.answers) == ["two", "one", "other"]
    assert (one.outstanding_bytes, two.outstanding_bytes) == (0, 0)


def test_an_answer_without_a_request_is_ignored() -> None:
    awaited: list[int] = []
    channel = BookieChannel("b", 1 << 20, TIMEOUT_S, itertools.count(1), awaited.append)
    channel.connected(Wire())
    asker = Asker()
    asker.ask(channel, "one")
    channel.responses_received([ledger_awaited(7)])
    assert (awaited, asker.answers) == ([7], {})
    assert channel.outstanding_bytes > 0


async def test_silence_ends_requests_even_after_idle_time(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    (channel,) = channels(1)
    asker = Asker()
    nursery.start_soon(channel.watch)
    for name in ("first", "second"):
        await trio.sleep(10 * TIMEOUT_S)  # nothing is outstanding: whoever watches sleeps
        asker.ask(channel, name)
        await trio.sleep(0.9 * TIMEOUT_S)
        assert name not in asker.answers
        await trio.sleep(0.4 * TIMEOUT_S)
        assert isinstance(asker.answers[name], BookieUnreachableError)
    assert channel.outstanding_bytes == 0


async def test_watch_ends_when_the_connection_is_lost(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    (channel,) = channels(1)
    asker = Asker()
    with trio.fail_after(5 * TIMEOUT_S):
        async with trio.open_nursery() as watching:
            watching.start_soon(channel.watch)
            await trio.testing.wait_all_tasks_blocked()
            channel.disconnected(BookieUnreachableError("b0", "gone"))
    asker.ask(channel, "late")
    assert isinstance(asker.answers["late"], BookieUnreachableError)


@pytest.mark.parametrize("requests", [1, 2])
def test_outstanding_requests_fail_when_the_connection_is_lost(requests: int) -> None:
    (channel,) = channels(1)
    asker = Asker()
    asked = [asker.ask(channel, str(number)) for number in range(requests)]
    channel.disconnected(BookieUnreachableError("b0", "gone"))
    assert [str(answer) for answer in asker.answers.values()] == [str(BookieUnreachableError("b0", "gone"))] * requests
    channel.responses_received([Response(asked[0].request_id, Status.OK)])
    assert channel.outstanding_bytes == 0


def test_outstanding_bytes_count_batches_kept_by_requests() -> None:
    """W6: what the bound of a bookie's outstanding bytes adds up."""
    writer = Cluster().writer()
    writer.add(bytes(10_000))
    batch = writer.find(SendAdd)[0].batch
    plain, adding, copying = channels(3)
    asker = Asker()
    asker.ask(plain, "read")
    asker.ask(adding, "add", AddRequest(next(adding.request_ids), 7, b"", 1, batch))
    asker.ask(copying, "copy", CopyRequest(next(copying.request_ids), 7, b"", 1, batch))
    assert 0 < plain.outstanding_bytes <= 1000
    assert adding.outstanding_bytes == copying.outstanding_bytes == plain.outstanding_bytes + len(batch.data)


def test_slow_bookie_gets_no_more_requests() -> None:
    (channel,) = channels(1, outstanding_bytes_max=1)
    asker = Asker()
    asker.ask(channel, "one")
    asker.ask(channel, "another")
    assert list(asker.answers) == ["another"]
    assert isinstance(asker.answers["another"], BookieTooBusyError)
