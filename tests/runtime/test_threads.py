"""A bookie's threads: the system's, unless a trio run is given others."""

import threading

import pytest
import trio

from replog.runtime.threads import Threads, current_threads, run_in_thread, use_threads


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


def test_other_threads_can_be_set_and_end_with_their_run() -> None:
    others = Threads()

    async def given() -> bool:
        use_threads(others)
        return current_threads() is others

    async def not_given() -> bool:
        return current_threads() is not others

    assert trio.run(given)
    assert trio.run(not_given)
    assert current_threads() is not others  # outside of any run


async def test_calls_run_at_once_when_the_interpreter_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")  # CPython 3.12's words

    called: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", refuse)
        patch.setattr(threading.Thread, "start", refuse)
        assert await run_in_thread(divmod, 7, 2) == (3, 1)
        thread = Threads().start("late", lambda: called.append(threading.get_ident()))
    assert not thread.is_alive()
    thread.join()
    assert called == [threading.get_ident()]


async def test_another_error_of_a_thread_is_raised() -> None:
    def fail() -> None:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        await run_in_thread(fail)


async def test_function_is_called_once_with_any_error() -> None:
    called: list[int] = []

    def fail() -> None:
        called.append(threading.get_ident())
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with pytest.raises(RuntimeError, match="interpreter shutdown"):
        await run_in_thread(fail)
    assert len(called) == 1
    assert called != [threading.get_ident()]
