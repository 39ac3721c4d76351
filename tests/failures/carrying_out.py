"""Carries out one plan: writes, kills, damages, starts again, takes over, and judges. See `storage_trials`."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Set
from pathlib import Path

from tests.failures.damages import FILES, LMDB, MARK_FILE, OF_ALL, OF_DISKS, NothingToDamageError, older_copy_of
from tests.failures.forks import STARTING_S, Child, Role, fork
from tests.failures.options import metastore_beside
from tests.failures.storage_actors import bookie_role, operator_role, takeover_role, writer_role
from tests.failures.storage_trials import BAD, Outcome, Plan, Result, lost_entries, may_refuse

STAGGER_S = 0.2
TAKING_OVER_S = 40.0  # on a busy machine
REFUSING_S = 3.0  # a takeover that may be refused: it would wait for who is absent
DEPOSED_S = 2.0  # how long a writer that was fenced tries to go on


class Stopped(Exception):
    """A process that had to go on has ended."""


class Trial:
    """A plan as it is carried out, in a directory of its own."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.metastore = metastore_beside(directory)
        self.confirmed: dict[int, str] = {}
        self.damage = ""
        self.not_started: set[int] = set()
        self._directory = directory
        self._chance = random.Random(plan.seed + 1)
        self._bookies: dict[int, Child] = {}
        self._children: list[Child] = []
        self.is_accepted = False
        self._declared: set[int] = set()
        self._ids: dict[int, str] = {}
        self._takeovers = 0
        self._did_come_late = False

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
        """Entries are confirmed, all processes are killed, and the damage is done. Raises `NothingToDamageError`, `Stopped`."""
        plan = self.plan
        for number in range(plan.bookies):
            self._begin_bookie(number)
        for number in range(plan.bookies):
            if not self._did_start(number):
                raise Stopped(f"bookie {number} did not start: {self._bookies[number].output()}")
            self._ids[number] = self._bookies[number].said[0]["serves"]
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
        if plan.is_fence_lost:
            self._depose(writer)
            return
        time.sleep(self._chance.uniform(0, 0.02) if plan.is_writing_when_killed else 0)
        if plan.is_clean_stop:
            writer.kill()
            self._leave_all()
        self._kill_all()
        self._remember_confirmed(writer)
        self._damage()

    def _remember_confirmed(self, writer: Child) -> None:
        for each in writer.said:
            if "confirmed" in each:
                self.confirmed.update(enumerate(each["positions"], each["confirmed"]))

    def _depose(self, writer: Child) -> None:
        """The writer sleeps, and the lagging bookie is dead, while the log is taken over. Then the damaged bookie loses the
        fence, the lagging one never had it, and who has it stays away: now the writer wakes."""
        plan = self.plan
        with writer.stopped():
            if plan.lagging is not None:
                self._bookies[plan.lagging].kill()
            taking_over = self._begin_takeover(TAKING_OVER_S)
            said = taking_over.says("read", "refused")
            if said is None or "read" not in said:
                raise Stopped(f"the first takeover failed: {said} {taking_over.output()}")
            for child in (taking_over, *self._bookies.values()):
                child.kill()
            self._damage()
            self._restart({*self._bookies} - {plan.lagging, *plan.damaged})
        writer.go_on()
        with contextlib.suppress(AssertionError):
            writer.says("ended", within_s=DEPOSED_S)
        writer.kill()
        self._remember_confirmed(writer)

    def _copy(self) -> None:
        plan = self.plan
        for number, bookie in self._bookies.items():
            place = self._storage_of(number)
            if plan.fault not in OF_ALL and number in plan.damaged and not older_copy_of(place).exists():
                with bookie.stopped():
                    shutil.copytree(place, older_copy_of(place))
            elif plan.fault in OF_ALL and (mark := place / MARK_FILE).exists() and not older_copy_of(mark).exists():
                older_copy_of(mark).write_bytes(mark.read_bytes())

    def _damage(self) -> None:
        plan = self.plan
        faults = FILES if plan.storage.startswith("files") else LMDB
        done: list[str] = []
        for number in range(plan.bookies) if plan.fault in OF_ALL else plan.damaged:
            try:
                done.append(faults[plan.fault](self._storage_of(number), self._chance))
            except NothingToDamageError:
                if plan.fault not in OF_ALL:
                    raise
        self.damage = "; ".join(done)

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
        late = set(plan.late) if absent == plan.absent and not self._did_come_late else set()
        self._did_come_late = True
        away = set() if absent is None else {absent}
        self._restart(away | late)
        began_s = time.monotonic()
        within_s = REFUSING_S if self._may_refuse(away) else TAKING_OVER_S
        taking_over = self._begin_takeover(within_s)
        if plan.is_takeover_killed:
            time.sleep(self._chance.uniform(0, 0.3))
            taking_over.kill()
            taking_over = self._begin_takeover(within_s)
        if late:
            time.sleep(max(0.0, began_s + plan.late_s - time.monotonic()))
            self._restart(away)
        said = taking_over.says("read", "refused", within_s=3 * TAKING_OVER_S + STARTING_S)
        output = taking_over.output()
        taking_over.kill()
        self.not_started = {
            number
            for number in plan.damaged
            if number != absent and (not self._did_start(number) or self._bookies[number].has_ended())
        }
        return self._judged(said, output, away)

    def _may_refuse(self, away: Set[int]) -> bool:
        return may_refuse(
            self.plan, away=away | self.not_started, declared=self._declared, is_accepted=self.is_accepted
        )

    def _judged(self, said: dict[str, object] | None, output: str, away: Set[int]) -> tuple[Outcome, str]:
        if said is None:
            return Outcome.FAILED, f"the takeover ended: {output}"
        if "read" not in said:
            words = str(said["refused"])
            is_right = self._may_refuse(away)
            outcome = (
                Outcome.REFUSED if is_right and said["says_who"] else Outcome.STUCK if not is_right else Outcome.FAILED
            )
            return outcome, words
        found: list[tuple[str, int]] = [(position, number) for position, number in said["read"]]  # type: ignore[attr-defined]
        lost = lost_entries(self.confirmed, found, self._takeovers)
        return (Outcome.LOST, lost) if lost else (Outcome.ANSWERED, "")

    def declare_lost(self, *, accept: bool = False) -> list[str]:
        """As the operator does, who puts empty ones in their place; returns which entries are said to be at risk. Who accepts
        the loss declares those lost, too, whose storage is gone or does not open. Raises `Stopped`."""
        plan = self.plan
        declared = {*plan.declared, *(self.not_started if accept else ())}
        if accept and plan.fault in OF_DISKS:
            declared |= {*plan.damaged}
        role = operator_role(self.plan, self.metastore, [self._ids[number] for number in declared], accept=accept)
        operator = self._fork("operator", role)
        said = operator.says("declared")
        if said is None:
            raise Stopped(f"the operator failed: {operator.output()}")
        for number in declared:
            if self._bookies[number].has_ended():
                self._bookies[number].kill()
                shutil.rmtree(self._storage_of(number))
        self._declared, self.is_accepted = declared, said["accepted"]
        at_risk: list[str] = said["declared"]
        return at_risk

    def end(self) -> None:
        """Nothing is left running."""
        self._kill_all()


def _after_declaring(trial: Trial, refused: str) -> tuple[Outcome, str]:
    """What comes of a second takeover, which has to be answered."""
    quorum, declared = trial.plan.quorum, trial.plan.declared
    at_risk = trial.declare_lost()
    if bool(at_risk) != (len(declared) >= quorum.ack):
        return Outcome.FAILED, f"said to be at risk: {at_risk}"
    outcome, what = trial.take_over(absent=None)
    if outcome is Outcome.REFUSED:  # the damaged bookie knows that it lost something, too, or does not start
        trial.declare_lost(accept=True)
        outcome, what = trial.take_over(absent=None)
    return (Outcome.DECLARED, refused) if outcome is Outcome.ANSWERED else (outcome, what)


def run_trial(plan: Plan, directory: Path) -> Result:
    """Carries the plan out in this directory, which is empty."""
    began_s = time.monotonic()
    trial = Trial(plan, directory)
    try:
        trial.write()
        outcome, what = trial.take_over(absent=plan.absent)
        if outcome is Outcome.REFUSED and plan.declared:
            outcome, what = _after_declaring(trial, what)
        elif outcome is Outcome.REFUSED and (plan.absent is not None or plan.late):
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
