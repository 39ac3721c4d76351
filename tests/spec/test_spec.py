"""The specification: its smallest model among all tests, all models and rules in the long lane."""

from __future__ import annotations

import pytest

from tests.spec import tlc
from tests.spec.catalog import ALL_GOALS, ALL_MODELS, ALL_REMOVALS, AnyModel, model_named
from tests.spec.checks import check_goal, check_model, check_removal
from tests.spec.models import Removal

_TIMEOUT_S = 1800.0


@pytest.fixture
def checker() -> None:
    if problem := tlc.missing():
        pytest.skip(problem)


@pytest.fixture
def fetched_checker() -> None:
    try:
        tlc.fetch()
    except tlc.CheckerError as error:
        pytest.skip(str(error))


def _text(module: str) -> str:
    return (tlc.SPEC / f"{module}.tla").read_text(encoding="utf-8")


def test_names_in_models_are_of_the_module() -> None:
    for removal in ALL_REMOVALS:
        assert f'Holds("{removal.rule}")' in _text(model_named(removal.model).module), removal.rule
    for name, model, _ in ALL_GOALS:
        assert f"{name} ==" in _text(model_named(model).module)


@pytest.mark.parametrize("module", ["Ledger", "Record", "Full", "Log", "Council"])
def test_each_switchable_rule_is_removed_once(module: str) -> None:
    switched = {each.split('"')[0] for each in _text(module).split('Holds("')[1:]}
    removals = [each.rule for each in ALL_REMOVALS if model_named(each.model).module == module]
    assert switched == set(removals)
    assert len(removals) == len(switched)


@pytest.mark.slow
def test_smallest_model_holds_and_breaks_without_fencing_reads(checker: None) -> None:
    assert check_model(model_named("one"), 1, 300).is_right
    [removal] = [each for each in ALL_REMOVALS if each.rule == "R4 fence"]
    assert check_removal(removal, 1, 300).is_right


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("model", [each for each in ALL_MODELS if not each.is_long], ids=lambda model: model.name)
def test_model_holds(fetched_checker: None, model: AnyModel) -> None:
    line = check_model(model, 1, _TIMEOUT_S)
    assert line.is_right, line.text


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("removal", ALL_REMOVALS, ids=lambda removal: removal.rule)
def test_rule_is_needed_or_redundant(fetched_checker: None, removal: Removal) -> None:
    line = check_removal(removal, 1, _TIMEOUT_S)
    assert line.is_right, line.text


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("goal", ALL_GOALS, ids=lambda goal: goal[0])
def test_situation_comes_about(fetched_checker: None, goal: tuple[str, str, str]) -> None:
    line = check_goal(*goal, 1, _TIMEOUT_S)
    assert line.is_right, line.text
