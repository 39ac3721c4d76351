"""The metastore as a client sees it: finds the leader, repeats commands under their tokens, and names what is known at the end.

A command is repeated until its deadline, under the same token, so that it happens once (Q13). At the end, if no member can have
appended it, nothing was written; otherwise the outcome is unknown (M1).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from replog.abc import Authenticator, MetastoreOverTransports, Transport, ValuesPage, Versioned, check_key, check_value
from replog.errors import (
    ConfigError,
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.metastores.quorum.announcing import announcement
from replog.metastores.quorum.asking import Asking, Attempt, Members
from replog.metastores.quorum.questions import Answer, AnswerKind, Question, QuestionKind, digest_of
from replog.protocol.consensus.commands import LEASE, LEASE_MS_MAX, TOKEN_BYTES, Command, Outcome, Status, What
from replog.runtime.entropy import current_entropy

_PAUSE_S = 0.5
_NO_FACTS: Mapping[str, Any] = {}


class QuorumMetastore(MetastoreOverTransports):
    """A view of the cluster's metastore. Every key of it begins with `prefix`."""

    def __init__(self, members: Members, *, prefix: str = "", timeout_s: float = 10.0, lease_s: float = 10.0) -> None:
        self.lease_s = lease_s
        self._members = members
        self._asking = Asking(members)
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._known = 0  # the index of a committed entry (Q13)
        self._is_closed = False

    def use(self, open_transport: Callable[[str], Transport], authenticator: Authenticator | None) -> None:
        """How to reach members, and to prove who asks."""
        self._members.use(open_transport, authenticator)

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key, and returns its version."""
        check_value(key, value)
        outcome = await self._change(What.CREATE, key, bytes(value))
        if outcome.status is Status.EXISTS:
            raise KeyExistsError(key, "it exists already: nothing was written")
        return outcome.version

    async def get(self, key: str) -> Versioned:
        """The value and its version."""
        answer = await self._read(QuestionKind.GET, key)
        if answer.kind is AnswerKind.MISSING:
            raise KeyNotFoundError(key, "it does not exist")
        return answer.versioned()

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value if the version is as expected, and returns the new version."""
        check_value(key, value)
        return (await self._change(What.PUT, key, bytes(value), expected)).version

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key, if it has the expected version."""
        await self._change(What.DELETE, key, b"", expected)

    async def children(self, key: str) -> list[str]:
        """The words right below the key, sorted."""
        return (await self._read(QuestionKind.CHILDREN, key)).words()

    async def values(self, key: str) -> dict[str, Versioned]:
        """The values right below the key, in pages, each of one moment."""
        return await self._all_pages(QuestionKind.VALUES, key)

    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """The values right below the key from this last word on, of one moment."""
        return (await self._read(QuestionKind.VALUES, key, {"first": first, "count_max": count_max})).page()

    # -- waits, which the leader holds ------------------------------------------------------------------------------

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns soon after the key's version differs from this. May return early."""
        await self._wait(key, {"version": version})

    async def wait_children_changed(self, key: str, known: Sequence[str]) -> None:
        """Returns soon after the children differ from these. May return early."""
        await self._wait(key, {"words": digest_of(known)})

    async def _wait(self, key: str, facts: Mapping[str, Any]) -> None:
        check_key(key)
        question = Question(QuestionKind.WAIT, self._place(key), facts=facts)
        while True:
            self._check_open()
            try:
                answer = self._checked(key, await self._asking.ask(question, Attempt()))
            except MetastoreCorruptError:
                raise
            except MetastoreError:
                await trio.sleep(_PAUSE_S)  # a wait goes on while the members refuse
            else:
                if answer.kind is not AnswerKind.UNCHANGED:
                    return

    # -- who is alive -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        """Makes the key exist while the context is open. Beats write nothing: the leader counts the time (Q15)."""
        check_value(key, value)
        async with announcement(self, key, bytes(value), self.lease_s):
            yield

    async def announced(self, key: str) -> dict[str, bytes]:
        """The values that are announced right below the key."""
        return {word: each.value for word, each in (await self._all_pages(QuestionKind.ANNOUNCED, key)).items()}

    async def put_announcement(self, key: str, value: bytes) -> int:
        """Announces the key for a lease, and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`: then it is
        gone after the lease."""
        # Asking first costs nothing on disks: of a key that exists, a command would be an entry of the log all the same.
        with suppress(KeyNotFoundError):
            await self.get(key)
            raise KeyExistsError(key, "another client announces it, or it was created: nothing was written")
        lease_ms = min(math.ceil(1000 * self.lease_s), LEASE_MS_MAX)
        outcome = await self._change(What.ANNOUNCE, key, LEASE.pack(lease_ms) + value)
        if outcome.status is Status.EXISTS:
            raise KeyExistsError(key, "another client announces it: nothing was written")
        return outcome.version

    async def beat(self, key: str, version: int) -> bool:
        """Has the announcement of this version live for another lease; False if it is gone. Raises `MetastoreError`."""
        answer = await self._read(QuestionKind.BEAT, key, {"version": version})
        return answer.kind is AnswerKind.FOUND

    async def status(self, timeout_s: float) -> list[dict[str, Any]]:
        """The state of all members that answer, as each of them sees it; of others, why they don't. For people."""
        return await self._asking.all_status(timeout_s)

    async def administer(self, kind: QuestionKind, facts: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Has the leader change the members. Raises `ConfigError` if it refuses, `MetastoreError` if who asks is no administrator
        there, `MetastoreUnavailableError`, `MetastoreUncertainError`: then `status` tells."""
        question, attempt = Question(kind, facts=facts), Attempt()
        with trio.move_on_after(timeout_s):
            # Finds the leader first: without authentication only its own machine may change members, so others would refuse.
            with suppress(MetastoreError):  # an identity that may only administer, wherever it is
                await self._asking.ask(Question(QuestionKind.GET, self._place(kind.name)), Attempt())
            answer = await self._asking.ask(question, attempt)
            if answer.kind is AnswerKind.REFUSED:
                raise ConfigError(answer.text)
            found = answer.facts()
            self._asking.learn(dict(found.get("members", {})).values())
            return found
        raise self._failed(f"{kind.name.lower()} of a member", timeout_s, attempt)

    async def aclose(self) -> None:
        """From now on calls raise `trio.ClosedResourceError`. Idempotent."""
        self._is_closed = True
        await self._members.aclose()

    # -- asking -----------------------------------------------------------------------------------------------------

    async def _change(self, what: What, key: str, value: bytes, expected: int | None = None) -> Outcome:
        check_key(key)
        self._check_open()
        command, attempt = self._command(what, key, value, expected), Attempt()
        with trio.move_on_after(self._timeout_s):
            while True:
                question = Question(QuestionKind.CHANGE, command=command)
                answer = self._checked(key, await self._asking.ask(question, attempt))
                outcome = answer.outcome()
                if outcome.status is not Status.UNKNOWN:
                    return self._success(key, expected, outcome)
                if attempt.may_be_done:
                    break
                command = self._command(what, key, value, expected)  # this was its first try: it was not applied
        raise self._failed(f"{what.name.lower()} of {key!r}", self._timeout_s, attempt)

    def _command(self, what: What, key: str, value: bytes, expected: int | None) -> Command:
        token = current_entropy().random.randbytes(TOKEN_BYTES)
        return Command(token, self._known, what, self._place(key), value, expected)

    def _success(self, key: str, expected: int | None, outcome: Outcome) -> Outcome:
        if outcome.status is Status.MISSING:
            raise KeyNotFoundError(key, "it does not exist: nothing was written")
        if outcome.status is Status.CONFLICT:
            assert expected is not None, "whatever the version is, it does not conflict"
            raise VersionConflictError(key, expected, outcome.version)
        return outcome

    async def _read(self, kind: QuestionKind, key: str, facts: Mapping[str, Any] = _NO_FACTS) -> Answer:
        check_key(key)
        self._check_open()
        question = Question(kind, self._place(key), facts=facts)
        with trio.move_on_after(self._timeout_s):
            return self._checked(key, await self._asking.ask(question, Attempt()))
        raise MetastoreUnavailableError(
            f"metastore quorum: {key!r} could not be read within {self._timeout_s:g} s: no majority of the members "
            f"answers. {self._asking.problems()}"
        )

    async def _all_pages(self, kind: QuestionKind, key: str) -> dict[str, Versioned]:
        found: dict[str, Versioned] = {}
        first: str | None = ""
        while first is not None:
            page = (await self._read(kind, key, {"first": first})).page()
            found |= page.values
            first = page.next_first
        return found

    def _checked(self, key: str, answer: Answer) -> Answer:
        if answer.kind is AnswerKind.REFUSED:
            raise MetastoreCorruptError(f"metastore quorum: {key!r}: {answer.text}")
        self._known = max(self._known, answer.index)
        return answer

    def _failed(
        self, what: str, timeout_s: float, attempt: Attempt
    ) -> MetastoreUnavailableError | MetastoreUncertainError:
        problem = f"metastore quorum: {what} was not answered within {timeout_s:g} s"
        if attempt.may_be_done:
            return MetastoreUncertainError(
                f"{problem}: whether it happened is unknown; read the key before you go on. {self._asking.problems()}"
            )
        return MetastoreUnavailableError(
            f"{problem}: no majority of the members answers; nothing was written. {self._asking.problems()}"
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this metastore was closed")

    def _place(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key
