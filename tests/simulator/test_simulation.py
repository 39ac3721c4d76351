"""The floor under simulation: no seed breaks an invariant, and the schedules were worth the name."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

from replog.errors import LocalProtocolError
from tests.simulator import conversation, draw_plan, simulate
from tests.simulator import plan as plans
from tests.simulator.__main__ import main
from tests.simulator.cluster import LedgerCluster, Result
from tests.simulator.coverage import missing
from tests.simulator.disks import LedgerOnDisk
from tests.simulator.metastore import Record, SimulatedMetastore
from tests.simulator.mutants import mutant_named
from tests.simulator.plan import Fault, Op, node_name, node_number
from tests.simulator.shrink import minimize, shrink
from tests.simulator.world import World

CHUNK = 125
CHUNKS = range(0, 250, CHUNK)
CHUNKS_LONG = range(250, 2000, CHUNK)
RARE = 1027  # a seed in which a reader finds newer metadata


@cache
def run(first: int) -> tuple[Counter[str], str]:
    """Runs some seeds: what happened, and a conversation if a rule was broken."""
    happened: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        result = simulate(draw_plan(seed))
        happened.update(result.world.coverage)
        if result.violation is not None:
            small = shrink(result)
            title = (f"Seed {seed}, strategy {result.plan.strategy}: {small.violation}",)
            return happened, str(conversation.conversation_of(small, title))
    return happened, ""


@pytest.mark.parametrize(
    "first", [*CHUNKS, *(pytest.param(first, marks=pytest.mark.long(is_sampled=False)) for first in CHUNKS_LONG)]
)
def test_no_seed_breaks_an_invariant(first: int) -> None:
    _, broken = run(first)
    if broken:
        pytest.fail(f"mend this, and commit it as a conversation:\n{broken}")


def test_every_interesting_situation_happened() -> None:
    """No violation means nothing where nothing happened."""
    rare = simulate(draw_plan(RARE))
    assert rare.violation is None
    assert missing(sum((run(first)[0] for first in CHUNKS), Counter(rare.world.coverage))) == []


def with_old_readings(first: int, seeds: int) -> Iterator[Result]:
    """Of seeds without chunks: who finds one missing reads its record again, and chunks are found at once here."""
    for seed in range(first, first + seeds):
        plan = draw_plan(seed)
        if plan.scenario not in (plans.CHUNKS, plans.CHUNKS_LOG):
            yield simulate(attrs.evolve(plan, rates=attrs.evolve(plan.rates, metastore_back=300)))


@pytest.mark.sized
def test_m1_temporary_metastore_rollback_breaks_nothing(is_long: bool) -> None:
    """As readings of a server that lags: never older than what a client has seen, but older than what others did. Each change is
    upon a version, so an old record decides nothing."""
    seeds = 300 if is_long else 120
    results = list(with_old_readings(0, seeds))
    assert [str(each.violation) for each in results if each.violation] == []
    assert sum(each.world.coverage["reading found what the metastore had before"] for each in results) > seeds * 2 // 3


def test_m1_unconditional_changes_break_old_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(self: SimulatedMetastore, _client: str, key: int | str, _expected: int | None, record: Record) -> object:
        return self._put(key, record)

    monkeypatch.setattr(SimulatedMetastore, "_cas", put)
    assert any(each.violation for each in with_old_readings(0, 80))


def test_unnamed_ledger_is_found_on_a_disk() -> None:
    cluster = LedgerCluster(draw_plan(1, "ledger", "calm"))
    cluster.bookies["b1"].disk[99] = LedgerOnDisk()
    violation = cluster.run().violation
    assert violation is not None
    assert violation.rule == "L7"


def test_second_deletion_ends_after_a_late_request_remade_it() -> None:
    """Its bookies were told that it is deleted, so nobody can recover it. The simulated client tried that for ever, where the
    real one goes on as if it was missing. One of 310,000 schedules."""
    result = simulate(draw_plan(35106329))
    assert result.violation is None
    assert result.world.coverage["recovery failed: LedgerDeletedError"]


def test_unsure_bookie_is_asked_again_after_the_last_fault() -> None:
    """The simulated recovery waited for its deadline instead; the real one asks again after a pause. One of 750,000 schedules."""
    result = simulate(draw_plan(50035384))
    assert result.violation is None
    assert result.world.coverage["who could not tell was asked again"]


def trace(seed: int) -> int:
    return simulate(draw_plan(seed)).trace


def test_a_seed_has_one_trace() -> None:
    traces = [trace(seed) for seed in range(10)]
    assert traces == [trace(seed) for seed in range(10)]
    assert len(set(traces)) == len(traces)


def test_a_seed_has_one_trace_in_every_process() -> None:
    program = "from tests.simulator import *; print([simulate(draw_plan(s)).trace for s in range(10)])"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert outputs == {f"{[trace(seed) for seed in range(10)]}\n"}


@pytest.mark.parametrize("seed", range(12))
def test_drawn_faults_written_out_give_the_same_run(seed: int) -> None:
    drawn = simulate(draw_plan(seed))
    written = simulate(attrs.evolve(drawn.plan, faults=tuple(drawn.world.suffered)))
    assert written.trace == drawn.trace
    assert written.world.suffered == drawn.world.suffered


def test_fate_of_a_message_depends_on_nothing_else() -> None:
    plan = draw_plan(3)
    one, other = World(plan), World(plan)
    for subject in range(50):
        other.draw(1, 2, "add", subject)
        other.draw(2, 1, "add:answer", subject)
    assert one.draw(7, 8, "add", 1004) == other.draw(7, 8, "add", 1004)
    assert one.draw(1, 2, "add", 60) == other.draw(1, 2, "add", 60)


def test_ddmin_keeps_the_essential_steps() -> None:
    items = [Op(time, "append", "w1") for time in range(40)]
    assert minimize(items, lambda kept: items[7] in kept and items[31] in kept) == [items[7], items[31]]


def test_a_failing_seed_becomes_a_short_conversation() -> None:
    mutant = mutant_named("replaced-acks-kept")  # seed 85 found it last
    with mutant.applied():
        result = next(filter(lambda each: each.violation, (simulate(draw_plan(seed)) for seed in range(80, 500))))
        small = shrink(result)
        faults = small.plan.faults or ()
        fewer_ops = [attrs.evolve(small.plan, ops=tuple(o for o in small.plan.ops if o != op)) for op in small.plan.ops]
        fewer_faults = [attrs.evolve(small.plan, faults=tuple(f for f in faults if f != fault)) for fault in faults]
        assert [each for each in (*fewer_ops, *fewer_faults) if simulate(each).rule == result.rule] == []
    assert small.rule == result.rule
    assert len(small.plan.ops) + len(faults) < len(result.plan.ops) + len(result.world.suffered)
    text = str(conversation.conversation_of(small, ("a title", "of two lines"), mutant.name))
    again = conversation.parse(text)
    assert again.title == ("a title", "of two lines")
    assert str(again.run()[1]) == text
    assert again.expect == result.rule


def test_names_of_nodes_read_back() -> None:
    names = ["m", "b1", "b12", "w1", "r99", "d2", "l3", "f1", "t7"]
    assert [node_name(node_number(name)) for name in names] == names


@pytest.mark.parametrize("line", ["at 120 append w1 2", "at 3 recover r1 5 stale", "at 0 cut b1 w1 70"])
def test_an_operation_reads_back(line: str) -> None:
    assert str(Op.parse(line)) == line


@pytest.mark.parametrize(
    "line", ["lose w1>b3 add 1004 #0", "delay m>l2 cas:answer 999 #3 70", "stall b2>b2 sync 1 #0 9"]
)
def test_a_fault_reads_back(line: str) -> None:
    assert str(Fault.parse(line)) == line


@pytest.mark.parametrize("text", ["", "at noon", "lose w1>b3", "seed 1\nquorum 3 2 2", "rates lost=many\nseed 1"])
def test_nonsense_is_not_a_conversation(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        conversation.parse(text)


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "20", "--first", "5"]) == 0
    assert "20 seeds" in capsys.readouterr().out


def test_the_command_stops_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "100000", "--seconds", "0.2"]) == 0
    assert "no violation" in capsys.readouterr().out


def test_the_command_finds_a_known_bug_and_replays_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutant", "partial-gathering", "--seeds", "100"]) == 0
    said = capsys.readouterr().out
    found = tmp_path / "found.txt"
    found.write_text(said[said.index("# Seed") :].rstrip("\n") + "\n", encoding="utf-8")
    assert main(["--replay", str(found)]) == 0
    found.write_text(found.read_text(encoding="utf-8").replace("confirmed 1/", "confirmed 2/"), encoding="utf-8")
    assert main(["--replay", str(found)]) == 1
    assert main(["--rewrite", str(found)]) == 0
    assert main(["--replay", str(found)]) == 0


def test_the_command_lists_the_known_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutants"]) == 0
    assert "too-few-negatives" in capsys.readouterr().out


def test_unfound_known_bug_is_a_failure() -> None:
    assert main(["--mutant", "reads-dont-fence", "--seeds", "2"]) == 1
