"""One client's connection: frames in, answers out.

The first byte decides which version of the protocol a client speaks, and it stays with it.

Requests without an answer and answers that are not sent yet are counted in bytes. While they exceed the connection's share,
nothing more of it is taken: a client that sends and does not read, or asks for more than it takes, stops only itself (B9).
Frames that are arriving are counted for all connections together: where they are too many, a connection with a large one is
closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from replog.bookie.server import BookieServer
from replog.errors import RemoteProtocolError
from replog.protocol.messages import MESSAGE_BYTES
from replog.runtime.lent_thread import lent_thread
from replog.runtime.loggers import logger
from replog_bookkeeper import frames, frames_v2
from replog_bookkeeper.frames import Operation, Splitter
from replog_bookkeeper.frames_v2 import FIRST_BYTE_OF_VERSION_3
from replog_bookkeeper.serving.asking import Question
from replog_bookkeeper.serving.desk import Desk
from replog_bookkeeper.serving.watched import LedgersWatched
from replog_bookkeeper.transport import FRAME_BYTES_MAX

_log = logger("replog.bookkeeper")

# Pulsar's clients send frames that are a little larger than Java's bookies take unless they are told otherwise.
TAKEN_BYTES_MAX = FRAME_BYTES_MAX + (10 << 10)
_CHUNK_BYTES = 256 << 10
_READ_BYTES = 16 << 10  # that the answer to a read is expected to have at first
_SMALL_BYTES = 64 << 10  # of a frame: it may go on arriving however many others do
_ARRIVING_BYTES_MAX = 128 << 20
_READS_MAX = 64  # without an answer, at a time
_SENDING_S = 60.0  # that a client may take for a chunk
_READS = (Operation.READ_ENTRY, Operation.READ_CONFIRMED, Operation.LIST_ENTRIES)


class Arriving:
    """The bytes of frames that have not come whole, of all connections."""

    def __init__(self) -> None:
        self.total_bytes = 0


class Session:
    """One connection. `share` gives the bytes that it may use now."""

    def __init__(
        self,
        stream: trio.SocketStream,
        server: BookieServer,
        watched: LedgersWatched,
        arriving: Arriving,
        share: Callable[[], int],
    ) -> None:
        self._stream = stream
        self._server = server
        self._watched = watched
        self._share = share
        self._arriving, self._begun_bytes = arriving, 0
        self._lent = lent_thread()
        self._messages: deque[bytes] = deque()  # received, and not taken
        self._question: type[frames.Question] | type[frames_v2.Question] | None = None
        self._owed: dict[Question, tuple[int, bool]] = {}  # bytes, and whether it reads, by what is not answered
        self._used_bytes = 0  # of these, and of what is not sent
        self._reads = 0  # without an answer: how much they will bring is not known
        self._read_bytes = _READ_BYTES
        self._unsent: list[bytes] = []
        self._answered = trio.Event()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Serves until the connection ends."""
        try:
            async with trio.open_nursery() as nursery:
                desk = Desk(self._server, self._watched, nursery, self._tell)
                nursery.start_soon(self._send)
                try:
                    await self._receive(desk)
                finally:
                    desk.leave()
                nursery.cancel_scope.cancel()
        except* (RemoteProtocolError, trio.TooSlowError) as errors:
            # As Java's bookies do: behind a frame that can't be read, nothing can be.
            _log.info("the connection of a client of BookKeeper is closed: %s", errors.exceptions[0])
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has gone
        finally:
            self._owed.clear()
            self._used_bytes = 0
            self._count_begun(0)
            self._wake()
            await trio.aclose_forcefully(self._stream)

    async def wait_idle(self) -> None:
        """Returns when everything that was taken is answered, and the answers are sent; or the connection has ended."""
        while self._used_bytes:
            await self._changed.wait()

    # -- in -----------------------------------------------------------------------------------------------------------

    async def _receive(self, desk: Desk) -> None:
        splitter = Splitter(TAKEN_BYTES_MAX)
        while data := await self._stream.receive_some(_CHUNK_BYTES):
            self._messages.extend(splitter.feed(data))
            self._count_begun(splitter.begun_bytes)
            while self._messages:
                await self._wait_for_room()
                # A request that came alone may be committed in this thread; what follows one would wait for the disk, too.
                if len(self._messages) == 1:
                    self._lent.lend(partial(self._take, desk))
                else:
                    self._take(desk)

    def _count_begun(self, begun_bytes: int) -> None:
        self._arriving.total_bytes += begun_bytes - self._begun_bytes
        self._begun_bytes = begun_bytes
        if begun_bytes > _SMALL_BYTES and self._arriving.total_bytes > _ARRIVING_BYTES_MAX:
            raise RemoteProtocolError(
                f"{self._arriving.total_bytes} bytes of frames are arriving, of all clients: too many"
            )

    async def _wait_for_room(self) -> None:
        while not self._has_room():
            await self._changed.wait()

    def _has_room(self) -> bool:
        """True if the next request may be taken: the first one in any case."""
        if not self._used_bytes:
            return True
        return self._used_bytes < self._share() and self._reads < _READS_MAX

    def _take(self, desk: Desk) -> None:
        """Takes what there is room for, and hands it to the bookie."""
        while self._messages and self._has_room():
            data = self._messages.popleft()
            question = self._decode(data)
            expected_bytes = self._expected(question)
            size_bytes = MESSAGE_BYTES + len(data) + expected_bytes
            self._owed[question] = size_bytes, expected_bytes > 0
            self._used_bytes += size_bytes
            self._reads += expected_bytes > 0
            desk.take(question)
        desk.hand_on()

    def _decode(self, data: bytes) -> Question:
        if self._question is None:
            is_version_3 = data[:1] == bytes((FIRST_BYTE_OF_VERSION_3,))
            self._question = frames.Question if is_version_3 else frames_v2.Question
        return self._question(data)

    def _expected(self, question: Question) -> int:
        """About how many bytes the answer will have."""
        if question.body is None:
            return 0
        if question.operation == Operation.BATCH_READ:
            asked_bytes: int = question.body.bytes_max
            return min(TAKEN_BYTES_MAX, max(0, asked_bytes))
        if question.operation == Operation.READ_ENTRY:
            # One that waits must not keep others from being taken.
            return 0 if question.body.HasField("previousLAC") else self._read_bytes
        return self._read_bytes if question.operation in _READS else 0

    # -- out ----------------------------------------------------------------------------------------------------------

    def _tell(self, question: Question, frame: bytes) -> None:
        owed = self._owed.pop(question, None)
        if owed is None:
            return  # the connection has ended
        owed_bytes, is_read = owed
        if is_read:
            self._reads -= 1
            self._read_bytes = max(len(frame), self._read_bytes // 2, _READ_BYTES)
        self._used_bytes += len(frame) - owed_bytes
        self._unsent.append(frame)
        self._answered.set()

    async def _send(self) -> None:
        while True:
            await self._answered.wait()
            self._answered = trio.Event()
            while self._unsent:
                data = memoryview(b"".join(self._unsent))
                self._unsent.clear()
                for start in range(0, len(data), _CHUNK_BYTES):
                    chunk = data[start : start + _CHUNK_BYTES]
                    with trio.fail_after(_SENDING_S):
                        await self._stream.send_all(chunk)
                    self._used_bytes -= len(chunk)
                    self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
