"""Mutants of what a wrong clock may cost: time in machines, retention by age, and what is forgotten by age."""

from tests.mutation.table import SourceMutant

_RETENTION_TESTS = ("tests/log/test_wrong_clocks.py",)
_MACHINE_TESTS = ("tests/machine/test_clock.py",)


def _machine(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"machine-clock-{name}", "L12", f"machine/{file}.py", old, new, why, _MACHINE_TESTS)


def _retention(name: str, file: str, old: str, new: str, why: str) -> SourceMutant:
    return SourceMutant(f"clock-{name}", "L3a", file, old, new, why, _RETENTION_TESTS)


MUTANTS = (
    _retention(
        "bookies-not-asked",
        "log/retention.py",
        "            first = without_age\n",
        "            pass\n",
        "a leader whose clock is ahead drops entries that are a minute old",
    ),
    _retention(
        "one-bookie-confirms",
        "client/clocks.py",
        "return 2 * len(agreeing) > len(self.ahead_s)",
        "return bool(agreeing)",
        "one bookie that shares the wrong clock of its machine's leader confirms it",
    ),
    _retention(
        "silence-confirms",
        "client/clocks.py",
        "return 2 * len(agreeing) > len(self.ahead_s)",
        "return 2 * len(agreeing) > sum(each is not None for each in self.ahead_s.values())",
        "where most bookies are away, the one that shares the leader's wrong clock confirms it",
    ),
    _retention(
        "behind-not-noticed",
        "client/clocks.py",
        "return ahead_s if ahead_s > 0 else min(0.0, ahead_s + passed_s)",
        "return max(0.0, ahead_s)",
        "a clock that is behind keeps everything, and nobody learns why",
    ),
    _retention(
        "jump-not-seen",
        "client/clocks.py",
        "abs(jump_s) <= TOLERANCE_S",
        "jump_s <= 3600 * 24 * 3650",
        "in an embedded log, whose bookies have the same clock, a jump drops entries that are a minute old",
    ),
    _retention(
        "jump-never-ends",
        "client/clocks.py",
        "        self._passes[log_name] = reading\n",
        "",
        "a clock that was set right once keeps retention from dropping anything until the process ends",
    ),
    _retention(
        "future-not-named",
        "log/segment_ages.py",
        "            if _is_of_the_future(segment, soon_ms):",
        "            if False:",
        "what a leader wrote whose clock was ten years ahead stays for ten years, and nobody learns why",
    ),
    _retention(
        "going-back-counts",
        "log/segment_ages.py",
        "elif 0 < first_ms < latest_ms - _TOLERANCE_MS:",
        "elif False:",
        "what a leader wrote whose clock was behind goes too early",
    ),
    _retention(
        "witness-goes-first",
        "log/segment_ages.py",
        "            if following.number in goes_back:\n",
        "            if False:\n",
        "once the segment is gone that shows that times went back, the next one goes too early",
    ),
    _retention(
        "idle-for-years-believed",
        "log/segment_ages.py",
        "if 0 < before_ms < time_ms - _IDLE_MAX_MS",
        "if 0 < before_ms < time_ms - 100 * _IDLE_MAX_MS",
        "the first leader of a log had a clock that began in 1970: the next one drops all that it wrote",
    ),
    _retention(
        "sweep-by-any-clock",
        "log/sweeping.py",
        "ended += old if not grace_s or await self._is_clock_right(old, head) else ()",
        "ended += old",
        "a sweep by a machine whose clock is ahead gives up the jobs that run",
    ),
    _retention(
        "forgotten-by-any-clock",
        "log/right_time.py",
        "        if refusal is not None:\n            raise refusal\n",
        "",
        "an operator's clock is ahead, and a log forgets the producers that write to it: a repetition is stored twice",
    ),
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
        "self._applied_ns() or self._entropy.time_ns()",
        "max(self._applied_ns(), self._entropy.time_ns())",
        "a takeover by a member whose clock is ahead ends every lock",
    ),
    _machine(
        "leader-tells-its-own-time",
        "member",
        "lead = self._entry(Kind.LEAD)",
        "lead = self._entry(Kind.LEAD, current_entropy().time_ns())",
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
