"""Each machine's table is whole, and `docs/reference/state-machines.md` shows it."""

from __future__ import annotations

import ast

import pytest

from tests.state_machines import MACHINES, PAGE, ROOT, Machine, names, page

ENDLESS = {"Member", "Pacing"}  # they end with what they belong to
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


def test_the_page_shows_the_tables_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run: python -m tests.state_machines"


def test_the_page_shows_every_machine() -> None:
    assert names(PAGE.read_text(encoding="utf-8")) == [machine.name for machine in MACHINES]


def test_every_table_in_the_source_is_drawn() -> None:
    """A module that has tables of its own is one of those that are drawn, with all its tables."""
    tables = {
        path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", "."): path.read_text(encoding="utf-8")
        for path in (ROOT / "src").rglob("*.py")
    }
    defined = {
        (module, node.target.id)
        for module, text in tables.items()
        if "Transitions[" in text
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id.isupper()
        and "Transitions[" in ast.unparse(node.annotation)
    }
    shown = {
        (machine.module.__name__, name)
        for machine in MACHINES
        for name, value in vars(machine.module).items()
        if value is machine.transitions
    }
    assert defined == shown


@each_machine
def test_every_stage_can_be_reached(machine: Machine) -> None:
    reached = {machine.stages[0]}
    while more := {then for (stage, _), then in machine.transitions.items() if stage in reached} - reached:
        reached |= more
    assert reached == set(machine.stages)


@pytest.mark.parametrize(
    "machine", [each for each in MACHINES if each.name not in ENDLESS], ids=lambda machine: machine.name
)
def test_a_machine_ends_only_where_its_table_says_so(machine: Machine) -> None:
    """From each stage there is a way to one that ends the machine: nothing is a trap."""
    ends = {stage for stage in machine.stages if all(one is not stage for one, _ in machine.transitions)}
    assert ends
    while more := {stage for (stage, _), then in machine.transitions.items() if then in ends} - ends:
        ends |= more
    assert ends == set(machine.stages)
