"""The life of a bookie's process: it serves until a signal asks it to leave, and leaves in order.

After the first SIGTERM or SIGINT the bookie is no longer announced and takes no new entries; accepted entries are made
durable and answered, each within a deadline. The second signal ends the process at once, in any state: acknowledged
entries are durable in any case.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import AsyncExitStack, suppress

import attrs
import trio

from replog.api import serve_bookie
from replog.bookie.serving import ServedBookie, server_of
from replog.cli.serving.log_lines import Log, Logs, Observer
from replog.cli.serving.settings import ProcessOptions, Settings
from replog.config import BackendURL
from replog.metrics.health import Health, State, health_of
from replog.registry import Registry
from replog.runtime.collector import no_collections
from replog.runtime.nursery import open_service_nursery

_STOPPING = (signal.SIGINT, signal.SIGTERM)


async def run_bookie(settings: Settings, logs: Logs, observer: Observer, registry: Registry) -> None:
    """Serve until a signal comes.

    Raises `ReplogError` if the bookie cannot begin, `StorageFailedError` if accepted entries could not be made durable
    in time."""
    process = _Process(settings, logs, registry)
    async with open_service_nursery() as nursery:
        # First of all: a signal that comes while the bookie starts makes it leave in order, too.
        await nursery.start(process.leaving.watch)
        with process.leaving.beginning:
            if settings.metrics.listen:
                process.metrics_address = await nursery.start(process.serve_metrics)
                logs.log.info("starting", metrics=process.metrics_address)
            await process.serve()
        # A storage that stopped while it served: the exit status says so, although the bookie left in order.
        if process.leaving.was_served and observer.failure is not None:
            raise observer.failure.error
        logs.log.info("stopped", **process.leaving.took())


class _Process:
    def __init__(self, settings: Settings, logs: Logs, registry: Registry) -> None:
        self.leaving = Leaving(logs.log)
        self.metrics_address: str | None = None
        self._settings = settings
        self._logs = logs
        self._registry = registry
        self._bookies: tuple[ServedBookie, ...] = ()
        self._started_s = time.monotonic()

    async def serve(self) -> None:
        async with AsyncExitStack() as stack:
            # A start makes some objects for each ledger, which stay.
            with no_collections(is_kept=True):
                serving = serve_bookie(self._settings.config, registry=self._registry)
                bookie = await stack.enter_async_context(serving)
            nursery = await stack.enter_async_context(open_service_nursery())
            self._bookies = (bookie,)
            nursery.start_soon(_watch_writable, bookie, self._logs.log)
            self._say_what_is_served(bookie)
            # Only now: systemd starts what depends on the bookie, which must find it announced.
            notify("READY=1")
            await self.leaving.asked()
        self._bookies = ()

    def _say_what_is_served(self, bookie: ServedBookie) -> None:
        self._logs.bookie_id = bookie.bookie_id
        options = self._settings.options
        self._logs.log.info(
            "serving",
            listen=[str(each) for each in bookie.endpoints if each.scheme != "memory"],
            metrics=self.metrics_address,
            data=options.data,
            storage=BackendURL.parse(options.storage).scheme,
            metastore=_metastore_of(options),
            tls=self._settings.tcp.is_bookie_tls,
            pid=os.getpid(),
            start_s=round(time.monotonic() - self._started_s, 3),
        )

    async def serve_metrics(self, task_status: trio.TaskStatus[str]) -> None:
        # Here: a bookie without metrics needs no package of that extra.
        from replog.metrics import serve_metrics

        table = self._settings.metrics
        await serve_metrics(table.listen, lambda: self._bookies, health=self._health, task_status=task_status)

    def _health(self) -> Health:
        health = health_of(self._bookies)
        if self.leaving.was_asked:
            return attrs.evolve(health, state=State.LEAVING)
        return health if self._bookies else Health(State.STARTING)


def _metastore_of(options: ProcessOptions) -> str:
    """The URL that other programs need, without secrets."""
    if options.peers:
        return f"quorum:{','.join(options.peers)}"
    return str(BackendURL.parse(options.metastore or ""))


async def _watch_writable(bookie: ServedBookie, log: Log) -> None:
    """Logs when the bookie takes entries again. The opposite is an event, which the observer logs."""
    server = server_of(bookie)
    while True:
        await server.mode.read_only_turned(was=False)
        await server.mode.read_only_turned(was=True)
        log.info("new entries are taken again")


class Leaving:
    """The signals so far. `beginning` is cancelled if one comes before the bookie serves."""

    def __init__(self, log: Log) -> None:
        self.beginning = trio.CancelScope()
        self.was_served = False
        self._log = log
        self._asked = trio.Event()
        self._asked_at_s = 0.0

    async def watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait for the first signal. The second is left to the system, which ends the process even if it hangs."""
        with trio.open_signal_receiver(*_STOPPING) as signals:
            task_status.started()
            number = await anext(aiter(signals))
        # From here on the system's own handling ends the process, even if the event loop is busy.
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        self._asked_at_s = time.monotonic()
        self._log.info("leaving", signal=signal.Signals(number).name)
        notify("STOPPING=1")
        self._asked.set()
        if not self.was_served:
            self.beginning.cancel()

    @property
    def was_asked(self) -> bool:
        """True once a signal has come."""
        return self._asked.is_set()

    async def asked(self) -> None:
        """Wait until the bookie must leave."""
        self.was_served = True
        await self._asked.wait()

    def took(self) -> dict[str, float]:
        """The time that leaving took, for the log."""
        return {"leave_s": round(time.monotonic() - self._asked_at_s, 3)}


def notify(state: str) -> None:
    """Tell a supervisor such as systemd `READY=1` or `STOPPING=1`. Never waits; does nothing without a listener."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
        # A supervisor that does not read must not keep the bookie from serving.
        telling.setblocking(False)
        telling.sendto(state.encode(), b"\0" + address[1:].encode() if address.startswith("@") else address)
