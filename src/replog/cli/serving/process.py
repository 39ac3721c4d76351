"""The life of a bookie's process: it serves until it is asked to leave, and leaves in order.

The first SIGTERM or SIGINT ends it in order: the bookie is no longer announced, takes nothing new, and what it accepted is
made durable and answered, each within a deadline. The second one ends the process at once, whatever it is doing: what was
acknowledged is durable in any case.
"""

from __future__ import annotations

import signal
import time

import trio
from structlog.stdlib import BoundLogger

from replog.api import served_bookie
from replog.bookie.serving import ServedBookie
from replog.cli.serving.logs import Logs, Observer
from replog.cli.serving.settings import Settings
from replog.config import BackendURL
from replog.nursery import open_service_nursery
from replog.registry import Registry

_STOPPING = (signal.SIGINT, signal.SIGTERM)


async def run_bookie(settings: Settings, logs: Logs, observer: Observer, registry: Registry) -> None:
    """Serves until a signal comes. Raises `ReplogError` if it can't begin, `StorageFailedError` if what was accepted could
    not be made durable in time."""
    leaving = Leaving(logs.log)
    async with open_service_nursery() as nursery:
        await nursery.start(leaving.watch)
        with leaving.beginning:
            await _serve(settings, logs, registry, leaving)
        failure = observer.failure
        if leaving.was_served and failure is not None:
            raise failure.error
        logs.log.info("stopped", **leaving.took())


async def _serve(settings: Settings, logs: Logs, registry: Registry, leaving: Leaving) -> None:
    started_s = time.monotonic()
    async with served_bookie(settings.config, registry=registry) as bookie, open_service_nursery() as nursery:
        logs.bookie_id = bookie.server.bookie_id
        nursery.start_soon(_watch_writable, bookie, logs.log)
        options = settings.options
        logs.log.info(
            "serving",
            listen=[str(each) for each in bookie.endpoints if each.scheme != "memory"],
            data=options.data,
            storage=BackendURL.parse(options.storage).scheme,
            metastore=str(BackendURL.parse(options.metastore)),
            tls=settings.tcp.is_bookie_tls,
            start_s=round(time.monotonic() - started_s, 3),
        )
        await leaving.asked()


async def _watch_writable(bookie: ServedBookie, log: BoundLogger) -> None:
    """Says when the bookie takes entries again: that it takes none any more, observers are told."""
    server = bookie.server
    while True:
        await server.read_only_turned(was=False)
        await server.read_only_turned(was=True)
        log.info("new entries are taken again")


class Leaving:
    """What the signals say. `beginning` is cancelled if one comes before the bookie serves."""

    def __init__(self, log: BoundLogger) -> None:
        self.beginning = trio.CancelScope()
        self.was_served = False
        self._log = log
        self._asked = trio.Event()
        self._asked_at_s = 0.0

    async def watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Waits for the first signal. The second is left to the system, which ends the process even if it hangs."""
        with trio.open_signal_receiver(*_STOPPING) as signals:
            task_status.started()
            number = await anext(aiter(signals))
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        self._asked_at_s = time.monotonic()
        self._log.info("leaving", signal=signal.Signals(number).name)
        self._asked.set()
        if not self.was_served:
            self.beginning.cancel()

    async def asked(self) -> None:
        """Returns when the bookie shall leave."""
        self.was_served = True
        await self._asked.wait()

    def took(self) -> dict[str, float]:
        """How long leaving took, for the log."""
        return {"leave_s": round(time.monotonic() - self._asked_at_s, 3)}
