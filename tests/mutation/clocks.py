"""Mutants of what a wrong clock may cost: time in machines, retention by age, and what is forgotten by age."""

from tests.mutation.table import SourceMutant

_MACHINE_TESTS = ("tests/machine/test_clock.py",)


def _machine(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"machine-clock-{name}", "L12", f"machine/{file}.py", old, new, why, _MACHINE_TESTS)


MUTANTS = (
    _machine(
        "is-the-wall-clock",
        "clock",
        "min(behind_ns, passed_ns + passed_ns // _FASTER)",
        "behind_ns",
        "a wall clock that jumps ahead for a moment keeps a lock of one second taken for as long as it jumped",
    ),
    _machine(
        "at-twice-real-time",
        "clock",
        "_FASTER = 20",
        "_FASTER = 1",
        "a wall clock that stays ahead ends a lock in half of its time",
    ),
    _machine(
        "never-catches-up",
        "clock",
        "max(passed_ns, min(behind_ns, passed_ns + passed_ns // _FASTER))",
        "passed_ns",
        "machine time stays behind by all the time in which nobody led",
    ),
    _machine(
        "begins-at-the-wall-clock",
        "clock",
        "self._applied_ns() or self._chance.time_ns()",
        "max(self._applied_ns(), self._chance.time_ns())",
        "a takeover by a member whose clock is ahead ends every lock",
    ),
    _machine(
        "leader-tells-its-own-time",
        "member",
        "lead = self._entry(Kind.LEAD)",
        "lead = self._entry(Kind.LEAD, current_chance().time_ns())",
        "a takeover by a member whose clock is ahead ends every lock",
    ),
    _machine(
        "not-started",
        "member",
        "                leader.clock.start()\n",
        "",
        "the time from a takeover to the next command does not count, and a lock lasts longer by it",
    ),
)
