"""State machines that are ready to run: a dict, a counter, a queue and a lock.

Values of a dict or a queue are what JSON is made of: texts, numbers, booleans, None, lists, and dicts with texts as keys.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

from replog.machine.commands import StateMachine, command

_NS = 1_000_000_000


@attrs.define
class ReplicatedDict(StateMachine):
    """A dict that any process changes: `await settings.put("colour", "red")`."""

    items: dict[str, Any] = attrs.field(factory=dict)

    @command
    def put(self, key: str, value: Any) -> Any:
        """Sets a value, and returns the one before; None if there was none."""
        before = self.items.get(key)
        self.items[key] = value
        return before

    @command
    def update(self, items: dict[str, Any]) -> None:
        """Sets many values at once."""
        self.items.update(items)

    @command
    def delete(self, key: str) -> bool:
        """Removes a key; returns whether it was there."""
        return self.items.pop(key, self) is not self

    @command
    def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Sets a value if the one before is as expected, None for a missing key; returns whether it did."""
        if self.items.get(key) != expected:
            return False
        self.items[key] = value
        return True

    @command
    def clear(self) -> None:
        """Removes all keys."""
        self.items.clear()


@attrs.define
class ReplicatedCounter(StateMachine):
    """A number that any process counts up or down: `await visits.add(1)`."""

    value: int = 0

    @command
    def add(self, amount: int = 1) -> int:
        """Adds, and returns the sum."""
        self.value += amount
        return self.value

    @command
    def compare_and_set(self, expected: int, value: int) -> bool:
        """Sets the value if it is as expected; returns whether it did."""
        is_expected = self.value == expected
        if is_expected:
            self.value = value
        return is_expected


@attrs.define
class ReplicatedQueue(StateMachine):
    """A queue from which each item is taken exactly once: `await jobs.put("a")`, `await jobs.take()`."""

    items: deque[Any] = attrs.field(factory=deque)

    @command
    def put(self, item: Any) -> int:
        """Appends an item, and returns how many there are."""
        self.items.append(item)
        return len(self.items)

    @command
    def put_many(self, items: list[Any]) -> int:
        """Appends items in their order, and returns how many there are."""
        self.items.extend(items)
        return len(self.items)

    @command
    def take(self, at_most: int = 1) -> list[Any]:
        """Removes the first items, and returns them: an empty list if there are none."""
        return [self.items.popleft() for _ in range(min(at_most, len(self.items)))]


@attrs.define
class ReplicatedLock(StateMachine):
    """A lock that one holder has at a time, until it is released or its time is up: `token = await lock.acquire("me", 30.0)`.

    A holder may be paused, and go on after its time. So the protected resource must get the token, and refuse a lower
    one than it has seen: tokens only rise."""

    token: int = 0  # of the last holder
    holder: str = ""  # "": nobody
    expires_ns: int = 0

    @command
    def acquire(self, holder: str, duration_s: float) -> int | None:
        """Takes the lock for so long, and returns its token; None if it is taken."""
        if self.holder and self.now_ns < self.expires_ns:
            return None
        self.token += 1
        self.holder, self.expires_ns = holder, self.now_ns + int(duration_s * _NS)
        return self.token

    @command
    def renew(self, token: int, duration_s: float) -> bool:
        """Keeps the lock for so long from now on; returns False if it was lost."""
        is_held = bool(self.holder) and token == self.token and self.now_ns < self.expires_ns
        if is_held:
            self.expires_ns = self.now_ns + int(duration_s * _NS)
        return is_held

    @command
    def release(self, token: int) -> bool:
        """Gives the lock back; returns False if it was lost."""
        is_held = bool(self.holder) and token == self.token
        if is_held:
            self.holder = ""
        return is_held
