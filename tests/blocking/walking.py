"""All public verbs of a kind of faces, with arguments for each: what they raise must be replog's, whatever the state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs

import replog
from replog.config.client import ClientTuning
from replog.errors import ReplogError
from replog.runtime.faces import Face


@attrs.define
class Machine(replog.StateMachine):
    @replog.command
    def wave(self) -> int:
        return 1


def length(state: Machine) -> int:
    return 1


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add_archive": ("file:/dev/null/no-directory",),
    "append": (b"entry",),
    "append_ledgers": ("log", [999]),
    "archive_log": ("log",),
    "backup": ("/dev/null/no-directory",),
    "batches_between": (0, 0),
    "compact": (),
    "commit": (),
    "commit_nowait": (),
    "create_ledger": (),
    "cursor": ("log", "billing"),
    "list": ("log",),
    "declare_lost": (["nobody"],),
    "delete": ("log", "absent"),
    "delete_ledger": (999,),
    "delete_log": ("absent",),
    "drain": ("nobody",),
    "drain_status": ("nobody",),
    "extend": ([b"entry"],),
    "lead_log": ("log",),
    "ledger_metadata": (1,),
    "log_metadata": ("log",),
    "producers": ("log",),
    "log_segments": ("log",),
    "log_summary": ("log",),
    "move": ("log", "absent"),
    "open_ledger": (1,),
    "push": (b"entry",),
    "push_nowait": (b"entry",),
    "read": (0, 0),
    "read_log": ("log",),
    "rebalance": ("nobody",),
    "raise_ledger_term": (999,),
    "recall_log": ("log",),
    "recover_ledger": (999,),
    "restore": ("/dev/null/no-directory",),
    "retain_log": ("log",),
    "compact_log": ("log",),
    "retire_producers": ("log", ["absent"]),
    "retire_transactions": ("log", ["absent"]),
    "RunningMachine.read": (length,),
    "call": (Machine.wave,),
    "call_as": ("1:1", Machine.wave),
    "run_machine": ("machine", Machine),
    "sweep": ("log",),
    "transactions": ("log",),
    "take_over_ledger": (999,),
    "trim_ledger": (999,),
    "trim_log": ("log",),
    "undrain": ("nobody",),
    "write_log": ("log",),
}
NAMED: dict[str, dict[str, Any]] = {
    "move": {"to": "1:0"},
    "retain_log": {"size_bytes": 1 << 40},
    "compact_log": {"into": "compacted"},
    "run_machine": {"listen": ()},
    "trim_ledger": {"before": 0},
    "trim_log": {"before": "1:0"},
}
LAST = ("close", "aclose", "wait_ended")  # they end what others are still to be called on, or wait for that


def verbs_of(face: Face) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The public verbs of a face, each as a call with arguments; verbs that end it come last."""
    names = [name for name, _ in inspect.getmembers_static(type(face)) if not name.startswith("_")]
    for name in sorted(names, key=lambda name: (LAST.index(name) + 1 if name in LAST else 0, name)):
        member = inspect.getattr_static(type(face), name)
        if isinstance(member, property):
            yield name, partial(getattr, face, name)
        elif inspect.isfunction(member):
            arguments = ARGUMENTS.get(f"{type(face).__name__}.{name}") or ARGUMENTS.get(name, ())
            named = NAMED.get(name, {})
            # Who adds a verb with parameters gives it arguments here.
            inspect.signature(member).bind(face, *arguments, **named)
            yield name, partial(getattr(face, name), *arguments, **named)


def is_ours(error: BaseException, *own: type[BaseException]) -> bool:
    """Whether the caller of a face may meet this: an error of replog, or one of those that are the face's own."""
    return isinstance(error, (ReplogError, *own)) and not type(error).__module__.startswith("trio")


OPTIONS = ClientTuning(add_timeout_s=2.0, read_timeout_s=2.0, takeover_timeout_s=5.0, metastore_timeout_s=5.0)
