"""The conformance suite of senders: the client's own sits it, and those that cheat are found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio.testing

from replog.abc import Sender
from replog.client.channel import Answer
from replog.client.sending import BatchSender
from replog.protocol.effects import Effect, SendAdd, SendLastAddConfirmed, WriteMetadata
from replog.protocol.messages import Response, Status
from replog.testing import check_sender


class TakesAnyAnswer(BatchSender):
    """Counts each answer as an acknowledgement."""

    def _add_answered(self, answer: Answer, effect: SendAdd) -> None:
        super()._add_answered(Response(0, Status.OK), effect)


class ConfirmsAtOnce(BatchSender):
    """Confirms with the first copy."""

    def _add_answered(self, answer: Answer, effect: SendAdd) -> None:
        for index, bookie_id in enumerate(self._machine.ensemble()):
            self._machine.add_confirmed(index, bookie_id, effect.batch.first_entry_id)
        super()._add_answered(answer, effect)


class ForgetsABookie(BatchSender):
    def _send_adds(self, effects: Sequence[SendAdd]) -> None:
        super()._send_adds(effects[1:])


class SendsInTurns(BatchSender):
    """Sends one batch at a time."""

    def _send_next(self) -> bool:
        return not self.backlog.in_flight and super()._send_next()


class SendsEachAlone(BatchSender):
    def _send_next(self) -> bool:
        gathered = self.backlog.gathered
        self.backlog.gathered = gathered[:1]
        is_sent = bool(gathered) and super()._send_next()
        self.backlog.gathered += gathered[1:]
        return is_sent


class SendsBeforeTheRecord(BatchSender):
    """Sends to a new bookie before the record names it."""

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, WriteMetadata):
            ensemble = effect.metadata.last_fragment.ensemble
            pending = [each.batch for each in self._machine._pending.values()]
            self._send_adds([SendAdd(0, ensemble[0], batch) for batch in pending])
        super()._perform(effect)


class PublishesNothing(BatchSender):
    def _send_last_add_confirmed(self, effect: SendLastAddConfirmed) -> None:
        pass


class NeverGivesUp(BatchSender):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.watching._check_deadline = lambda: None  # type: ignore[method-assign]
        self.watching.missing.ask_who_is_left = lambda: None  # type: ignore[method-assign]


class IgnoresTheDate(BatchSender):
    def date(self, timestamp_ns: int) -> None:
        pass


CHEATS = {
    "takes any answer": TakesAnyAnswer,
    "confirms at once": ConfirmsAtOnce,
    "forgets a bookie": ForgetsABookie,
    "sends in turns": SendsInTurns,
    "sends each alone": SendsEachAlone,
    "sends before the record": SendsBeforeTheRecord,
    "publishes nothing": PublishesNothing,
    "never gives up": NeverGivesUp,
    "ignores the date": IgnoresTheDate,
}


async def test_the_clients_own_sender_passes(autojump_clock: trio.testing.MockClock) -> None:
    await check_sender(BatchSender)


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_a_sender_that_breaks_a_promise_fails(
    cheat: Callable[..., Sender], autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replog.testing.promises.WAIT_MAX_S", 2.0)
    with pytest.raises(AssertionError, match="the contract is broken"):
        await check_sender(cheat)
