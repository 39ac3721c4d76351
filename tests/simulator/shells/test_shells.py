"""The shells under simulation: no seed breaks a rule, a seed has one trace, and the storms were worth the name."""

import os
import random
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from tests.simulator.__main__ import main
from tests.simulator.shells import ShellResult, simulate_shells
from tests.simulator.shells.casting import WHOLE, drawn_cast
from tests.simulator.shells.command import missing
from tests.simulator.shells.keeping import CLOCKS
from tests.simulator.shells.repairs import REPAIRS
from tests.simulator.shells.repeats import REPEATS
from tests.simulator.shells.requests import REQUESTS
from tests.simulator.shells.terms import TERMS
from tests.simulator.shells.weather import FULL, STRATEGIES, UNANSWERED, WENT_BACK

RARE = 22  # a seed whose metastore loses answers
SEEDS_LONG = max(12, int(os.environ.get("SHELL_SEEDS", "12")))  # in the long lane: every strategy has its turn
DOUBTING = 26  # a seed in which a bookie in doubt refuses an add
SHORT = 9  # a seed that is soon over
QUICK = (0, SHORT)  # seeds of two strategies, both soon over
SWARM = (0, 6, 7)  # short seeds
REPEATS_SEED = 20  # a short seed in which ids are answered, repeated, forgotten and trimmed
CLOCKS_SEED = 4  # a seed in which retention names clocks
TERMS_SEED = 4  # a short seed whose ledger outgrows its record
REQUESTS_SEED = 4  # a short seed in which a leader answers a committer
LOSSY = 20  # a seed in which single requests and answers are lost: few have that


@cache
def run(seed: int) -> ShellResult:
    return simulate_shells(seed)


@pytest.mark.parametrize("seed", QUICK)
def test_no_seed_breaks_a_rule(seed: int) -> None:
    assert run(seed).violation is None, f"python -m tests.simulator --shells --first {seed} --seeds 1 --trace"


@pytest.mark.parametrize("seed", SWARM)
def test_no_seed_of_a_swarm_breaks_a_rule(seed: int) -> None:
    result = simulate_shells(seed, swarm=True)
    assert result.violation is None, f"python -m tests.simulator --shells --swarm --first {seed} --seeds 1 --trace"


def test_each_seed_of_a_swarm_has_another_cast_and_a_writer() -> None:
    casts = [drawn_cast(random.Random(seed)) for seed in range(100)]
    assert all({"leader", "writer"} & set(each.roles) for each in casts)
    assert {role for each in casts for role in each.roles} == set(WHOLE.roles)
    assert all(count <= WHOLE.roles[role] for each in casts for role, count in each.roles.items())
    assert any(each.storm_s == WHOLE.storm_s for each in casts)
    assert any(each.storm_s < 1 for each in casts)


@pytest.mark.long(is_sampled=False)
def test_no_seed_of_many_breaks_a_rule_and_all_happened() -> None:
    """No violation means nothing where nothing happened."""
    seeds = {*range(SEEDS_LONG), DOUBTING, RARE, LOSSY}
    assert [seed for seed in seeds if run(seed).violation is not None] == []
    assert len({run(seed).strategy for seed in range(SEEDS_LONG)}) >= len(STRATEGIES) - 2
    assert missing(sum((run(seed).coverage for seed in seeds), Counter())) == []


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("seed", range(6))
def test_guaranteed_write_quorums_are_full(seed: int) -> None:
    """W8: whoever was told that a ledger is closed, rolled or taken over finds all copies, right then."""
    result = simulate_shells(seed, strategy=FULL)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy full --first {seed} --seeds 1 --trace"
    )
    assert result.coverage["a ledger is full"]


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("seed", range(8))
def test_confirmed_entries_are_at_the_named_bookies_in_a_change(seed: int) -> None:
    """C9: a writer does not hear what became of a change of its ensemble, and goes on."""
    result = simulate_shells(seed, strategy=UNANSWERED)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy unanswered --first {seed} --seeds 1 --trace"
    )
    assert result.coverage["a writer did not hear of its change of the ensemble"]
    assert result.coverage["confirmed entry on an ack quorum of its record"]


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("seed", range(8))
def test_repairs_make_every_copy_again(seed: int) -> None:
    """F1-F6, B8a: repairers that die at any effect, beside everything else; in the calm a second bookie is lost."""
    result = simulate_shells(seed, strategy=REPAIRS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy repairs --first {seed} --seeds 1 --trace"
    )
    assert result.coverage["entry on its whole write set"]
    assert result.coverage["second bookie declared lost"]


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("seed", range(8))
def test_metastore_rollback_costs_no_entry(seed: int) -> None:
    """B6a: bookies find it empty, or as it was some seconds ago, while they collect garbage, start and take new ledgers."""
    result = simulate_shells(seed, strategy=WENT_BACK)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy went-back --first {seed} --seeds 1 --trace"
    )
    assert result.coverage["metastore went back"]


