"""The calls of one member: finds the leader, sends each request, and repeats it at the next leader until it is answered.

Rules:
- A request is repeated whenever its answer may have been lost. That is safe: a command carries its session and its
  sequence, and everything else changes nothing, or only begins an unused session.
- Requests that are asked for in one turn of the event loop go in one message, and share the event that wakes their
  callers.
- A leader that says it does not lead is not asked again; one that is silent or unreachable is, after the others.
- All requests have the same time to be answered: one task waits for the end of the oldest one's, and only those that
  had to wait for room have a timer of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import trio

from replog.abc import Connection
from replog.errors import (
    BookieError,
    CommandRefusedError,
    CommandTimeoutError,
    ConfigError,
    MetastoreError,
    RemoteProtocolError,
    ReplogError,
)
from replog.machine.context import LeaderAddress, MachineContext, announced_leaders
from replog.machine.entries import Answer, Code, MachineEntry, decode_answer
from replog.machine.options import MachineTuning
from replog.machine.visits import machine_key, request_of
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.messages import Response, Status
from replog.runtime.nursery import open_service_nursery

MESSAGE_BYTES_MAX = 1 << 20  # of requests that go together; a larger one goes alone
_MESSAGE_REQUESTS_MAX = 4096
_BUSY = int(Code.BUSY)  # members of enums are looked up slowly
# A search without success is repeated after this part of the time that it has taken so far, and adds as much to a takeover.
# With pauses that doubled, a leader was found up to half a second late.
_AGAIN_SHARE, _AGAIN_S, _AGAIN_MAX_S = 0.1, 0.02, 0.5
_BUSY_S = 0.02  # after which what the leader had no room for is sent again


class _Question:
    """One request, until it is answered."""

    __slots__ = ("answer", "data", "ends_s", "error", "news")

    def __init__(self, data: bytes, ends_s: float, news: trio.Event) -> None:
        self.data = data
        self.ends_s = ends_s
        self.news = news  # something became of it, or of another one that went with it
        self.answer: Answer | None = None
        self.error: Exception | None = None

    @property
    def is_open(self) -> bool:
        """True until it has an answer or an error."""
        return self.answer is None and self.error is None


class _Busy:
    """Questions for which the leader had no room, and when they are sent again; infinity without one."""

    __slots__ = ("again_s", "questions")

    def __init__(self) -> None:
        self.questions: list[_Question] = []
        self.again_s = float("inf")

    def add(self, questions: Sequence[_Question]) -> None:
        """The first ones decide when."""
        self.again_s = min(self.again_s, trio.current_time() + _BUSY_S)
        self.questions += questions


class _Link:
    """One connection to one leader. `lost` is true when it is of no more use."""

    def __init__(self, leader: LeaderAddress, caller: Caller) -> None:
        self.leader = leader
        self.is_lost = False
        self.is_deposed = False  # it said so
        self.connection: Connection | None = None
        self._in_flight: dict[int, tuple[float, list[_Question]]] = {}  # with the time of sending, oldest first
        self._caller = caller
        self._ids = itertools.count(1)

    def send(self, questions: Sequence[_Question], key: bytes) -> None:
        """Sends these in one message."""
        assert self.connection is not None, "it was connected"
        request = request_of(next(self._ids), [each.data for each in questions], key)
        # Before it is sent: a leader in this thread may answer before `send` returns.
        self._in_flight[request.request_id] = trio.current_time(), list(questions)
        try:
            self.connection.send((request,))
        except ReplogError:
            self.lose()

    @property
    def unanswered_since_s(self) -> float:
        """When the oldest message without an answer was sent; infinity without one."""
        for sent_s, _ in self._in_flight.values():
            return sent_s
        return float("inf")

    def lose(self) -> None:
        """Marks the requests in flight to be sent over another link."""
        self.is_lost = True
        self._caller.news()

    # -- as a ResponseReceiver ----------------------------------------------------------------------------------------

    def responses_received(self, responses: Sequence[Response]) -> None:
        """Answers came."""
        for response in responses:
            _, questions = self._in_flight.pop(response.request_id, (0.0, []))
            if self.is_lost:
                continue
            if response.status is Status.OK:
                self._answered(questions, response)
            elif response.status is Status.FENCED:
                self.is_deposed = True
                self.lose()
            elif response.status is Status.UNAUTHORIZED:
                self._caller.failed(questions, CommandRefusedError(f"{response.detail}; nothing was written"))
            else:
                self._caller.busy(questions)

    def _answered(self, questions: list[_Question], response: Response) -> None:
        try:
            answers = [decode_answer(each) for batch in response.batches for each in batch.payloads()]
        except RemoteProtocolError:
            answers = []
        if len(answers) != len(questions):
            self.lose()  # a peer with such answers is not a leader
            return
        self._caller.answered(questions, answers)

    def disconnected(self, error: ReplogError) -> None:
        """The connection is gone."""
        self.lose()


class Caller:
    """The requests of one member. `run` is the task behind it."""

    def __init__(self, name: str, context: MachineContext, options: MachineTuning, password: bytes) -> None:
        self._name = name
        self._context = context
        self._options = options
        self._key = machine_key(password)
        self._open: dict[_Question, None] = {}  # in their order, until they are answered
        self._open_bytes = 0
        self._unsent: list[_Question] = []
        self._together = trio.Event()  # of the questions that were asked for since the last message
        self._busy = _Busy()
        self._news = trio.Event()
        self._room = trio.Event()
        self._waiting_for_room = 0
        self._first = trio.Event()  # something is open
        self._is_left = False
        self._deposed_term = 0  # the highest one whose leader said that it does not lead

    async def ask(self, entry: MachineEntry) -> Answer:
        """Has a leader answer this, however often it must be repeated.

        Raises `CommandTimeoutError` (outcome unknown), `CommandRefusedError` if it is too large, or the password wrong. If
        cancelled, the outcome is unknown."""
        if self._is_left:
            raise trio.ClosedResourceError(f"machine {self._name!r}: this member was left")
        data = entry.encode()
        size_bytes = len(data)
        if size_bytes > ENTRY_BYTES_MAX:
            raise CommandRefusedError(
                f"machine {self._name!r}: a command of {size_bytes} bytes: the limit is {ENTRY_BYTES_MAX}; nothing was sent"
            )
        await trio.lowlevel.checkpoint_if_cancelled()
        question = _Question(data, trio.current_time() + self._options.call_timeout_s, self._together)
        if not self._is_full(size_bytes):
            await self._until_answered(question)
        else:
            with trio.move_on_at(question.ends_s):
                await self._until_room(size_bytes)
                await self._until_answered(question)
        if question.answer is not None:
            return question.answer
        raise question.error or self._timed_out()

    def _is_full(self, size_bytes: int) -> bool:
        return bool(self._open) and self._open_bytes + size_bytes > self._options.calls_bytes_max

    async def _until_room(self, size_bytes: int) -> None:
        self._waiting_for_room += 1
        try:
            while self._is_full(size_bytes):
                await self._room.wait()
        finally:
            self._waiting_for_room -= 1

    async def _until_answered(self, question: _Question) -> None:
        if not self._open:
            self._first.set()
        self._open[question] = None
        self._open_bytes += len(question.data)
        self._unsent.append(question)
        self._news.set()
        try:
            while question.is_open:
                if question.news.is_set():  # for others that went with it
                    question.news = trio.Event()
                await question.news.wait()
        finally:
            del self._open[question]
            self._open_bytes -= len(question.data)
            if self._waiting_for_room:
                self._room.set()
                self._room = trio.Event()

    def _timed_out(self) -> CommandTimeoutError:
        return CommandTimeoutError(
            f"machine {self._name!r}: no leader answered within {self._options.call_timeout_s} s; the outcome is unknown"
        )

    def leave(self) -> None:
        """Nothing is sent any more: callers waiting for an answer get `trio.ClosedResourceError`."""
        self._is_left = True
        self.failed(list(self._open), trio.ClosedResourceError(f"machine {self._name!r}: this member was left"))

    # -- told by links ------------------------------------------------------------------------------------------------

    def news(self) -> None:
        """Something is to be sent, or a link was lost."""
        self._news.set()

    def answered(self, questions: Sequence[_Question], answers: Sequence[Answer]) -> None:
        """A leader answered these."""
        news = None
        for question, answer in zip(questions, answers, strict=True):
            if answer.code == _BUSY:
                self.busy([question])
                continue
            question.answer = answer
            if question.news is not news:
                # Its callers run later, and see all the answers then.
                news = question.news
                news.set()

    def failed(self, questions: Sequence[_Question], error: Exception) -> None:
        """Repeating these is of no use."""
        for question in questions:
            question.error = error
            question.news.set()

    def busy(self, questions: Sequence[_Question]) -> None:
        """The leader had no room for these."""
        self._busy.add(questions)
        self.news()

    # -- the task -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sends until cancelled."""
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._end_in_time)
            while True:
                while not self._open:
                    await self._wait_for_news()
                link = await self._reach(nursery)
                try:
                    await self._use(link)
                finally:
                    link.is_lost = True
                    if link.connection is not None:
                        with trio.CancelScope(shield=True):
                            await link.connection.aclose()

    async def _end_in_time(self) -> None:
        """Ends requests that were not answered in time."""
        while True:
            await self._first.wait()
            self._first = trio.Event()
            while (oldest := next(iter(self._open), None)) is not None:
                await trio.sleep_until(oldest.ends_s)
                now_s = trio.current_time()
                late = [each for each in self._open if each.ends_s <= now_s and each.is_open]
                for question in late:
                    self.failed([question], self._timed_out())

    async def _wait_for_news(self, until_s: float = float("inf")) -> None:
        with trio.move_on_at(until_s):
            await self._news.wait()
        self._news = trio.Event()

    async def _use(self, link: _Link) -> None:
        """Sends by this link until it is lost: all open requests first, since their fate at another leader is unknown."""
        self._unsent, self._busy = list(self._open), _Busy()
        silence_s = self._options.repeat_after_s
        while not link.is_lost:
            self._send(link)
            await self._wait_for_news(min(self._busy.again_s, link.unanswered_since_s + silence_s))
            # Single messages may be lost, too: so the oldest one counts, and not when something was heard last.
            if trio.current_time() >= link.unanswered_since_s + silence_s:
                break
            # Not at other news: the answer that the leader has no room is news itself, and would be asked for without a pause.
            if trio.current_time() >= self._busy.again_s:
                self._unsent += self._busy.questions
                self._busy = _Busy()
        if link.is_deposed:
            self._deposed_term = max(self._deposed_term, link.leader.term)

    def _send(self, link: _Link) -> None:
        unsent, self._unsent = [each for each in self._unsent if each in self._open and each.is_open], []
        self._together = trio.Event()
        first, size_bytes = 0, 0
        for place, question in enumerate(unsent):
            size_bytes += len(question.data)
            is_full = size_bytes > MESSAGE_BYTES_MAX or place - first >= _MESSAGE_REQUESTS_MAX
            if is_full and place > first:
                link.send(unsent[first:place], self._key)
                first, size_bytes = place, len(question.data)
        if unsent[first:] and not link.is_lost:
            link.send(unsent[first:], self._key)

    async def _reach(self, nursery: trio.Nursery) -> _Link:
        """Looks for the leader until one is connected."""
        began_s = trio.current_time()
        while True:
            try:
                leaders = await announced_leaders(self._context.metastore, self._name)
            except MetastoreError:
                leaders = []
            for leader in leaders:
                # Those below it were deposed, too.
                if leader.term <= self._deposed_term:
                    break
                link = await self._connect(leader, nursery)
                if link is not None:
                    return link
            searched_s = trio.current_time() - began_s
            await trio.sleep(min(max(_AGAIN_S, _AGAIN_SHARE * searched_s), _AGAIN_MAX_S))

    async def _connect(self, leader: LeaderAddress, nursery: trio.Nursery) -> _Link | None:
        link = _Link(leader, self)
        for endpoint in leader.endpoints:
            try:
                transport = self._context.transport(endpoint.scheme)
                with trio.fail_after(self._options.repeat_after_s):
                    link.connection = await transport.connect(
                        endpoint.address,
                        link,
                        nursery,
                        bookie_id=leader.member_id,
                        authenticator=self._context.authenticator,
                    )
            except (BookieError, ConfigError, trio.TooSlowError):
                continue
            return link
        return None
