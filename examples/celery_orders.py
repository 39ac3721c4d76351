"""Tasks that keep what they did in a log: Celery with its prefork pool, whose processes may be killed.

python examples/web_host.py DIRECTORY
ORDERS=DIRECTORY celery --app examples.celery_orders worker --concurrency 2
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from contextlib import suppress
from typing import Any

import celery
from celery.signals import worker_process_init, worker_process_shutdown

import replog
from replog import blocking

DIRECTORY = os.environ["ORDERS"]
FOLDERS = ("data_folder_in", "data_folder_out", "control_folder")
ONE = replog.Quorum(ensemble=1, write=1, ack=1)  # there is one bookie
app = celery.Celery("orders", broker="filesystem://")  # a broker for one machine; it works the same with others
app.conf.update(
    broker_transport_options=dict.fromkeys(FOLDERS, f"{DIRECTORY}/queue"),
    task_acks_late=True,  # a task is done when it has returned, and
    task_reject_on_worker_lost=True,  # done again if its process was killed before: at least once
    worker_proc_alive_timeout=60.0,  # opening a client takes as long as the metastore does
)


class Process:
    """What each process of the pool has of its own. It does one task at a time."""

    name: str
    client: blocking.Client
    log: blocking.LogWriter | None = None


@worker_process_init.connect
def open_client(**_: Any) -> None:
    Process.client = blocking.connect(f"lmdb:{DIRECTORY}/metadata", quorum=ONE).open()
    Process.name = f"orders-{take_slot()}"


@worker_process_shutdown.connect
def close_client(**_: Any) -> None:
    if Process.log is not None:
        Process.log.close()
    Process.client.close()


def take_slot() -> int:
    """The lowest number that no living process has: a log has one writer, so each process has a log of its own."""
    for number in itertools.count():
        slot = os.open(f"{DIRECTORY}/slot-{number}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however it ends
        except BlockingIOError:
            os.close(slot)
        else:
            return number
    raise AssertionError


@app.task(bind=True, autoretry_for=(replog.ReplogError,), retry_backoff=True, max_retries=None)
def order(self: Any, item: str) -> None:
    try:
        if Process.log is None:
            Process.log = Process.client.write_log(Process.name).open()
        Process.log.append(json.dumps({"id": self.request.id, "item": item}).encode())
    except replog.ReplogError:  # this writer may have ended: the next attempt opens another one
        log, Process.log = Process.log, None
        with suppress(replog.ReplogError):
            if log is not None:
                log.close()
        raise
