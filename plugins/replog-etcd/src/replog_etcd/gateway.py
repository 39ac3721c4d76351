"""Calls of etcd's gateway: JSON over HTTP, with deadlines, to whichever server answers.

Rules (M1): a change that was sent whole is never sent again, and if it is not answered its outcome is unknown. Anything that
was not sent, and every read, goes on to the next server, each getting its share of the time. A server that failed is left,
with the connections to it. All int64 are texts in this JSON, and what is false, zero or empty is absent.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import attrs
import trio

from replog.errors import MetastoreError, MetastoreUncertainError
from replog_etcd.connections import (
    AnswerLostError,
    Connection,
    Connections,
    Headers,
    NotSentError,
)
from replog_etcd.errors import EtcdAnswerTooLargeError, EtcdRefusedError, EtcdUnreachableError
from replog_etcd.options import Endpoint, EtcdOptions, Target
from replog_etcd.refusals import Refusal, read_refusal, refusal_in
from replog_etcd.tokens import Tokens

Message = Mapping[str, Any]

_ROUND_PAUSE_S = 0.1
_SHOWN_BYTES = 80
_WITH_LEADER: Headers = (
    ("Grpc-Metadata-hasleader", "true"),
)  # a server that is cut off from the others ends the stream


@attrs.define
class _Call:
    """One request on its way."""

    path: str
    body: bytes
    what: str  # for people
    is_change: bool
    timeout_s: float  # for all attempts
    is_sent: bool = False  # whole, and its fate is not known
    asked: Endpoint | None = None
    failures: list[str] = attrs.Factory(list)  # of this round


class Gateway:
    """The way of one client to one cluster. Used by any number of tasks of one trio run."""

    def __init__(self, target: Target, options: EtcdOptions) -> None:
        self.target = target
        self._options = options
        self._connections = Connections(options)
        self._tokens = Tokens(options, self._authenticate)
        self._preferred = 0  # the server that is asked first
        self._pid = os.getpid()
        self._scopes: set[trio.CancelScope] = set()
        self._is_closed = False

    # -- asking ---------------------------------------------------------------------------------------------------

    async def call(
        self, path: str, message: Message, *, what: str, is_change: bool = False, timeout_s: float = math.inf
    ) -> dict[str, Any]:
        """The answer to this request. `what` it is about, for people; `timeout_s` if `request_timeout_s` is too much.

        Raises `EtcdUnreachableError`, `EtcdRefusedError`, `MetastoreUncertainError` only for a change,
        `EtcdAnswerTooLargeError` only for a read, `trio.ClosedResourceError`."""
        call = self._new_call(path, message, what, is_change, timeout_s)
        # The wait for a slot counts, too: what callers are promised is a deadline, whatever the time is spent on.
        with self.in_use(), trio.move_on_after(call.timeout_s):
            async with self._connections.slot():
                while True:
                    answer = await self._ask_everybody(call)
                    if answer is not None:
                        return answer
                    await trio.sleep(_ROUND_PAUSE_S)  # they are electing a leader, or about to
        # The next call begins with another server: this one may hang.
        if call.asked is not None:
            self._leave(call.asked)
        problems = "".join(f"; {each}" for each in call.failures)
        raise self._failure(call, f"no answer within {call.timeout_s:.3g} s{problems}")

    def _new_call(
        self, path: str, message: Message, what: str, is_change: bool = False, timeout_s: float = math.inf
    ) -> _Call:
        timeout_s = min(timeout_s, self._options.request_timeout_s)
        return _Call(path, json.dumps(message).encode(), what, is_change, timeout_s)

    async def _ask_everybody(self, call: _Call) -> dict[str, Any] | None:
        """The answer, or None if nobody has one and asking again may help."""
        call.failures, may_improve = [], False
        for endpoint in self._in_order():
            try:
                return await self._ask(endpoint, call)
            except Refusal as refusal:
                self._judge(endpoint, call, refusal)
                call.failures.append(f"{endpoint}: {refusal}")
                may_improve = True
            except (NotSentError, AnswerLostError) as error:
                self._leave(endpoint)
                call.failures.append(f"{endpoint}: {error}")
                if call.is_sent and call.is_change:
                    raise self._failure(call, call.failures[-1]) from error
        if may_improve:
            return None
        raise self._failure(call, "; ".join(call.failures))

    def _judge(self, endpoint: Endpoint, call: _Call, refusal: Refusal) -> None:
        """Raises what the caller must know; returns if another server may do better."""
        if not refusal.may_pass:
            raise EtcdRefusedError(
                f"{self.target}: {call.what}: {endpoint} refuses: {refusal}", refusal.code
            ) from refusal
        self._leave(endpoint)
        # A refusal that is not definite came after the change was proposed: it may still happen (M1).
        call.is_sent = call.is_change and not refusal.is_definite
        if call.is_sent:
            raise self._failure(call, f"{endpoint} says: {refusal}") from refusal

    async def _ask(self, endpoint: Endpoint, call: _Call) -> dict[str, Any]:
        token = await self._tokens.get()
        try:
            return await self._ask_once(endpoint, call, token)
        except Refusal as refusal:
            if not refusal.is_about_token or not token:
                raise
            self._tokens.forget(token)
        # etcd looks at the token before anything else, so nothing was changed.
        call.is_sent = False
        return await self._ask_once(endpoint, call, await self._tokens.get())

    async def _ask_once(self, endpoint: Endpoint, call: _Call, token: str) -> dict[str, Any]:
        """Raises `Refusal`, `NotSentError`, `AnswerLostError`, `EtcdAnswerTooLargeError`."""
        call.asked = endpoint
        share_s = call.timeout_s / len(self.target.endpoints)
        connection = await self._connections.connect(endpoint, share_s)
        try:
            # A change gets all the time that is left: it can't be asked of another server once it was sent.
            with trio.fail_after(math.inf if call.is_change else share_s):
                await connection.send(call.path, _authorization(token), call.body)
                call.is_sent = True
                status = await connection.receive_head()
                body = await connection.receive_body(self._options.response_bytes_max)
        except trio.TooSlowError as error:
            connection.close()
            raise AnswerLostError(f"silent for {share_s:.3g} s") from error
        except EtcdAnswerTooLargeError as error:
            connection.close()
            if call.is_change:
                raise AnswerLostError("the answer is too large") from error
            raise
        except BaseException:
            connection.close()
            raise
        self._connections.give_back(connection)
        return _parse_answer(status, body)

    async def _authenticate(self, message: Message) -> str:
        """A new token. Raises `EtcdUnreachableError`, `EtcdRefusedError`."""
        call = self._new_call("/v3/auth/authenticate", message, "signing in")
        for endpoint in self._in_order():
            try:
                return str((await self._ask_once(endpoint, call, ""))["token"])
            except Refusal as refusal:
                self._judge(endpoint, call, refusal)
                call.failures.append(f"{endpoint}: {refusal}")
            except (NotSentError, AnswerLostError) as error:
                self._leave(endpoint)
                call.failures.append(f"{endpoint}: {error}")
            except (EtcdAnswerTooLargeError, KeyError) as error:
                raise self._failure(call, f"{endpoint}: the answer is not a token") from error
        raise self._failure(call, "; ".join(call.failures))

    def _failure(self, call: _Call, problem: str) -> MetastoreError:
        if call.is_sent and call.is_change:
            return MetastoreUncertainError(
                f"{self.target}: {call.what}: {problem}: it may have happened; read back before you go on"
            )
        return EtcdUnreachableError(f"{self.target}: {call.what}: {problem}. Nothing was changed; try again later")

    # -- listening ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(self, path: str, message: Message, *, what: str) -> AsyncIterator[Answers]:
        """Messages that come for as long as they do, on a connection of its own. Raises `EtcdUnreachableError`,
        `EtcdRefusedError`."""
        call = self._new_call(path, message, what)
        endpoint = self._in_order()[0]
        try:
            with trio.fail_after(self._options.request_timeout_s):
                connection = await self._open_stream(endpoint, call)
        except trio.TooSlowError as error:
            self._leave(endpoint)
            raise self._failure(call, f"{endpoint}: no answer") from error
        except (NotSentError, AnswerLostError, EtcdAnswerTooLargeError, Refusal) as error:
            self._leave(endpoint)
            raise self._failure(call, f"{endpoint}: {error}") from error
        try:
            yield Answers(connection, self._options.response_bytes_max)
        except (AnswerLostError, Refusal) as error:
            self._leave(endpoint)
            raise self._failure(call, f"{endpoint}: {error}") from error
        finally:
            connection.close()

    async def _open_stream(self, endpoint: Endpoint, call: _Call) -> Connection:
        token = await self._tokens.get()
        # Never an idle connection: a stream keeps its own as long as it lives.
        connection = await self._connections.dial(endpoint, self._options.request_timeout_s)
        try:
            await connection.send(call.path, (*_authorization(token), *_WITH_LEADER), call.body)
            status = await connection.receive_head()
            if status == HTTPStatus.OK:
                return connection
            refusal = read_refusal(status, await connection.receive_body(self._options.response_bytes_max))
        except BaseException:
            connection.close()
            raise
        connection.close()
        if refusal.is_about_token:
            self._tokens.forget(token)
        elif not refusal.may_pass:
            self._judge(endpoint, call, refusal)
        raise refusal

    # -- which server, and whether at all -------------------------------------------------------------------------

    def _in_order(self) -> list[Endpoint]:
        endpoints = self.target.endpoints
        return [*endpoints[self._preferred :], *endpoints[: self._preferred]]

    def _leave(self, endpoint: Endpoint) -> None:
        self._connections.forget(endpoint)
        endpoints = self.target.endpoints
        if endpoints[self._preferred] == endpoint:
            self._preferred = (self._preferred + 1) % len(endpoints)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Calls in this block end with `trio.ClosedResourceError` when the gateway is closed, and do not begin afterwards."""
        if self._is_closed:
            raise trio.ClosedResourceError(f"{self.target}: this metastore was closed")
        if os.getpid() != self._pid:
            raise MetastoreError(
                f"{self.target}: opened by process {self._pid}, used in its fork {os.getpid()}; nothing was done. "
                "Open a new one after the fork"
            )
        # A scope for each call, so that `close` ends calls of any task.
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise trio.ClosedResourceError(f"{self.target}: this metastore was closed")

    def close(self) -> None:
        """Ends what is under way. Idempotent."""
        self._is_closed = True
        for scope in list(self._scopes):
            scope.cancel()
        self._connections.close()


