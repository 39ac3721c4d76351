"""Asking bookies as a repairer does: what they hold, and for copies of batches (F1, F3).

A ledger without a password is copied with its key, which anybody can make. For any other the transport must know this client as a
repairer (B7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import trio

from replog.client.channel import Answer
from replog.client.connections import Connections
from replog.errors import BookieError, BookieRefusedError, BookieUnreachableError, MetastoreError
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest
from replog.protocol.fragment_copies import FixedFragment
from replog.protocol.holding import Holding, decode_holding
from replog.protocol.messages import (
    DENIALS,
    CopyReadRequest,
    CopyRequest,
    RangesRequest,
    RepairRequest,
    Response,
    Status,
)
from replog.protocol.model import LedgerMetadata

READ_BYTES_MAX = 1 << 20  # of one read of copies: more would keep a bookie from its appends for too long


def key_of(metadata: LedgerMetadata) -> bytes:
    """The key of a ledger that has no password; b"" for one that has."""
    return metadata.key(b"") if metadata.is_opened_by(b"") else b""


def digest_of(metadata: LedgerMetadata) -> Digest | None:
    """The digest that checks the codes of a ledger without a password; None for a ledger with one."""
    return metadata.digest(b"") if metadata.is_opened_by(b"") else None


class BookieQuestions:
    """The questions of one repairer, or about one ledger of which the client has this `key`. Every call raises `BookieError` if
    the bookie cannot be reached, refuses, or is silent."""

    def __init__(self, connections: Connections, timeout_s: float, key: bytes = b"") -> None:
        self._connections = connections
        self._timeout_s = timeout_s
        self._key = key

    async def holding(self, bookie_id: str, metadata: LedgerMetadata, fragment: FixedFragment) -> Holding:
        """The entries of the fragment that the bookie holds."""
        first, last, ranges = fragment.first_entry_id, fragment.last_entry_id, list[tuple[int, int, int]]()
        damaged: list[tuple[int, int]] = []
        while True:
            request = self._ranges(metadata, fragment, first)
            answer = await self._ask(bookie_id, request)
            _check(bookie_id, metadata, answer)
            holding = decode_holding(answer.detail, request)
            ranges += holding.ranges
            damaged += holding.damaged
            if holding.through >= last:
                return Holding(tuple(ranges), last, holding.denial, tuple(damaged))
            # The answer was too long: the rest is asked for.
            first = holding.through + 1

    async def holdings(
        self, bookie_ids: Collection[str], metadata: LedgerMetadata, fragment: FixedFragment
    ) -> dict[str, Holding | BookieError]:
        """The entries of the fragment that each of these bookies holds, or the reason why it does not answer. Raises no
        `BookieError`.

        An audit asks this for each fragment of a cluster: where there is a connection, no task is made for a question."""
        found: dict[str, Holding | BookieError] = {}
        waiting, all_came = set[str](), trio.Event()
        request = self._ranges(metadata, fragment, fragment.first_entry_id)

        def on_answer(answer: Answer, bookie_id: str) -> None:
            waiting.discard(bookie_id)
            if isinstance(answer, BookieError):
                found[bookie_id] = answer
            elif answer.status is Status.OK:
                found[bookie_id] = decode_holding(answer.detail, request)
            else:
                found[bookie_id] = _refusal(bookie_id, metadata, answer)
            if not waiting:
                all_came.set()

        channels = {bookie_id: self._connections.channel(bookie_id) for bookie_id in bookie_ids}
        asked = {bookie_id: channel for bookie_id, channel in channels.items() if channel is not None}
        waiting.update(asked)
        for bookie_id, channel in asked.items():
            question = attrs.evolve(request, request_id=next(channel.request_ids))
            channel.ask(question, on_answer, bookie_id, self._timeout_s)
        if asked:
            await all_came.wait()
        for bookie_id in bookie_ids:
            holding = found.get(bookie_id)
            if holding is None or (isinstance(holding, Holding) and holding.through < fragment.last_entry_id):
                # It is not connected yet, or the answer was too long.
                try:
                    found[bookie_id] = await self.holding(bookie_id, metadata, fragment)
                except BookieError as error:
                    found[bookie_id] = error
        return found

    async def copies(self, bookie_id: str, metadata: LedgerMetadata, entry_id: int, stamp: int) -> tuple[Batch, ...]:
        """The batch with this entry, and some that follow it; () if the bookie has none, or only a damaged one."""
        key, stored_key = self._key_of(metadata), metadata.stored_key
        request = CopyReadRequest(0, metadata.ledger_id, key, entry_id, stamp, READ_BYTES_MAX, stored_key)
        answer = await self._ask(bookie_id, request)
        # Damage and absence, however weak, are the same here: there is no copy.
        if answer.status is not Status.UNKNOWN and answer.status not in DENIALS:
            _check(bookie_id, metadata, answer)
        return answer.batches

    async def store(
        self, bookie_id: str, metadata: LedgerMetadata, batches: Sequence[Batch], term: int
    ) -> list[Status | BookieError]:
        """Stores copies, which are sent together. For each of them: OK, FENCED, or why it may not be stored."""
        shared, stored_key = (metadata.ledger_id, self._key_of(metadata), term), metadata.stored_key
        answers = await self._ask_all(
            bookie_id,
            [
                CopyRequest(0, *shared, each, recovery=True, revision=metadata.revision, stored_key=stored_key)
                for each in batches
            ],
        )
        found: list[Status | BookieError] = []
        for answer in answers:
            if isinstance(answer, BookieError):
                found.append(answer)
            elif answer.status in (Status.OK, Status.FENCED):
                found.append(answer.status)
            else:
                found.append(_refusal(bookie_id, metadata, answer))
        return found

    def _ranges(self, metadata: LedgerMetadata, fragment: FixedFragment, first: int) -> RangesRequest:
        key, last = self._key_of(metadata), fragment.last_entry_id
        return RangesRequest(0, metadata.ledger_id, key, fragment.term, first, last, metadata.stored_key)

    def _key_of(self, metadata: LedgerMetadata) -> bytes:
        return self._key or key_of(metadata)

    async def _ask(self, bookie_id: str, request: RepairRequest) -> Response:
        (answer,) = await self._ask_all(bookie_id, (request,))
        if isinstance(answer, BookieError):
            raise answer
        return answer

    async def _ask_all(self, bookie_id: str, requests: Sequence[RepairRequest]) -> list[Answer]:
        """The answers in the order of the requests, each from the bookie or an error."""
        answers: dict[int, Answer] = {}
        all_came = trio.Event()

        def on_answer(answer: Answer, request_id: int) -> None:
            answers[request_id] = answer
            if len(answers) == len(requests):
                all_came.set()

        try:
            with trio.move_on_after(2 * self._timeout_s):
                channel = await self._connections.connect(bookie_id)
                for request in requests:
                    request.request_id = next(channel.request_ids)
                channel.ask_all(requests, on_answer, self._timeout_s)
                await all_came.wait()
        except MetastoreError as error:
            raise BookieUnreachableError(bookie_id, f"its address can't be read: {error}") from error
        silence = BookieUnreachableError(bookie_id, f"no answer within {2 * self._timeout_s:g} s")
        return [answers.get(each.request_id, silence) for each in requests]


def _check(bookie_id: str, metadata: LedgerMetadata, answer: Response) -> None:
    if answer.status is not Status.OK:
        raise _refusal(bookie_id, metadata, answer)


def _refusal(bookie_id: str, metadata: LedgerMetadata, answer: Response) -> BookieRefusedError:
    said = answer.detail or answer.status.name.lower().replace("_", " ")
    return BookieRefusedError(bookie_id, f"ledger {metadata.ledger_id}: {said}")
