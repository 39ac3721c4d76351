"""Every mutant of the source still applies, what the page says of them is what is written down, and some are caught again."""

import pytest

from tests.backends.files import mutants as journal
from tests.mutation import page
from tests.mutation.running import catching, copied_source
from tests.mutation.table import ROOT, SOURCE, SourceMutant
from tests.mutation.tables import SOURCE_MUTANTS
from tests.simulator import mutants as machines
from tests.simulator.shells.mutants import SHELL_MUTANTS

ALL = [mutant for mutants in SOURCE_MUTANTS.values() for mutant in mutants]
IN_LONG_LANE = pytest.mark.long(is_sampled=False)
SAMPLE = ("found-record-is-own", "positive-not-waited-for", "loss-of-ack-quorum-unseen")


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_the_source(mutant: SourceMutant) -> None:
    changed = mutant.changed((SOURCE / mutant.file).read_text(encoding="utf-8"))
    compile(changed, mutant.file, "exec")


def test_mutants_of_the_simulators_apply() -> None:
    """Their own tests say so, too, minutes later."""
    for mutant in (*machines.MUTANTS, *machines.EQUIVALENT, *SHELL_MUTANTS, *journal.MUTANTS, *journal.EQUIVALENT):
        with mutant.applied():
            pass


def test_names_are_unique_and_there_are_enough() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 80


def test_page_matches_the_record() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(), "write it again: python -m tests.mutation --page"


def test_no_mutant_is_unseen() -> None:
    recorded = page.recorded()
    unseen = [mutant.name for mutant in ALL if mutant.name not in recorded]
    assert unseen == [], "find or write the test that catches it: python -m tests.mutation --missing --record"
    assert set(recorded) <= {mutant.name for mutant in ALL}


@pytest.mark.parametrize("caught_by", sorted(set(page.recorded().values())))
def test_recorded_test_exists(caught_by: str) -> None:
    path, *names = caught_by.split("[")[0].split("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert names, "a file that does not start, or hangs, names no test"
    assert names[0] in text, "it was renamed: record again what catches the mutant"


@pytest.mark.parametrize("name", [SAMPLE[0], *(pytest.param(each, marks=IN_LONG_LANE) for each in SAMPLE[1:])])
def test_sampled_mutant_is_caught(name: str) -> None:
    (mutant,) = (each for each in ALL if each.name == name)
    with copied_source() as source:
        assert catching(mutant, source, mutant.tests[:1])


def test_outdated_mutant_is_an_error() -> None:
    outgrown = SourceMutant("outgrown", "-", "protocol/quorum.py", "no such text", "", "-", ())
    with pytest.raises(ValueError, match="mend this mutant"):
        outgrown.changed((SOURCE / outgrown.file).read_text(encoding="utf-8"))
