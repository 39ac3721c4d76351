"""The live app of `spark_rounds`: it leads the log, and appends from several tasks, while jobs of Spark commit to the same log.

Deposed, it leads again at once. `python -m tests.failures.spark_app '{"metastore": "...", "history": "..."}'`; SIGTERM ends it.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import trio

import replog
from replog.errors import FencedError, ReplogError
from replog.log.log_writer import LogWriter
from replog.testing import History
from tests.failures.actors import AGAIN_S, Config, encode, on_terminate, say
from tests.failures.options import CLIENT, LOG, QUORUM


class App:
    """Appends until it is told to end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stopping = trio.Event()
        self._terms = 0

    async def run(self) -> None:
        """Leads again and again."""
        async with replog.connect(self._config.metastore, options=CLIENT, quorum=QUORUM) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(on_terminate, self._stop))
                while not self._stopping.is_set():
                    self._terms += 1
                    with History(self._config.history, f"{self._config.actor}.{self._terms}") as history:
                        await self._term(client, history)
                nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        self._stopping.set()

    async def _term(self, client: replog.Client, history: History) -> None:
        history.takeover_began()
        try:
            async with client.lead_log(LOG) as log:
                history.served(log.segment)
                say(serves=history.actor, at_s=time.monotonic())
                errors: list[ReplogError] = []
                async with trio.open_nursery() as nursery:
                    for number in range(self._config.appenders):
                        nursery.start_soon(self._append, log, history, number, errors)
                if errors:
                    raise errors[0]
        except FencedError as error:
            history.fenced(error)
            say(fenced=history.actor, at_s=time.monotonic(), error=str(error))
        except ReplogError as error:
            history.note(f"{type(error).__name__}: {error}")
            say(failed=history.actor, at_s=time.monotonic(), error=f"{type(error).__name__}: {error}")
            await trio.sleep(AGAIN_S)

    async def _append(self, log: LogWriter, history: History, number: int, errors: list[ReplogError]) -> None:
        count = 0
        while not errors and not self._stopping.is_set():
            count += 1
            payload = f"{history.actor}/{number}/{count}"
            call = history.invoked(payload)
            try:
                position = await log.append(encode(payload))
            except ReplogError as error:
                history.unknown(call, error)
                errors.append(error)
                return
            history.confirmed(call, position)
            await trio.sleep(self._config.pause_s)


if __name__ == "__main__":
    trio.run(App(Config(**json.loads(sys.argv[1]))).run)
