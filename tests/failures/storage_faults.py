"""Runs trials of storage faults: `python -m tests.failures.storage_faults --trials 1000 --seed 1`; see `storage_trials`.

Prints each bad trial with the command that repeats it, and in the end a table of outcomes by fault; status 1 if one was bad.
Bookies, writers and takeovers are processes of their own, forked from this one; `--jobs` trials run at a time.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path

import attrs
import trio

import replog
from replog.chance import Chance, use_chance
from replog.config import ClientOptions
from replog.errors import BookieError, NotEnoughBookiesError, RecoveryUndecidedError, ReplogError, StorageError
from replog.log.writer import LogWriter
from replog.registry import Registry
from tests.failures.damages import FILES, LMDB, MARK_FILE, OF_ALL, NothingToDamageError, older_copy_of
from tests.failures.fault_table import CELLS
from tests.failures.forks import Child, Parent, Role, fork
from tests.failures.storage_trials import (
    AFTER,
    AFTER_BEGINS,
    BAD,
    Outcome,
    Plan,
    Result,
    lost_entries,
    may_refuse,
    plan_of,
    report,
)

LOG = "orders"
BEYOND = 200  # entries pushed and not waited for when all processes are killed
STAGGER_S = 0.2
CLOCK_WRONG_BY_S = 50 * 365 * 86400.0
IDLE_S = 0.3
TAKING_OVER_S = 12.0
REFUSING_S = 3.0  # a takeover that may be refused: it would wait for who is absent
SHORT_WAIT_S = 0.5
CLIENT = ClientOptions(
    add_timeout_s=2.0,
    read_timeout_s=2.0,
    speculative_read_after_s=0.3,
    connect_timeout_s=1.0,
    bookie_retry_after_s=0.2,
    bookie_retry_after_max_s=0.5,
)


# -- the processes ------------------------------------------------------------------------------------------------------


def payload(number: int, plan: Plan) -> bytes:
    """The bytes of this entry: told apart from those of any other, whole or not."""
    own = random.Random(f"{plan.seed}/{number}")
    return b"%d " % number + own.randbytes(own.randint(0, plan.entry_bytes_max))


def number_of(data: bytes, plan: Plan) -> int:
    """The number of this entry, -1 if it is not as it was appended."""
    number, _, _ = data.partition(b" ")
    return int(number) if number.isdigit() and data == payload(int(number), plan) else -1


def set_clock(plan: Plan) -> None:
    """Makes this process's time of day wrong, if it is to be."""
    if plan.has_wrong_clocks:
        wrong_by_ns = int(random.SystemRandom().uniform(-CLOCK_WRONG_BY_S, CLOCK_WRONG_BY_S) * 1e9)
        use_chance(Chance(time_ns=lambda: time.time_ns() + wrong_by_ns))


def bookie_role(plan: Plan, directory: Path, metastore: str) -> Role:
    async def serve(parent: Parent) -> None:
        options = replog.BookieOptions(storage=plan.storage, listen=("tcp:127.0.0.1:0",), read_only_below_bytes=0)
        config = replog.BookieConfig(directory=str(directory), metastore=metastore, options=options)
        set_clock(plan)
        with trio.open_signal_receiver(signal.SIGTERM) as terminated:
            async with trio.open_nursery() as nursery:
                parent.say(serves=await nursery.start(replog.serve_bookie, config))
                async for _ in terminated:
                    nursery.cancel_scope.cancel()

    def run(parent: Parent) -> None:
        try:
            trio.run(serve, parent)
        except* (StorageError, BookieError) as group:
            parent.say(stopped=repr(group.exceptions[0]))
            raise

    return run


async def _append_all(plan: Plan, log: LogWriter, parent: Parent) -> None:
    chance = random.Random(plan.seed)
    pauses = sorted({plan.lags_from if plan.lagging is not None else 0, plan.copied_at or 0} - {0})
    number = 0
    while number < plan.entries:
        if pauses and number >= pauses[0]:
            await parent.ask(paused=number)
            pauses = [each for each in pauses if each > number]
        until = min(number + chance.randint(1, plan.extend_max), plan.entries, *pauses)
        positions = await log.extend([payload(each, plan) for each in range(number, until)])
        parent.say(confirmed=number, positions=list(map(str, positions)))
        number = until
    if plan.is_idle_before:
        await trio.sleep(IDLE_S)


async def _push_beyond(plan: Plan, log: LogWriter, parent: Parent) -> None:
    for number in range(plan.entries, plan.entries + BEYOND):
        position = await log.push(payload(number, plan))
        if number % 7 == 0:
            await log.flush()
            parent.say(confirmed=number, positions=[str(position)])


