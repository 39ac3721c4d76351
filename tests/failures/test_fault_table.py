"""docs/concepts/guarantees.md: which fault is survived with which quorum, shown by real processes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.failures.fault_table import CELLS, Cell
from tests.failures.running_trials import run_command

pytestmark = [pytest.mark.crash, pytest.mark.long(is_sampled=False)]

Results = Mapping[str, Mapping[str, str]]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What came of each cell whose test is to run, by name. They are carried out together."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = [each["cell"].name for each in params if isinstance(each.get("cell"), Cell)]
    found = run_command("--jobs", "4", "--cells", *names, directory=tmp_path_factory.mktemp("cells"))
    assert {each["name"] for each in found} == {*names}
    return {each["name"]: each for each in found}


def of_row(row: str) -> pytest.MarkDecorator:
    """The cells of a row."""
    cells = {name: cell for name, cell in CELLS.items() if cell.row == row}
    assert cells, row
    return pytest.mark.parametrize("cell", cells.values(), ids=cells)


def check(cell: Cell, results: Results) -> None:
    result = results[cell.name]
    assert result["outcome"] in cell.expected, f"{result['what']} ({result['damage']})"


@of_row("killed")
def test_kill_9_of_all_costs_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("stopped")
def test_a_clean_stop_of_all_costs_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("power lost")
def test_power_loss_of_all_costs_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("power lost, one absent")
def test_power_loss_costs_nothing_with_one_absent(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("killed, one absent")
def test_kill_9_costs_nothing_with_one_absent(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("two restart late")
def test_takeover_succeeds_when_two_bookies_restart_late(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("wrong clocks")
def test_wrong_clocks_cost_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("end lost")
def test_a_lost_end_costs_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("end lost, one lags")
def test_a_lost_end_costs_nothing_with_one_lagging(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("end lost, one absent")
def test_lost_end_waits_for_the_absent_bookie(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("disk lost")
def test_a_lost_disk_costs_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("disk lost, one lags")
def test_a_lost_disk_costs_nothing_with_one_lagging(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("disk lost, one absent")
def test_lost_disk_waits_for_the_absent_bookie(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("two disks lost")
def test_two_lost_disks_wait_for_the_operator(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("no trace")
def test_an_older_copy_costs_nothing(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("no trace, one lags")
def test_an_older_copy_costs_nothing_with_one_lagging(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("no trace, one lags, one absent")
def test_an_older_copy_loses_entries_without_the_only_other(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("fence lost")
def test_a_lost_fence_confirms_nothing_to_a_deposed_writer(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("two ends lost")
def test_two_lost_ends_wait_for_the_operator(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("two marks lost")
def test_two_lost_marks_cost_nothing_with_all_there(cell: Cell, results: Results) -> None:
    check(cell, results)


@of_row("declared lost")
def test_bookies_declared_lost_are_not_waited_for(cell: Cell, results: Results) -> None:
    check(cell, results)
