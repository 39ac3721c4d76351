"""Orders over HTTP, in any number of workers with any number of threads. A 201 means that the order survives kill -9.

python examples/web_host.py DIRECTORY
ORDERS=DIRECTORY gunicorn --workers 3 --threads 8 examples.flask_orders:app
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import threading
from contextlib import suppress

import flask

import replog
from replog import blocking


def take_slot() -> int:
    """The lowest number that no living process has: a log has one writer, so each worker has a log of its own."""
    for number in itertools.count():
        slot = os.open(f"{DIRECTORY}/slot-{number}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however it ends
        except BlockingIOError:
            os.close(slot)
        else:
            return number
    raise AssertionError


DIRECTORY = os.environ["ORDERS"]
NAME = f"orders-{take_slot()}"
ONE = replog.Quorum(ensemble=1, write=1, ack=1)  # there is one bookie

client = blocking.connect(f"lmdb:{DIRECTORY}/metadata", quorum=ONE).open()  # until the worker ends
current: list[blocking.LogWriter] = []  # the log, once a request needed it
lock = threading.Lock()
app = flask.Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 64 << 10


def append(data: bytes) -> replog.Position:
    with lock:
        if not current:
            current.append(client.write_log(NAME).open())  # the first time, and after a failure
        log = current[0]
    try:
        return log.append(data)
    except replog.ReplogError:  # whatever it was, this writer may have ended: the next request opens another one
        with lock, suppress(replog.ReplogError):
            if current == [log]:
                current.clear()
                log.close()
        raise


@app.post("/orders")
def order() -> tuple[dict[str, object], int]:
    position = append(json.dumps(flask.request.get_json()).encode())
    return {"log": NAME, "position": str(position), "worker": os.getpid()}, 201


@app.get("/orders")
def all_orders() -> list[object]:
    found = []
    for name in client.logs():
        with client.read_log(name) as reader:
            found += [(record.timestamp, record.data) for record in reader]
    return [json.loads(data) for _, data in sorted(found)]


@app.errorhandler(replog.ReplogError)
def in_doubt(error: replog.ReplogError) -> tuple[dict[str, str], int]:
    return {"error": str(error), "outcome": "unknown"}, 503  # an order sent again may be there twice: give it an id