class Answers:
    """The messages of a stream, one JSON object a line."""

    def __init__(self, connection: Connection, message_bytes_max: int) -> None:
        self._connection = connection
        self._message_bytes_max = message_bytes_max
        self._buffer = bytearray()
        self._searched_bytes = 0

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises `AnswerLostError` when the stream ends or a message is too large, `Refusal`."""
        # The search goes on where it stopped: a large message comes in many pieces.
        while (end := self._buffer.find(b"\n", self._searched_bytes)) < 0:
            self._searched_bytes = len(self._buffer)
            if self._searched_bytes > self._message_bytes_max:
                raise AnswerLostError("a message is too large")
            piece = await self._connection.receive_piece()
            if not piece:
                raise AnswerLostError("the stream ended")
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched_bytes = 0
        message = _parse(line)
        if "error" in message:
            raise _refusal_in_stream(message["error"])
        result = message.get("result", {})
        if not isinstance(result, dict):
            raise AnswerLostError(f"no message of a stream: {line[:_SHOWN_BYTES]!r}")
        return result


def _refusal_in_stream(error: object) -> Exception:
    try:
        return refusal_in(error)
    except (KeyError, TypeError, ValueError):
        return AnswerLostError(f"the stream ended: {error!r}"[:200])


def _parse_answer(status: int, body: bytes) -> dict[str, Any]:
    """Raises `Refusal`; `AnswerLostError` if it is nothing that etcd says: from `{}` alone one would learn that no key exists."""
    if status != HTTPStatus.OK:
        raise read_refusal(status, body)
    answer = _parse(body)
    # Every answer of etcd has a header with a revision. A proxy's `{}` would otherwise say that no key exists.
    header = answer.get("header", {}) if "result" not in answer else {"revision": "0"}  # of a stream with one message
    if not isinstance(header, dict) or not str(header.get("revision", "")).isdecimal():
        raise AnswerLostError(f"the answer is not etcd's: {body[:_SHOWN_BYTES]!r}")
    return answer


def _parse(body: bytes) -> dict[str, Any]:
    """Raises `AnswerLostError`."""
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise AnswerLostError(f"the answer is not JSON: {body[:_SHOWN_BYTES]!r}") from error
    if not isinstance(answer, dict):
        raise AnswerLostError(f"the answer is not a JSON object: {body[:_SHOWN_BYTES]!r}")
    return answer


def _authorization(token: str) -> Headers:
    return (("Authorization", token),) if token else ()
