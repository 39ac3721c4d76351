"""Clients that order over HTTP all the time, and what must be true of what they were told."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import replog
from replog import blocking
from tests.examples.programs import WAIT_S

CLIENTS = 4
_AGAIN_S = 0.05  # while nobody answers
_PAUSE_S = 0.005  # between two orders of a client: the tests need some of them at any moment, not as many as can be


class Load:
    """Orders from several threads, each with an id of its own, until the block ends. `answers` are those that were
    acknowledged."""

    def __init__(self, port: int) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self._port = port
        self._numbers = itertools.count()
        self._told = threading.Condition()
        self._is_over = False
        self._threads = [threading.Thread(target=self._order, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(WAIT_S)

    def wait(self, orders: int, **wanted: object) -> dict[str, Any]:
        """One of the answers that have these fields, once there are so many more of them than now."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.answers.values() if wanted.items() <= each.items()]

        with self._told:
            before = len(found())
            assert self._told.wait_for(lambda: len(found()) >= before + orders, WAIT_S), f"{len(self.answers)} answers"
            return found()[-1]

    def wait_for_other(self, log: str, worker: int) -> None:
        """Until another worker than this writes to the log."""

        def is_taken_over() -> bool:
            return any(each["log"] == log and each["worker"] != worker for each in self.answers.values())

        with self._told:
            assert self._told.wait_for(is_taken_over, WAIT_S), f"nobody took over {log} from {worker}"

    def _order(self) -> None:
        while not self._is_over:
            identity = str(next(self._numbers))
            answer = ask(self._port, identity)
            if answer is None:  # whether the order is kept is unknown
                time.sleep(_AGAIN_S)
                continue
            with self._told:
                self.answers[identity] = answer
                self._told.notify_all()
            time.sleep(_PAUSE_S)


def ask(port: int, identity: str) -> dict[str, Any] | None:
    """What an order was answered; None if it was not acknowledged. A connection of its own, for any of the workers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        content = json.dumps({"id": identity, "item": "tea"})
        connection.request("POST", "/orders", content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        return json.loads(said) if answer.status == 201 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def listed(port: int) -> set[str]:
    """The ids of all orders, as the server tells them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", "/orders")
        return {each["id"] for each in json.load(connection.getresponse())}
    finally:
        connection.close()


def check_kept(client: blocking.Client, answers: dict[str, dict[str, Any]]) -> None:
    """Every order that was acknowledged is where the answer says, and none is kept twice."""
    found = {place: record["id"] for place, record in everything(client).items()}
    missing = [identity for identity, each in answers.items() if found.get((each["log"], each["position"])) != identity]
    assert missing == []
    assert len(set(found.values())) == len(found)


def everything(client: blocking.Client) -> dict[tuple[str, str], Any]:
    """All records of all logs, by log and position. Nobody may write any more: what a killed writer left is recovered."""
    found: dict[tuple[str, str], Any] = {}
    for name in client.logs():
        with client.write_log(name), client.read_log(name) as reader:
            found |= {(name, str(record.position)): json.loads(record.data) for record in reader}
    return found


def connected(directory: Path) -> Any:
    """A client of the bookie that is served there."""
    return blocking.connect(f"lmdb:{directory / 'metadata'}", quorum=replog.Quorum(1, 1, 1))
