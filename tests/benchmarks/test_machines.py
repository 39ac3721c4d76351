"""The comparison of replicated counters runs, and tells of both."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long(is_sampled=False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--rounds", "1", "--seconds", "0.5", "--callers", "3"],
            ["replog", "PySyncObj as installed", "PySyncObj tuned by us"],
        ),
        (["--takeovers", "1"], ["replog", "kill -9"]),
    ],
)
def test_it_runs(words: list[str], told: list[str]) -> None:
    run = [sys.executable, "-m", "benchmarks.machines", *words]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    *_, medians = ended.stdout.splitlines()
    assert medians.startswith("medians:")
    assert all(each in ended.stdout for each in told)
