"""How a known bug is put back: other text in one or two methods, while a context lasts."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import attrs

from replog.errors import LocalProtocolError


@attrs.frozen
class Patch:
    """Other text in one method, or in a function of a module."""

    owner: type | ModuleType
    method: str
    old: str
    new: str


@attrs.frozen
class Mutant:
    """One known bug. `overlook` are rules that would show it at once: the suite wants to see what follows from it.

    `scenario` and `strategy` replace what the seeds say, where some find it sooner."""

    name: str
    rule: str
    story: str
    patches: tuple[Patch, ...]
    seeds: int
    scenario: str | None = None
    strategy: str | None = None
    overlook: frozenset[str] = frozenset()
    conversation: str = ""
    step: int = 1  # of as many seeds only the last is run: where only those have what it takes

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code has this bug while the context lasts."""
        methods = dict.fromkeys((patch.owner, patch.method) for patch in self.patches)
        with ExitStack() as stack:
            for owner, method in methods:
                changes = [
                    (each.old, each.new) for each in self.patches if (each.owner, each.method) == (owner, method)
                ]
                stack.enter_context(_rewritten(owner, method, changes))
            yield


@contextmanager
def _rewritten(owner: type | ModuleType, method: str, changes: Sequence[tuple[str, str]]) -> Iterator[None]:
    original = vars(owner)[method]
    function: Any = inspect.unwrap(original)
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if text.count(old) != 1:
            where = f"{owner.__name__}.{method}"
            raise LocalProtocolError(f"{where} has {text.count(old)} times {old!r}: mend this mutant")
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    exec(compile(text, f"<mutant of {method}>", "exec", flags, True), function.__globals__, made)
    setattr(owner, method, made[method])
    try:
        yield
    finally:
        setattr(owner, method, original)
