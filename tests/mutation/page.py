"""The page `docs/reference/mutation-score.md`, made of the tables and of what was written down of the last full run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.backends.files import mutants as journal
from tests.mutation.table import ROOT
from tests.mutation.tables import SOURCE_MUTANTS
from tests.simulator.mutants import EQUIVALENT, MUTANTS
from tests.simulator.mutation import Mutant
from tests.simulator.shells.mutants import SHELL_MUTANTS

PAGE = ROOT / "docs" / "reference" / "mutation-score.md"
_RECORD = Path(__file__).parent / "caught.json"
_HEAD = """\
# Mutation score

A test is worth what it catches. So small wrong changes, *mutants*, are made to replog on purpose, one at a time, each of a
kind that would lose data, confirm what is not durable, or hang; and some test of the gate must fail. A mutant that no test
catches gets the missing test. Those of the simulators may be explained as equivalent, if nobody can see the
difference: they are run, too, and must break nothing.

Three tables have them. The simulators' and the journal's are put in and looked for in every run of the gate. Those of the
source are many, and take a while: the gate checks that each still applies, that something is known to catch it, and that
this test still exists, and runs a few; `python -m tests.mutation` runs all, and `--record` writes down what caught each. A
new mutant is not seen yet, and the gate fails, until that was done.
"""


def recorded() -> dict[str, str]:
    """What caught which mutant in the last run that was written down."""
    found: dict[str, str] = json.loads(_RECORD.read_text(encoding="utf-8"))
    return found


def record(caught: Mapping[str, str]) -> None:
    """Writes that down."""
    _RECORD.write_text(json.dumps(dict(sorted(caught.items())), indent=1) + "\n", encoding="utf-8")


def write() -> None:
    """Writes the page."""
    PAGE.write_text(text(), encoding="utf-8")


def text() -> str:
    """The page."""
    caught = recorded()
    lines = [
        _HEAD,
        "## Figures",
        "",
        "| layer | mutants | caught | equivalent | not seen yet |",
        "|---|---|---|---|---|",
    ]
    totals = [0, 0, 0, 0]
    for layer, figures in _figures(caught).items():
        lines.append(f"| {layer} | " + " | ".join(map(str, figures)) + " |")
        totals = [total + each for total, each in zip(totals, figures, strict=True)]
    lines += ["| all | " + " | ".join(map(str, totals)) + " |", ""]
    for layer, mutants in SOURCE_MUTANTS.items():
        lines += [f"## Source: {layer}", "", "| mutant | rule | what is wrong | caught by |", "|---|---|---|---|"]
        for mutant in mutants:
            by = f"`{caught[mutant.name]}`" if mutant.name in caught else "**not seen yet**"
            lines.append(f"| `{mutant.name}` | {mutant.rule} | {mutant.why} | {by} |")
        lines.append("")
    for title, table in _METHOD_TABLES.items():
        lines += [f"## {title}", "", "| mutant | rule | what is wrong | found within |", "|---|---|---|---|"]
        for each in table:
            within = f"{each.seeds} seeds" if each.seeds else "equivalent"
            # Of an equivalent one the first sentence says what is wrong, the others why nobody can see the difference.
            story = each.story if each.seeds else each.story.partition(". ")[0]
            lines.append(f"| `{each.name}` | {each.rule} | {story} | {within} |")
        reasons = [f"- `{each.name}`: {each.story.partition('. ')[2]}" for each in table if not each.seeds]
        lines += ["", *reasons, ""] if reasons else [""]
    return "\n".join(lines)


_METHOD_TABLES: dict[str, tuple[Mutant, ...]] = {
    "Simulator of the machines": (*MUTANTS, *EQUIVALENT),
    "Simulation of client, log and bookie": SHELL_MUTANTS,
    "Crashes of the journal": (*journal.MUTANTS, *journal.EQUIVALENT),
}


def _figures(caught: Mapping[str, str]) -> dict[str, tuple[int, int, int, int]]:
    """Of each layer: how many mutants, caught, equivalent, and neither."""
    found = {}
    for layer, mutants in SOURCE_MUTANTS.items():
        seen = sum(each.name in caught for each in mutants)
        found[f"{layer} (source)"] = len(mutants), seen, 0, len(mutants) - seen
    for title, table in _METHOD_TABLES.items():
        is_journal = title.startswith("Crashes")
        equivalent = len(journal.EQUIVALENT) if is_journal else sum(not each.seeds for each in table)
        found[title.lower()] = len(table), len(table) - equivalent, equivalent, 0
    return found
