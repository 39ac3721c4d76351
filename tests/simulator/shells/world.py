"""The world of one run, with the rules that the product broke in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from replog.api import Client
from replog.testing.simulating.lockstep import Lockstep
from replog.testing.simulating.world import World

Act = Callable[[Client, str], Awaitable[None]]  # with the client of a process, and its name
PASSWORD = b"secret"  # of plain ledgers


class Violation(AssertionError):
    """The product broke a rule."""

    def __init__(self, rule: str, problem: str) -> None:
        super().__init__(f"{rule}: {problem}")
        self.rule = rule


class JudgedWorld(World):
    """A world whose oracles report violations; the run continues after one, and the first counts."""

    def __init__(self, seed: int, nursery: trio.Nursery, threads: Lockstep, transcript: list[str] | None) -> None:
        super().__init__(seed, nursery, threads, transcript)
        self.violations: list[Violation] = []

    def violated(self, rule: str, problem: str) -> None:
        """Record that the product broke a rule."""
        self.tell("oracle", f"VIOLATION {rule}: {problem}")
        self.violations.append(Violation(rule, problem))
