"""The processes of these tests, each with a history: `python -m tests.failures.actors writer '{"...": ...}'`.

Told to begin by their arguments and to end by SIGTERM; what they print are lines of JSON for who started them.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

import replog
from replog.errors import FencedError, NotEnoughBookiesError, RecoveryUndecidedError, ReplogError
from replog.log.log_writer import LogWriter
from replog.protocol.model import Position
from replog.testing import History
from tests.failures.options import CLIENT, LOG, QUORUM

AFTER_FENCED = 5  # appends that a deposed writer tries, each of which must fail
AGAIN_S = 0.2


@attrs.frozen
class Config:
    """What any of them may need."""

    metastore: str
    history: str = ""
    actor: str = ""
    appenders: int = 4
    pause_s: float = 0.02
    final: str = ""
    leads_again: bool = False


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


# -- payloads -----------------------------------------------------------------------------------------------------


def encode(payload: str) -> bytes:
    """The entry of a payload: as long as its digest says, so that entries differ in size, and damage shows."""
    digest = hashlib.sha256(payload.encode()).hexdigest()
    return f"{payload} {digest * (1 + int(digest[:2], 16) // 8)}".encode()


def decode(entry: bytes) -> str:
    payload = entry.split(b" ")[0].decode(errors="replace")
    return payload if entry == encode(payload) else f"damaged: {entry!r}"


# -- writing ------------------------------------------------------------------------------------------------------


class Writer:
    """Takes the log over, appends from several tasks, and takes over again unless it was deposed.

    With `leads_again` it is elected each time, also after it was deposed: as an app beside jobs of Spark, which depose it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stopping = trio.Event()
        self._takeovers = 0

    async def run(self) -> None:
        async with replog.connect(self._config.metastore, options=CLIENT, quorum=QUORUM) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(on_terminate, self._stop)
                while not self._stopping.is_set():
                    self._takeovers += 1
                    with History(self._config.history, f"{self._config.actor}.{self._takeovers}") as history:
                        if await self._lead(client, history):
                            break
                nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        self._stopping.set()

    async def _lead(self, client: replog.Client, history: History) -> bool:
        """True if it was deposed for good."""
        history.takeover_began()
        try:
            async with client.lead_log(LOG) if self._config.leads_again else client.write_log(LOG) as log:
                history.served(log.segment)
                say(serves=history.actor, segment=log.segment, at_s=time.monotonic())
                errors: list[ReplogError] = []
                async with trio.open_nursery() as nursery:
                    for number in range(self._config.appenders):
                        nursery.start_soon(self._append, log, history, number, errors)
                if errors:
                    if isinstance(errors[0], FencedError):
                        history.fenced(errors[0])
                    if not self._config.leads_again:
                        await self._try_after(log, history)
                    raise errors[0]
        except FencedError as error:
            history.note(f"deposed: {error}")
            say(fenced=history.actor, at_s=time.monotonic(), error=str(error))
            return not self._config.leads_again
        except ReplogError as error:
            history.note(f"{type(error).__name__}: {error}")
            say(failed=history.actor, error=f"{type(error).__name__}: {error}")
            await trio.sleep(AGAIN_S)
        return False

    async def _append(self, log: LogWriter, history: History, number: int, errors: list[ReplogError]) -> None:
        count = 0
        while not errors and not self._stopping.is_set():
            count += 1
            payload = f"{history.actor}/{number}/{count}"
            entry = encode(payload)
            call = history.invoked(payload)
            try:
                position = await log.append(entry)
            except ReplogError as error:
                history.unknown(call, error)
                errors.append(error)
                return
            history.confirmed(call, position)
            await trio.sleep(self._config.pause_s)

    async def _try_after(self, log: LogWriter, history: History) -> None:
        """What failed once must go on failing: nothing of this writer's may be confirmed any more."""
        for count in range(AFTER_FENCED):
            payload = f"{history.actor}/after/{count}"
            call = history.invoked(payload)
            try:
                history.confirmed(call, await log.append(encode(payload)))
            except ReplogError as again:
                history.unknown(call, again)


# -- reading ------------------------------------------------------------------------------------------------------


async def read(config: Config) -> None:
    """Follows the log from its beginning; after an error with another reader, from where it stood."""
    position: Position | None = None
    sessions = 0
    async with replog.connect(config.metastore, options=CLIENT, quorum=QUORUM) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(on_terminate, cancelling(nursery))
            while True:
                sessions += 1
                with History(config.history, f"{config.actor}.{sessions}") as history:
                    history.reading(position)
                    try:
                        async with client.read_log(LOG, after=position, follow=True) as reader:
                            say(reads=history.actor)
                            async for record in reader:
                                history.saw(record.position, decode(record.data))
                                position = record.position
                    except ReplogError as error:
                        history.note(f"{type(error).__name__}: {error}")
                        await trio.sleep(AGAIN_S)


async def finish(config: Config) -> None:
    """Takes the log over, closes it, and writes down all that is in it."""
    async with replog.connect(config.metastore, options=CLIENT, quorum=QUORUM) as client:
        with trio.fail_after(60):
            while True:
                try:
                    async with client.write_log(LOG):
                        break
                except (NotEnoughBookiesError, RecoveryUndecidedError):  # they were down a moment ago
                    await trio.sleep(AGAIN_S)
            async with client.read_log(LOG) as reader:
                final = [[str(record.position), decode(record.data)] async for record in reader]
    await trio.Path(config.final).write_text(json.dumps(final))
    say(finished=len(final))


# -- all ----------------------------------------------------------------------------------------------------------


def cancelling(nursery: trio.Nursery) -> Callable[[], Awaitable[None]]:
    async def cancel() -> None:
        nursery.cancel_scope.cancel()

    return cancel


async def on_terminate(stop: Callable[[], Awaitable[None]]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            await stop()


async def write(config: Config) -> None:
    await Writer(config).run()


ROLES: dict[str, Callable[[Config], Awaitable[None]]] = {
    "writer": write,
    "reader": read,
    "finisher": finish,
}


def main(role: str, config: dict[str, Any]) -> None:
    trio.run(ROLES[role], Config(**config))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