def writer_role(plan: Plan, metastore: str) -> Role:
    async def write(parent: Parent) -> None:
        set_clock(plan)
        options = attrs.evolve(CLIENT, roll_entries=plan.roll_entries)
        async with replog.connect(metastore, options=options, quorum=plan.quorum) as client:
            async with client.write_log(LOG) as log:
                await _append_all(plan, log, parent)
                parent.say(done=True)
                if plan.is_writing_when_killed:
                    await _push_beyond(plan, log, parent)
                await trio.sleep_forever()

    return lambda parent: trio.run(write, parent)


def takeover_role(plan: Plan, metastore: str, within_s: float, number: int) -> Role:
    """Takes over for the so-manieth time, appends a little, and reads all."""

    async def take_over(parent: Parent) -> None:
        set_clock(plan)
        options = attrs.evolve(CLIENT, takeover_timeout_s=within_s + 1, recovery_timeout_s=within_s)
        if not plan.is_default_wait and hasattr(options, "absence_wait_s"):
            options = attrs.evolve(options, absence_wait_s=SHORT_WAIT_S)  # type: ignore[call-arg, unused-ignore]
        try:
            async with replog.connect(metastore, options=options, quorum=plan.quorum) as client:
                async with client.write_log(LOG) as log:
                    parent.say(took_over=True)
                    await log.extend([payload(number * AFTER_BEGINS + each, plan) for each in range(AFTER)])
                async with client.read_log(LOG) as reader:
                    found = [[str(record.position), number_of(record.data, plan)] async for record in reader]
            parent.say(read=found)
        except ReplogError as error:
            says_who = isinstance(error, RecoveryUndecidedError | NotEnoughBookiesError)
            parent.say(refused=f"{type(error).__name__}: {error}", says_who=says_who)

    return lambda parent: trio.run(take_over, parent)


# -- one trial -----------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """A process that had to go on has ended."""


