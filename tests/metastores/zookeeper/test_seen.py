"""What is announced, as it is known between two questions: whatever changes while it is read is read again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from replog.metastores.zookeeper.paths import Paths, encode_value
from replog.metastores.zookeeper.seen import Seen
from replog.metastores.zookeeper.watches import Watches

PATH = "/live"


class Asked:
    """A server with some ephemeral nodes, that tells of changes when a test says so."""

    def __init__(self, watches: Watches) -> None:
        self.nodes: dict[str, bytes] = {}
        self.amid: dict[int, Callable[[], None]] = {}  # by the number of the question: what happens behind its answer
        self.questions = 0
        self._watches = watches

    def change(self, name: str, value: bytes | None) -> None:
        """Somebody announces this, or ends."""
        if value is None:
            del self.nodes[name]
            self._watches.fired(f"{PATH}/{name}")
        else:
            self.nodes[name] = value
        self._watches.fired(PATH)

    async def ask(self, *requests: Any) -> list[Any]:
        answers = [request.submit(self) for request in requests]
        self.questions += 1
        self.amid.pop(self.questions, lambda: None)()
        return answers

    # -- as kazoo's client ----------------------------------------------------------------------------------------------

    def transaction(self) -> Any:
        return SimpleNamespace(check=lambda *_: None, commit_async=list)

    def get_children_async(self, path: str, _watcher: object) -> list[str]:
        assert path == PATH
        return sorted(self.nodes)

    def get_async(self, path: str, _watcher: object) -> tuple[bytes, Any]:
        return encode_value(self.nodes[path.removeprefix(f"{PATH}/")]), SimpleNamespace(ephemeralOwner=1)


@pytest.mark.parametrize("number", range(1, 6))
async def test_change_during_a_reading_is_seen_by_the_next(number: int) -> None:
    """Behind each of its answers in turn: the watch of what was read fires once, and nobody tells of it again."""
    watches = Watches(lambda _path: None)
    server = Asked(watches)
    server.nodes = {"a": b"1", "b": b"2"}
    seen = Seen(Paths("", "flat"), watches, SimpleNamespace(watcher=None))  # type: ignore[arg-type]
    server.amid[number] = lambda: server.change("c", b"3")
    for _ in range(2):
        found = await seen.announced(server, "live")  # type: ignore[arg-type]
        assert found.items() <= {"a": b"1", "b": b"2", "c": b"3"}.items()
    assert await seen.announced(server, "live") == server.nodes  # type: ignore[arg-type]
    questions = server.questions
    await seen.announced(server, "live")  # type: ignore[arg-type]
    assert server.questions == questions + 1, "what is known is not read again"