def test_repeated_appends_are_in_the_log_once() -> None:
    """L11: producers repeat after every failure, through whoever leads, and windows forget nearly everything."""
    result = simulate_shells(REPEATS_SEED, strategy=REPEATS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy repeats --first {REPEATS_SEED} --seeds 1 --trace"
    )
    for situation in ("id answered", "repeated id answered", "forgotten id refused", "repeated log trimmed"):
        assert result.coverage[situation], situation


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("seed", range(8))
def test_repeated_appends_of_more_seeds_are_in_the_log_once(seed: int) -> None:
    result = simulate_shells(seed, strategy=REPEATS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy repeats --first {seed} --seeds 1 --trace"
    )


def test_entries_stay_for_their_age_while_clocks_jump() -> None:
    """L3a: the clocks of leaders and of a bookie are wrong, each by another amount, and jump."""
    result = simulate_shells(CLOCKS_SEED, strategy=CLOCKS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy clocks --first {CLOCKS_SEED} --seeds 1 --trace"
    )
    for situation in ("clock jumped", "clocks named by retention", "entry to be kept confirmed", "old entries dropped"):
        assert result.coverage[situation], situation


def test_terms_and_chunks_lose_nothing() -> None:
    """M4, T2: a ledger is taken over, rolled, trimmed, followed and repaired while its fragments leave the record."""
    result = simulate_shells(TERMS_SEED, strategy=TERMS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy terms --first {TERMS_SEED} --seeds 1 --trace"
    )
    assert result.coverage["fragments left the record for chunks"]
    assert result.coverage["unbounded ledger trimmed"]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(each, marks=() if each == REQUESTS_SEED else pytest.mark.long(is_sampled=False))
        for each in range(16)
    ],
)
def test_leaders_stay_and_order_is_kept_when_jobs_commit(seed: int) -> None:
    """L10: leaders that hear late what they have written, and committers without patience."""
    result = simulate_shells(seed, strategy=REQUESTS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy requests --first {seed} --seeds 1 --trace"
    )
    assert result.coverage["leader answers a committer"] or seed != REQUESTS_SEED


@pytest.mark.long(is_sampled=False)
@pytest.mark.parametrize("seed", range(8))
def test_terms_and_chunks_of_more_seeds_lose_nothing(seed: int) -> None:
    result = simulate_shells(seed, strategy=TERMS)
    assert result.violation is None, (
        f"python -m tests.simulator --shells --strategy terms --first {seed} --seeds 1 --trace"
    )


@pytest.mark.long(is_sampled=False)
def test_a_seed_has_one_trace_in_every_process() -> None:
    program = f"from tests.simulator.shells import simulate_shells; print(simulate_shells({SHORT}).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {run(SHORT).digest}


def test_seed_has_one_trace_after_any_earlier_run() -> None:
    transcript: list[str] = []
    digest = simulate_shells(SHORT, transcript).digest
    assert len(transcript) > 1000
    if digest != run(SHORT).digest:
        again: list[str] = []
        simulate_shells(SHORT, again)
        assert transcript == again
    assert digest == run(SHORT).digest


def test_seeds_differ() -> None:
    assert len({run(seed).digest for seed in QUICK}) == len(QUICK)
    assert len({run(seed).strategy for seed in QUICK}) == len(QUICK)


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shells", "--first", str(SHORT), "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert "record confirmed" in said
    assert said.rstrip().endswith("no violation")


def test_the_command_finds_a_bug_and_says_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shells", "--mutant", "acknowledged-before-durable", "--first", str(SHORT), "--seeds", "3"]) == 0
    said = capsys.readouterr().out
    assert "VIOLATION B1" in said
    again = said.rstrip().rpartition("tests.simulator ")[2].split()
    assert main(again) == 0
    assert "VIOLATION B1" in capsys.readouterr().out


def test_unfound_known_bug_is_a_failure() -> None:
    command = f"--shells --mutant any-answer-counts --strategy metastore --first {SHORT} --seeds 1"
    assert main(command.split()) == 1


def test_the_command_lists_the_known_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutants"]) == 0
    assert "cancelled-read-loses" in capsys.readouterr().out


def test_a_strategy_of_the_machines_is_none_of_the_shells() -> None:
    with pytest.raises(SystemExit):
        main(["--shells", "--strategy", "swarm"])
