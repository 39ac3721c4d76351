"""How a known bug is put back: other text in one or two methods, while a context lasts."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs

from replog.errors import LocalProtocolError


@attrs.frozen
class Patch:
    """Other text in one method."""

    owner: type
    method: str
    old: str
    new: str


@attrs.frozen
class Mutant:
    """One known bug. `overlook` are rules that would show it at once: the suite wants to see what follows from it."""

    name: str
    rule: str
    story: str
    patches: tuple[Patch, ...]
    seeds: int
    first: int = 0
    scenario: str | None = None
    strategy: str | None = None
    overlook: frozenset[str] = frozenset()
    conversation: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code has this bug while the context lasts."""
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(_patched(patch))
            yield


@contextmanager
def _patched(patch: Patch) -> Iterator[None]:
    original = vars(patch.owner)[patch.method]
    function: Any = inspect.unwrap(original)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(patch.old) != 1:
        where = f"{patch.owner.__name__}.{patch.method}"
        raise LocalProtocolError(f"{where} has {source.count(patch.old)} times {patch.old!r}: mend this mutant")
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    text = source.replace(patch.old, patch.new)
    exec(compile(text, f"<mutant of {patch.method}>", "exec", flags, True), function.__globals__, made)
    setattr(patch.owner, patch.method, made[patch.method])
    try:
        yield
    finally:
        setattr(patch.owner, patch.method, original)
