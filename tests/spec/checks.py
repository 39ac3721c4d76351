"""One line of the table of `python -m tests.spec`: what was checked, what TLC says, and whether that is as expected."""

from __future__ import annotations

import attrs

from tests.spec import tlc
from tests.spec.catalog import AnyModel, model_named
from tests.spec.models import Removal

SAMPLE_STEPS = 80


@attrs.frozen
class Line:
    """One check, as text."""

    text: str
    is_right: bool
    processor_s: float


def check_model(model: AnyModel, workers: int, timeout_s: float) -> Line:
    """Every state that the model can reach keeps all invariants; or every state of its samples."""
    options = ("-simulate", f"num={model.samples}", "-depth", str(SAMPLE_STEPS)) if model.samples else ()
    outcome = tlc.check(model.module, model.config(), timeout_s=timeout_s, workers=workers, options=options)
    is_right = (outcome.is_exhaustive or bool(model.samples)) and not outcome.violated
    return _line(f"model {model.name}", outcome.violated or "holds", outcome, is_right, model.features)


def check_removal(removal: Removal, workers: int, timeout_s: float) -> Line:
    """Without the rule something breaks, unless the rule is redundant."""
    model = model_named(removal.model)
    is_short = not removal.redundant  # what breaks is found soon
    outcome = tlc.check(
        model.module, model.config(removal.rule), timeout_s=timeout_s, workers=workers, is_short=is_short
    )
    is_right = outcome.is_exhaustive and not outcome.violated if removal.redundant else bool(outcome.violated)
    said = outcome.violated or ("redundant" if removal.redundant else "nothing found")
    return _line(f"without {removal.rule}", said, outcome, is_right, f"{removal.meaning} [{removal.model}]")


def check_goal(name: str, place: str, meaning: str, workers: int, timeout_s: float) -> Line:
    """The situation comes about: its negation is violated."""
    model = model_named(place)
    outcome = tlc.check(model.module, model.config(goal=name), timeout_s=timeout_s, workers=workers, is_short=True)
    is_right = outcome.violated == name
    return _line("reached", name if is_right else f"{name}: never", outcome, is_right, f"{meaning} [{place}]")


def _line(what: str, said: str, outcome: tlc.Outcome, is_right: bool, meaning: str) -> Line:
    depth = f"depth {outcome.depth:>3}" if outcome.depth else " " * 9
    figures = (
        f"{outcome.states:>9} states {depth} {outcome.elapsed_s:6.1f} s ({outcome.processor_s:5.1f} s of processor)"
    )
    text = f"{what:<24} {said:<26} {figures}  {meaning}{'' if is_right else '  <-- not as expected'}"
    return Line(text, is_right, outcome.processor_s)
