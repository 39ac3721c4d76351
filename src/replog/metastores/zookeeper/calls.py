"""One call of the metastore: a deadline, and the known state of its changes.

Rules: a read whose answer was lost is asked again until the deadline; a change never is. A change that was given to
kazoo and not answered is uncertain (M1), regardless of its fate in kazoo's queue. No exception of kazoo leaves here
bare, except answers to a request, which the caller interprets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import trio
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    OperationTimeoutError,
    QuotaExceededError,
    RequestTimeoutError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    SystemZookeeperError,
    ThrottledOpError,
)

from replog.errors import MetastoreError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.zookeeper.driver import Result
from replog.metastores.zookeeper.session import Request, Session

Answer = TypeVar("Answer")

# Nobody can say what became of the request. ConnectionClosedError is a SessionExpiredError.
_LOST = (
    ConnectionLoss,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    RequestTimeoutError,
    SystemZookeeperError,
)
_PAUSE_S = 0.05


@attrs.frozen
class Failure:
    """The answer to a request that did not succeed."""

    error: KazooException


class Call:
    """One call of the metastore: its reads and changes. `what` names it, for people."""

    def __init__(self, session: Session, what: str) -> None:
        self.session = session
        self.what = what
        self._is_in_doubt = False

    async def ask(self, *requests: Request) -> list[Any]:
        """Reads, in one go: the answers, or a `Failure` for each that has none. Asks until they are answered."""
        while True:
            results = await self.session.exchange(requests, _nothing)
            self._check_welcome(results)
            if not any(map(_is_lost, results)):
                return [self._outcome(result) for result in results]
            # The server is there, and would not answer just now.
            if self.session.is_connected:
                await trio.sleep(_PAUSE_S)

    async def change(self, request: Request) -> Any:
        """Changes something: the answer, or a `Failure`. Raises `MetastoreUncertainError` if it was lost."""
        return (await self.change_all(request))[-1]

    async def change_all(self, *requests: Request) -> list[Any]:
        """Changes, in one go, in this order. If one fails, those behind it are done all the same."""
        results = await self.session.exchange(requests, self._submitted)
        self._check_welcome(results)
        # One lost answer makes the whole call uncertain: it is unknown which of its changes were made.
        if any(map(_is_lost, results)):
            raise self._uncertain("the connection to ZooKeeper was lost before the answer came")
        # An answer came, good or bad: what happened is known.
        self._is_in_doubt = False
        return [self._outcome(result) for result in results]

    def forget_doubt(self) -> None:
        """Notes that the uncertain changes have been resolved."""
        self._is_in_doubt = False

    def out_of_time(self, timeout_s: float) -> MetastoreError:
        """The error for a call that took too long."""
        if self._is_in_doubt:
            return self._uncertain(f"no answer within {timeout_s:g} s")
        problem = "ZooKeeper did not answer" if self.session.is_connected else f"not connected: {self.session.problem}"
        return MetastoreUnavailableError(
            f"{self.session.place}: {self.what}: gave up after {timeout_s:g} s, {problem}. Nothing was written; try again"
        )

    def refused(self, failure: Failure) -> MetastoreError:
        """The error for an unexpected answer. Nothing was written."""
        where = f"{self.session.place}: {self.what}"
        error = failure.error
        if isinstance(error, NoAuthError):
            text = "ZooKeeper does not allow it: look at the nodes' ACLs, and at user, mechanism and acl here"
        elif isinstance(error, InvalidACLError):
            text = "ZooKeeper refused the ACL: acl=creator and acl=readable need credentials that it knows"
        elif isinstance(error, SessionClosedRequireSaslError):
            text = "ZooKeeper requires authentication: user and password_file are needed"
        elif isinstance(error, NoChildrenForEphemeralsError):
            text = "an announced key cannot have keys below it"
        elif isinstance(error, QuotaExceededError):
            text = "a quota that was set in ZooKeeper is used up"
        elif isinstance(error, ThrottledOpError):
            text = "ZooKeeper has too much to do; try again"
        else:
            text = f"ZooKeeper answered with {type(error).__name__}"
        kind = MetastoreUnavailableError if isinstance(error, ThrottledOpError) else MetastoreError
        refusal = kind(f"{where}: {text}. Nothing was written")
        refusal.__cause__ = error
        return refusal

    def _check_welcome(self, results: list[Result]) -> None:
        """A server that requires authentication says so once, and closes the connection: later requests are lost."""
        error = results[0].exception if results[0].ready() else None
        if isinstance(error, SessionClosedRequireSaslError):
            self._is_in_doubt = False
            raise self.refused(Failure(error))

    def _submitted(self) -> None:
        self._is_in_doubt = True

    def _uncertain(self, problem: str) -> MetastoreUncertainError:
        return MetastoreUncertainError(
            f"{self.session.place}: {self.what}: {problem}. It may have happened or not; read back before you go on"
        )

    def _outcome(self, result: Result) -> Any:
        try:
            return result.get(block=False)
        except AuthFailedError as error:
            # Of the connection: kazoo sent nothing of this.
            raise MetastoreError(
                f"{self.session.place}: {self.what}: {self.session.problem}. Nothing was written"
            ) from error
        except KazooException as error:
            return Failure(error)


async def within(session: Session, timeout_s: float, what: str, work: Callable[[Call], Awaitable[Answer]]) -> Answer:
    """Does something with a deadline. Raises `MetastoreError`, `MetastoreUncertainError`, and what the work raises."""
    call = Call(session, what)
    with trio.move_on_after(timeout_s):
        return await work(call)
    raise call.out_of_time(timeout_s)


def _is_lost(result: Result) -> bool:
    if not result.ready():
        return True
    error = result.exception
    # Other exceptions than KazooException come from an answer that kazoo could not read: its thread ends then.
    return isinstance(error, _LOST) or not (error is None or isinstance(error, KazooException))


def _nothing() -> None:
    pass
