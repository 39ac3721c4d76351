"""The life of an open storage: what each state refuses, and that no failure is taken back."""

import os

import pytest
import trio

from replog.backends.lifecycle import Lifecycle, State
from replog.errors import LocalProtocolError, StorageFailedError


def serving() -> Lifecycle:
    lifecycle = Lifecycle("/st")
    lifecycle.opened()
    return lifecycle


def test_storage_refuses_with_first_failure_when_several_failed() -> None:
    """B1"""
    lifecycle = serving()
    first = OSError("the disk is gone")
    for error in (first, RuntimeError("and this")):
        lifecycle.failed(error)
    assert (lifecycle.state, lifecycle.is_serving) == (State.FAILED, False)
    refusal = lifecycle.refusal()
    assert isinstance(refusal, StorageFailedError)
    assert "the disk is gone" in str(refusal)
    assert refusal.__cause__ is first


def test_storage_refuses_as_closed_when_close_began() -> None:
    lifecycle = serving()
    lifecycle.close_began()
    lifecycle.close_began()
    lifecycle.failed(OSError("a call under way"))
    states = [lifecycle.state]
    assert lifecycle.failure is not None, "`close` must not vouch for what failed meanwhile"
    lifecycle.released()
    assert [*states, lifecycle.state] == [State.CLOSING, State.CLOSED]
    assert isinstance(lifecycle.refusal(), trio.ClosedResourceError)


def test_storage_is_closed_when_opening_was_refused() -> None:
    lifecycle = Lifecycle("/st")
    lifecycle.refused()
    assert lifecycle.state is State.CLOSED


@pytest.mark.parametrize("event", ["opened", "refused", "released"])
def test_assertion_fails_when_table_has_no_such_event(event: str) -> None:
    with pytest.raises(AssertionError, match="SERVING"):
        getattr(serving(), event)()


def test_fork_refuses_and_parent_goes_on() -> None:
    lifecycle, closed = serving(), Lifecycle("/closed")
    closed.refused()
    child = os.fork()
    if not child:
        is_right = lifecycle.state is State.FORKED and isinstance(lifecycle.refusal(), LocalProtocolError)
        os._exit(0 if is_right and closed.state is State.CLOSED else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lifecycle.is_serving
