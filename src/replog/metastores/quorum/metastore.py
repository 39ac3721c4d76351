"""The metastore as a client sees it: finds the leader, repeats commands under their tokens, and names what is known at the end.

A command is repeated until its deadline, under the same token, so that it happens once (Q13). At the end, if no member can have
appended it, nothing was written; otherwise the outcome is unknown (M1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from replog.abc import Authenticator, MetastoreOverTransports, Transport, Versioned, check_key, check_value
from replog.errors import (
    ConfigError,
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.metastores.quorum.asking import Asking, Attempt, Members
from replog.metastores.quorum.questions import Answer, AnswerKind, Question, QuestionKind
from replog.protocol.consensus.commands import TOKEN_BYTES, Command, Outcome, Status, What
from replog.runtime.entropy import current_entropy


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
        """The values right below the key, of one moment."""
        return (await self._read(QuestionKind.VALUES, key)).values()

    async def status(self, timeout_s: float) -> list[dict[str, Any]]:
        """The state of all members that answer, as each of them sees it; of others, why they don't. For people."""
        return await self._asking.all_status(timeout_s)

    async def administer(self, kind: QuestionKind, facts: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Has the leader change the members. Raises `ConfigError` if it refuses, `MetastoreUnavailableError`,
        `MetastoreUncertainError`: then `status` tells."""
        question, attempt = Question(kind, facts=facts), Attempt()
        with trio.move_on_after(timeout_s):
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

    async def _read(self, kind: QuestionKind, key: str) -> Answer:
        check_key(key)
        self._check_open()
        with trio.move_on_after(self._timeout_s):
            return self._checked(key, await self._asking.ask(Question(kind, self._place(key)), Attempt()))
        raise MetastoreUnavailableError(
            f"metastore quorum: {key!r} could not be read within {self._timeout_s:g} s: no majority of the members "
            f"answers. {self._asking.problems()}"
        )

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
