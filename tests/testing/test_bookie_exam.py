"""The conformance suite of bookie loops: the bookie's own sits it, and those that cheat are found out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from replog.abc import BookieLoop, Reply, Storage
from replog.bookie.groups import Group
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.hookspecs import Event
from replog.protocol.messages import AddRequest, FenceRequest, Request, Response, Status
from replog.protocol.mutations import Mutation, PutBatch
from replog.testing import check_bookie_loop

pytestmark = pytest.mark.real  # a thread waits as a disk does


class AnswersFirst(BookieServer):
    """Acknowledges an add when it comes."""

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        adds = [each for each in requests if isinstance(each, AddRequest)]
        reply([Response(each.request_id, Status.OK) for each in adds])
        super().handle(requests, lambda _responses: None)


class Reorders(BookieServer):
    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        super().handle(requests[::-1], reply)


class AnswersTwice(BookieServer):
    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        super().handle(requests, lambda responses: reply([*responses, *responses]))


class TakesEveryKey(BookieServer):
    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        for each in requests:
            each.key = b"k" * 32  # type: ignore[union-attr]
        super().handle(requests, reply)


class ForgetsFences(BookieServer):
    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        for each in requests:
            if isinstance(each, FenceRequest):
                each.term = 1
        super().handle(requests, reply)


class StoresNothing(BookieServer):
    """Commits marks only."""

    def __init__(self, storage: Storage, options: BookieOptions, observe: Callable[[Event], None]) -> None:
        super().__init__(storage, options, observe)
        commit = storage.commit

        def commit_marks(mutations: Sequence[Mutation]) -> None:
            commit([each for each in mutations if not isinstance(each, PutBatch)])

        storage.commit = commit_marks  # type: ignore[method-assign]


class CommitsEachAlone(BookieServer):
    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        self._commits.queue._group_bytes_max = 0
        super().handle(requests, reply)


class TakesEverything(BookieServer):
    """Has no bound for what waits."""

    def __init__(self, storage: Storage, options: BookieOptions, observe: Callable[[Event], None]) -> None:
        super().__init__(storage, attrs.evolve(options, queue_bytes_max=1 << 40), observe)


class LeavesThemWaiting(BookieServer):
    """Leaves without answering what is queued."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        answer, is_left = self._commits._answer, False

        def answer_until_left(group: Group) -> None:
            if not is_left:
                answer(group)

        self._commits._answer = answer_until_left  # type: ignore[method-assign]
        async with super().running():
            yield
            is_left = True


CHEATS = {
    "answers first": AnswersFirst,
    "reorders": Reorders,
    "answers twice": AnswersTwice,
    "takes every key": TakesEveryKey,
    "forgets fences": ForgetsFences,
    "stores nothing": StoresNothing,
    "commits each alone": CommitsEachAlone,
    "takes everything": TakesEverything,
    "leaves them waiting": LeavesThemWaiting,
}


async def test_the_bookies_own_loop_passes() -> None:
    await check_bookie_loop(BookieServer)


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_a_loop_that_breaks_a_promise_fails(
    cheat: Callable[..., BookieLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replog.testing.promises.WAIT_MAX_S", 2.0)
    with pytest.raises(AssertionError, match="the contract is broken"), trio.fail_after(60):
        await check_bookie_loop(cheat)
