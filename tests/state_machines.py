"""Draws the tables of transitions into `docs/reference/state-machines.md`: `python -m tests.state_machines` writes the page.

The page has a pair of comments for each machine, `<!-- drawn: NAME -->` and `<!-- end -->`. What stands between them is made
here: the diagram, and the invariants from the docstring of the machine's module.
"""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from replog.backends import lifecycle
from replog.client import pacing
from replog.protocol import (
    appending,
    archiving,
    chaining,
    dropping,
    filling,
    reading,
    recovery,
    retiring,
    rolling,
    sweeping,
    writing,
)
from replog.protocol.consensus import member
from replog.protocol.stages import Transitions

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "state-machines.md"

_DRAWN = re.compile(r"^<!-- drawn: (\w+) -->\n.*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
_INVARIANTS = re.compile(r"^Invariants:\n\n((?:[- ] .*\n)+)", re.MULTILINE)


@attrs.frozen
class Machine:
    """A class, the module that describes it, and its table."""

    name: str
    module: ModuleType
    transitions: Transitions[Any]

    @property
    def stages(self) -> list[enum.Enum]:
        """The stages of the table in the order of their enum; a machine begins in the first one."""
        named = {stage for stage, _ in self.transitions} | set(self.transitions.values())
        kind: type[enum.Enum] = type(next(iter(named)))
        return [stage for stage in kind if stage in named]


MACHINES = (
    Machine("LedgerWriting", writing, writing.TRANSITIONS),
    Machine("LedgerRecovery", recovery, recovery.TRANSITIONS),
    Machine("LedgerReading", reading, reading.TRANSITIONS),
    Machine("LedgerFilling", filling, filling.TRANSITIONS),
    Machine("LedgerArchiving", archiving, archiving.TRANSITIONS),
    Machine("LogTakeover", chaining, chaining.TAKEOVER_TRANSITIONS),
    Machine("LogRolling", rolling, rolling.TRANSITIONS),
    Machine("LogTrimming", dropping, dropping.TRIMMING_TRANSITIONS),
    Machine("LogDeleting", dropping, dropping.DELETING_TRANSITIONS),
    Machine("LogAppending", appending, appending.TRANSITIONS),
    Machine("LogSweeping", sweeping, sweeping.TRANSITIONS),
    Machine("LogRetiring", retiring, retiring.TRANSITIONS),
    Machine("Lifecycle", lifecycle, lifecycle.TRANSITIONS),
    Machine("Pacing", pacing, pacing.TRANSITIONS),
    Machine("Member", member, member.TRANSITIONS),
)


def diagram(machine: Machine) -> str:
    """A Mermaid diagram. A machine ends where no line of its table leads on."""
    events: dict[tuple[enum.Enum, enum.Enum], list[str]] = {}
    for (stage, event), following in machine.transitions.items():
        events.setdefault((stage, following), []).append(event)
    lines = [f"[*] --> {machine.stages[0].name}"]
    lines += [f"{one.name} --> {other.name}: {', '.join(names)}" for (one, other), names in events.items()]
    lines += [f"{stage.name} --> [*]" for stage in machine.stages if all(one is not stage for one, _ in events)]
    return "```mermaid\nstateDiagram-v2\n" + "".join(f"    {line}\n" for line in lines) + "```\n"


def invariants(module: ModuleType) -> str:
    """The list below "Invariants:" in a module's docstring. Raises ValueError if there is none."""
    found = _INVARIANTS.search((inspect.getdoc(module) or "") + "\n")
    if found is None:
        raise ValueError(f"the docstring of {module.__name__} has no list of invariants")
    return found[1]


def drawn(machine: Machine) -> str:
    """What the page says of a machine, with the comments around it."""
    path = machine.module.__name__.removeprefix("replog.").replace(".", "/") + ".py"
    begin, end = f"<!-- drawn: {machine.name} -->", "<!-- end -->"
    text = f"{diagram(machine)}\nInvariants, from `{path}`:\n\n{invariants(machine.module)}"
    return f"{begin}\n\n{text}\n{end}\n"


def page(text: str) -> str:
    """This page with all diagrams as the tables are now. Raises KeyError for a machine that does not exist."""
    machines = {machine.name: machine for machine in MACHINES}
    return _DRAWN.sub(lambda found: drawn(machines[found[1]]), text)


def names(text: str) -> list[str]:
    """The machines that a page shows."""
    return _DRAWN.findall(text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
