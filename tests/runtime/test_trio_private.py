"""What replog needs of trio's private parts, shown with the release that is installed."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio._core import _run

import replog
from replog.errors import LocalProtocolError
from replog.runtime.trio_private import WAIT, in_order_of_start, open_shields, seeded_order, skip_step

# Each with the tests of this file, of `SharedEvent` and of simulated schedules:
# `pip install --no-deps --target DIR trio==RELEASE`, and DIR in PYTHONPATH.
RELEASES = ("0.29", "0.30", "0.31", "0.32", "0.33", "0.34", "0.35")


def test_the_installed_release_is_one_that_was_tested() -> None:
    assert trio.__version__.rpartition(".")[0] in RELEASES, "run the fast lane with it, then add it"


def test_no_other_module_names_private_parts_of_trio() -> None:
    private = re.compile(r"trio\._|\b_next_send|_cancel_status|_ALLOW_DETERMINISTIC")
    source = Path(replog.__file__).parent
    found = {str(each.relative_to(source)) for each in source.rglob("*.py") if private.search(each.read_text("utf-8"))}
    assert found == {"runtime/trio_private.py"}


async def test_the_message_of_a_wait_parks_a_task() -> None:
    """It is the one that `wait_task_rescheduled` yields, has no other state, and is let go when the task is cancelled."""

    @trio.lowlevel.enable_ki_protection
    def wait(raise_cancel: object) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED

    coroutine = trio.lowlevel.wait_task_rescheduled(wait)  # noqa: ASYNC105 - it is driven here
    message = coroutine.send(None)
    coroutine.close()
    assert type(message) is type(WAIT)
    assert WAIT.abort_func(None) is trio.lowlevel.Abort.SUCCEEDED


def test_trio_still_has_its_switch() -> None:
    assert isinstance(_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)  # Hypothesis sets it, too
    assert isinstance(_run._r, random.Random)


def test_nothing_of_a_seeded_order_stays() -> None:
    state, switch = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING
    with seeded_order(3):
        assert getattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING")  # noqa: B009 - as mypy sees it, it never changes
    assert switch is _run._ALLOW_DETERMINISTIC_SCHEDULING
    assert _run._r.getstate() == state


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_it_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_run, name)
    with pytest.raises(LocalProtocolError, match="no longer has"), seeded_order(1):
        pass


async def test_a_skipped_step_is_taken_when_it_is_given_back() -> None:
    steps: list[int] = []
    held: list[Any] = []

    class Skipper(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task.name == "held" and len(steps) == 1 and not held:
                held.append(skip_step(task))

    async def step() -> None:
        for number in range(3):
            steps.append(number)
            await trio.lowlevel.checkpoint()

    skipper = Skipper()
    trio.lowlevel.add_instrument(skipper)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(step, name="held")
            await trio.testing.wait_all_tasks_blocked()
            assert steps == [0]
            (task,) = in_order_of_start(nursery.child_tasks)
            trio.lowlevel.reschedule(task, held[0])
        assert steps == [0, 1, 2]
    finally:
        trio.lowlevel.remove_instrument(skipper)


async def test_tasks_come_in_the_order_of_their_start() -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(trio.sleep_forever, name=str(number))
        await trio.testing.wait_all_tasks_blocked()
        assert [task.name for task in in_order_of_start(nursery.child_tasks)] == [str(number) for number in range(20)]
        nursery.cancel_scope.cancel()


async def test_opened_shields_let_a_cancellation_through(autojump_clock: trio.testing.MockClock) -> None:
    ended = trio.Event()

    async def clean_up() -> None:
        with trio.CancelScope(shield=True):
            try:
                await trio.sleep(1000)
            finally:
                ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(clean_up)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        (task,) = nursery.child_tasks
        open_shields(task)
    assert ended.is_set()
