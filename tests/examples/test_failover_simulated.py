"""`examples/failover_simulated.py`: no seed breaks the bank's promises, a seed has one trace, and bugs of a bank are found."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from examples import failover
from examples.failover_simulated import run

SEEDS = 4
SEEDS_SHORT = 1  # among all tests: a seed takes seconds of a processor
ROOT = Path(__file__).parent.parent.parent

# Bugs, each put into a copy of the bank, and within how many seeds it is found.
BUGS = {
    "a command that is sent twice is done twice": ("if identity not in self.answers:", "if True:", 8),
    "a leader answers before its record is confirmed": (
        """                await log.flush()
                for position, command in list(self._asked.items()):
                    if position <= (log.last_add_confirmed or here):
                        self.bank.apply(position, command)
""",
        """                for position, command in list(self._asked.items()):
                    self.bank.apply(position, command)
""",
        3,
    ),
    "a transfer may leave a debt": (" and self.balances[source] >= int(amount)", "", 3),
}


def copy_with(old: str, new: str) -> ModuleType:
    """A copy of the bank with other text in one place."""
    text = Path(str(failover.__file__)).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"mend this bug: {old!r}"
    module = ModuleType("bank_with_a_bug")
    sys.modules[module.__name__] = module
    exec(compile(text.replace(old, new), "<bank with a bug>", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(
    "seed",
    [
        *range(SEEDS_SHORT),
        *(pytest.param(each, marks=pytest.mark.long(is_sampled=False)) for each in range(SEEDS_SHORT, SEEDS)),
    ],
)
def test_no_seed_breaks_the_bank(seed: int) -> None:
    assert "leaders" in run(seed)


@pytest.mark.long(is_sampled=False)  # bugs of the bank in test_bank.py are looked for among all tests
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_bank_is_found(bug: str) -> None:
    old, new, seeds = BUGS[bug]
    bank = copy_with(old, new)
    for seed in range(seeds):
        try:
            run(seed, bank)
        except AssertionError as error:
            note = error.__notes__[-1]
            break
    else:
        raise AssertionError(f"not found within {seeds} seeds: {bug}")
    assert f"seed={seed}" in note


@pytest.mark.long(is_sampled=False)
def test_a_seed_has_one_trace_in_every_process() -> None:
    trace: list[str] = []
    run(1, trace=trace)
    program = "from examples.failover_simulated import run\ntrace = []\nrun(1, trace=trace)\nprint('\\n'.join(trace))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == trace
