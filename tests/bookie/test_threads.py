"""A bookie's threads: the system's, unless a trio run is given others."""

import threading

import trio

from replog.runtime.threads import Threads, current_threads, use_threads


async def test_they_are_real() -> None:
    threads = current_threads()
    wakes, condition = threads.wakes(), threads.condition()
    seen: list[threading.Thread] = []

    def work() -> None:
        assert wakes.get()
        with condition:
            seen.append(threading.current_thread())
            condition.notify_all()

    def wait() -> bool:
        with condition:
            return condition.wait_for(lambda: bool(seen), 60)

    thread = threads.start("a name", work)
    assert thread.is_alive()
    wakes.put(True)
    assert await threads.run(wait)
    await threads.run(thread.join, 60)
    assert not thread.is_alive()
    assert seen[0].name == "a name"
    assert seen[0].daemon
    assert seen[0] is not threading.current_thread()


def test_a_run_can_be_given_others_which_end_with_it() -> None:
    others = Threads()

    async def given() -> bool:
        use_threads(others)
        return current_threads() is others

    async def not_given() -> bool:
        return current_threads() is not others

    assert trio.run(given)
    assert trio.run(not_given)
    assert current_threads() is not others  # outside of any run
