"""How the bytes of a listener are shared: no arithmetic of one client's takes the last of them (B9)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.transports.tcp.budget import SMALL_BYTES, Budget

MIB = 1 << 20


@pytest.mark.parametrize("clients", [1, 8, 64, 1000])
def test_newcomer_finds_room_when_all_others_take_their_share(clients: int) -> None:
    """B9: each takes answers of 256 KiB, then requests, until it is refused; nothing is ever given back."""
    budget = Budget(512 * MIB)
    own = [0] * clients
    answers = [0] * clients
    is_growing = True
    while is_growing:
        is_growing = False
        for place in range(clients):
            if budget.takes_answer(answers[place], 256 << 10) and answers[place]:
                budget.charge_answers(256 << 10)
                answers[place] += 256 << 10
                own[place] += 256 << 10
                is_growing = True
            elif not answers[place] and budget.answer_share_bytes >= SMALL_BYTES:
                size_bytes = min(256 << 10, budget.answer_share_bytes)
                budget.charge_answers(size_bytes)
                answers[place] += size_bytes
                own[place] += size_bytes
                is_growing = True
            if budget.takes_requests(own[place]) and own[place] < 64 * MIB:
                budget.charge(16 << 10)
                own[place] += 16 << 10
                is_growing = True
    assert budget.used_bytes == sum(own) <= budget.total_bytes_max
    assert budget.answer_bytes == sum(answers) <= budget.answer_bytes_max
    assert budget.takes_requests(SMALL_BYTES)
    assert budget.takes_message(0, SMALL_BYTES)
    assert budget.takes_answer(0, SMALL_BYTES)
    assert budget.takes_message(0, MIB) or clients == 1000


@pytest.mark.parametrize("size_bytes", [MIB, 15 * MIB, 33 * MIB])
def test_endless_large_messages_leave_room_for_small_ones(size_bytes: int) -> None:
    budget = Budget(512 * MIB)
    for _ in range(1000):
        if budget.takes_message(100, size_bytes):
            budget.charge(size_bytes)
    assert budget.used_bytes + SMALL_BYTES < budget.total_bytes_max
    assert budget.takes_message(0, SMALL_BYTES)
    assert budget.takes_requests(SMALL_BYTES)
    assert budget.takes_answer(0, SMALL_BYTES)


def test_anything_fits_when_no_other_client_uses_anything() -> None:
    budget = Budget(2 * MIB)
    assert budget.takes_message(0, 100 * MIB)
    assert budget.takes_answer(0, 100 * MIB)
    budget.charge(10)
    assert not budget.takes_message(0, 100 * MIB)
    assert budget.takes_message(10, 100 * MIB)
    budget.charge_answers(10)
    assert not budget.takes_answer(0, 100 * MIB)


async def test_gates_wake_only_waiters_with_free_bytes() -> None:
    budget, woken = Budget(100), list[str]()
    budget.charge(100)
    for name, needed_bytes in (("much", 60), ("little", 20)):
        budget.for_requests.wait(lambda name=name: woken.append(name), needed_bytes)  # type: ignore[misc]
    assert budget.is_scarce
    budget.charge(-10)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert woken == []
    budget.charge(-20)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert woken == ["little"]
    budget.charge(-70)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert woken == ["little", "much"]
    assert not budget.is_scarce


async def test_answers_wait_for_answers_and_requests_for_everything() -> None:
    budget, woken = Budget(160), list[str]()
    budget.charge_answers(80)
    budget.for_answers.wait(lambda: woken.append("answer"), 40)
    budget.charge(10)
    budget.charge(-10)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert woken == []
    budget.charge_answers(-40)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert woken == ["answer"]


async def test_waiter_is_not_woken_after_it_left_a_gate() -> None:
    budget, woken = Budget(100), list[str]()
    budget.charge(100)

    def wake() -> None:
        woken.append("woken")

    budget.for_requests.wait(wake, 50)
    budget.for_requests.leave(wake)
    budget.for_requests.leave(wake)
    budget.charge(-100)
    await trio.lowlevel.checkpoint()
    assert not budget.is_scarce
    assert woken == []
