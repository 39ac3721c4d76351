"""Trials of damaged storages, drawn from seeds: two of them among all tests, forty in the sample, a thousand in the long lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.running_trials import run_command
from tests.failures.storage_trials import BAD


def check(first: int, trials: int, directory: Path) -> None:
    results = run_command("--seed", str(first), "--trials", str(trials), directory=directory)
    assert len(results) == trials
    bad = [each for each in results if each["outcome"] in BAD]
    assert not bad, "\n".join(
        f"seed {each['seed']}: {each['outcome']}: {each['what']} ({each['damage']})" for each in bad
    )


@pytest.mark.crash
def test_no_confirmed_entry_is_lost_in_two_trials(tmp_path: Path) -> None:
    check(1, 2, tmp_path)


@pytest.mark.long(is_sampled=False)
@pytest.mark.crash
def test_no_confirmed_entry_is_lost_in_many_trials(tmp_path: Path, is_long: bool) -> None:
    check(1001, 1000 if is_long else 40, tmp_path)