class Trial:
    """A plan as it is carried out, in a directory of its own."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.metastore = f"lmdb:{directory / 'metadata'}?lease_s=30&poll_s=0.02&map_bytes=1MiB"
        self.confirmed: dict[int, str] = {}
        self.damage = ""
        self.not_started: set[int] = set()
        self._directory = directory
        self._chance = random.Random(plan.seed + 1)
        self._bookies: dict[int, Child] = {}
        self._children: list[Child] = []
        self._takeovers = 0

    # -- processes

    def _fork(self, name: str, role: Role) -> Child:
        self._children.append(fork(name, role, self._directory / f"{name}.output"))
        return self._children[-1]

    def _storage_of(self, number: int) -> Path:
        return self._directory / f"bookie-{number}"

    def _begin_bookie(self, number: int) -> None:
        role = bookie_role(self.plan, self._storage_of(number), self.metastore)
        self._bookies[number] = self._fork(f"bookie-{number}", role)

    def _did_start(self, number: int) -> bool:
        said = self._bookies[number].says("serves", "stopped")
        return said is not None and "serves" in said

    def _kill_all(self) -> None:
        for child in self._chance.sample(self._children, len(self._children)):
            child.kill()
        self._children.clear()

    def _leave_all(self) -> None:
        for number, bookie in self._bookies.items():
            if not bookie.is_killed and bookie.leave() != 0:
                raise Stopped(f"bookie {number} did not leave in peace: {bookie.output()}")

    # -- before

    def write(self) -> None:
        """Entries are confirmed, and all processes are killed."""
        plan = self.plan
        for number in range(plan.bookies):
            self._begin_bookie(number)
        for number in range(plan.bookies):
            if not self._did_start(number):
                raise Stopped(f"bookie {number} did not start: {self._bookies[number].output()}")
        writer = self._fork("writer", writer_role(plan, self.metastore))
        while (said := writer.says("paused", "done")) is not None and "paused" in said:
            if plan.copied_at is not None and said["paused"] >= plan.copied_at:
                self._copy()
            if plan.lagging is not None and said["paused"] >= plan.lags_from:
                self._bookies[plan.lagging].kill()
            writer.said.remove(said)
            writer.go_on()
        if said is None:
            raise Stopped(f"the writer ended: {writer.output()}")
        time.sleep(self._chance.uniform(0, 0.02) if plan.is_writing_when_killed else 0)
        if plan.is_clean_stop:
            writer.kill()
            self._leave_all()
        self._kill_all()
        for each in writer.said:
            if "confirmed" in each:
                self.confirmed.update(enumerate(each["positions"], each["confirmed"]))

    def _copy(self) -> None:
        plan = self.plan
        for number, bookie in self._bookies.items():
            place = self._storage_of(number)
            if plan.fault not in OF_ALL and number in plan.damaged and not older_copy_of(place).exists():
                with bookie.stopped():
                    shutil.copytree(place, older_copy_of(place))
            elif plan.fault in OF_ALL and (mark := place / MARK_FILE).exists() and not older_copy_of(mark).exists():
                older_copy_of(mark).write_bytes(mark.read_bytes())

    def damage_storage(self) -> None:
        """While nothing runs. Raises `NothingToDamageError`."""
        plan = self.plan
        faults = FILES if plan.storage.startswith("files") else LMDB
        numbers = range(plan.bookies) if plan.fault in OF_ALL else plan.damaged
        self.damage = "; ".join(faults[plan.fault](self._storage_of(number), self._chance) for number in numbers)

    # -- after

    def _restart(self, away: Set[int]) -> None:
        """Starts who does not run, but these."""
        plan = self.plan
        numbers = [number for number, bookie in self._bookies.items() if bookie.is_killed and number not in away]
        for number in self._chance.sample(numbers, len(numbers)):
            if not plan.waits_for_bookies:
                time.sleep(self._chance.uniform(0, STAGGER_S / plan.bookies))
            self._begin_bookie(number)
        for number in plan.damaged:
            if plan.is_damaged_restarted and number in numbers:
                self._did_start(number)
                self._bookies[number].kill()
                self._begin_bookie(number)
        for number in numbers if plan.waits_for_bookies else ():
            self._did_start(number)

    def _begin_takeover(self, within_s: float) -> Child:
        self._takeovers += 1
        return self._fork("takeover", takeover_role(self.plan, self.metastore, within_s, self._takeovers))

    def take_over(self, *, absent: int | None) -> tuple[Outcome, str]:
        """Starts all bookies but this one, takes over, and judges."""
        plan = self.plan
        late = set(plan.late) if absent == plan.absent and self._takeovers == 0 else set()
        away = set() if absent is None else {absent}
        self._restart(away | late)
        began_s = time.monotonic()
        may_be_refused = may_refuse(plan, absent=absent)
        within_s = REFUSING_S if may_be_refused else TAKING_OVER_S
        taking_over = self._begin_takeover(within_s)
        if plan.is_takeover_killed:
            time.sleep(self._chance.uniform(0, 0.3))
            taking_over.kill()
            taking_over = self._begin_takeover(within_s)
        if late:
            time.sleep(max(0.0, began_s + plan.late_s - time.monotonic()))
            self._restart(away)
        said = taking_over.says("read", "refused")
        output = taking_over.output()
        taking_over.kill()
        self.not_started = {
            number
            for number in plan.damaged
            if number != absent and (not self._did_start(number) or self._bookies[number].has_ended())
        }
        return self._judged(said, output, absent)

    def _judged(self, said: dict[str, object] | None, output: str, absent: int | None) -> tuple[Outcome, str]:
        if said is None:
            return Outcome.FAILED, f"the takeover ended: {output}"
        if "read" not in said:
            words = str(said["refused"])
            if may_refuse(self.plan, absent=absent, not_started=self.not_started):
                return (Outcome.REFUSED if said["says_who"] or "took_over" in said else Outcome.FAILED), words
            return Outcome.STUCK, words
        found: list[tuple[str, int]] = [(position, number) for position, number in said["read"]]  # type: ignore[attr-defined]
        lost = lost_entries(self.confirmed, found, self._takeovers)
        return (Outcome.LOST, lost) if lost else (Outcome.ANSWERED, "")

    def end(self) -> None:
        """Nothing is left running."""
        self._kill_all()


def run_trial(plan: Plan, directory: Path) -> Result:
    """Carries the plan out in this directory, which is empty."""
    began_s = time.monotonic()
    trial = Trial(plan, directory)
    try:
        trial.write()
        trial.damage_storage()
        outcome, what = trial.take_over(absent=plan.absent)
        if outcome is Outcome.REFUSED and plan.absent is not None:
            first = what
            outcome, what = trial.take_over(absent=None)
            if outcome not in BAD:
                outcome, what = (Outcome.WAITED if outcome is Outcome.ANSWERED else outcome), first
    except NothingToDamageError as error:
        outcome, what = Outcome.SKIPPED, str(error)
    except (Stopped, AssertionError) as error:
        outcome, what = Outcome.FAILED, f"{type(error).__name__}: {error}"
    finally:
        trial.end()
    return Result(
        seed=plan.seed,
        storage=plan.storage,
        fault=plan.fault,
        outcome=outcome,
        what=what,
        damage=trial.damage,
        did_damaged_start=not trial.not_started,
        took_s=time.monotonic() - began_s,
    )


# -- many trials ---------------------------------------------------------------------------------------------------------


def _lane(plans: list[tuple[str, Plan]], root: Path, kept: bool) -> Role:
    def run(parent: Parent) -> None:
        for name, plan in plans:
            directory = Path(tempfile.mkdtemp(prefix=f"trial-{plan.seed}-", dir=root))
            result = attrs.evolve(run_trial(plan, directory), name=name)
            if not (kept and result.outcome in BAD):
                shutil.rmtree(directory)
            parent.say(result=attrs.asdict(result))

    return run


def _load_everything() -> None:
    """Imports here what each child would import for itself: plugins, and what sockets need."""
    Registry()
    importlib.import_module("lmdb._envid")
    socket.getaddrinfo("127.0.0.1", 0)
    "localhost".encode("idna")
    gc.collect()
    gc.freeze()


def run_trials(
    plans: Mapping[str, Plan], root: Path, *, jobs: int, kept: bool, told: Callable[[Result], None]
) -> list[Result]:
    """Carries all of them out, so many at a time, and tells of each result at once."""
    _load_everything()
    lanes = [
        fork(f"lane-{lane}", _lane(list(plans.items())[lane::jobs], root, kept), root / f"lane-{lane}")
        for lane in range(jobs)
    ]
    results: list[Result] = []
    try:
        while len(results) < len(plans):
            for lane in lanes:
                for words in lane.hear_now(0.05):
                    found = words["result"]
                    results.append(Result(**{**found, "outcome": Outcome(found["outcome"])}))
                    told(results[-1])
                if (
                    lane.is_silent
                    and lane.has_ended()
                    and len(results) < len(plans)
                    and all(each.is_silent for each in lanes)
                ):
                    raise SystemExit(f"{lane.name} ended: {lane.output()}")
    finally:
        for lane in lanes:
            lane.kill()
    return results


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.failures.storage_faults", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; the next ones have the next seeds")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--fault", choices=sorted({*FILES, *LMDB}), help="only this one")
    parser.add_argument("--storage", choices=("files", "lmdb"), help="only this one")
    parser.add_argument("--cells", action="store_true", help="instead what docs/guarantees.md says, cell by cell")
    parser.add_argument("--directory", help="where the trials' files are; a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the files of bad trials")
    parser.add_argument("--verbose", action="store_true", help="print each trial")
    parser.add_argument("--json", action="store_true", help="print results as lines of JSON instead")
    return parser.parse_args(arguments)


def _tell(result: Result, plan: Plan, chosen: argparse.Namespace, is_bad: bool) -> None:
    """Prints this as the arguments wish."""
    if chosen.json:
        sys.stdout.write(json.dumps(attrs.asdict(result)) + "\n")
    elif chosen.verbose or is_bad:
        again = f"--trials 1 --seed {result.seed}" + (f" --fault {result.fault!r}" if chosen.fault else "")
        again += f" --storage {chosen.storage}" if chosen.storage else ""
        sys.stdout.write(f"{result.outcome} in {result.took_s:.1f} s: {result.what}\n")
        sys.stdout.write(f"  {result.damage}; {plan.describe()}\n")
        sys.stdout.write(f"  {result.name}\n" if chosen.cells else f"  repeat with {again}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    chosen = parse_arguments(arguments)
    if chosen.cells:
        plans = {name: cell.plan for name, cell in CELLS.items()}
    else:
        seeds = range(chosen.seed, chosen.seed + chosen.trials)
        plans = {str(seed): plan_of(seed, chosen.fault, chosen.storage) for seed in seeds}
    is_as_expected = True

    def told(result: Result) -> None:
        nonlocal is_as_expected
        expected = CELLS[result.name].expected if chosen.cells else None
        if is_bad := result.outcome is not expected if chosen.cells else result.outcome in BAD:
            is_as_expected = False
        _tell(result, plans[result.name], chosen, is_bad)

    root = Path(tempfile.mkdtemp(prefix="storage-faults-", dir=chosen.directory))
    began_s = time.monotonic()
    try:
        results = run_trials(plans, root, jobs=min(chosen.jobs, len(plans)), kept=chosen.keep, told=told)
    finally:
        if not chosen.keep:
            shutil.rmtree(root, ignore_errors=True)
    if not chosen.json:
        sys.stdout.write(f"{report(results)}\n{(time.monotonic() - began_s) / len(results):.2f} s a trial\n")
    return int(not is_as_expected)


if __name__ == "__main__":
    sys.exit(main())
