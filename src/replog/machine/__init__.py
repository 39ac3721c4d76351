"""Replicated state machines: a class whose commands are records of a log, applied in every process in the log's order."""

from typing import TYPE_CHECKING

from replog.runtime.on_demand import on_demand

if TYPE_CHECKING:
    from replog.machine.commands import State, StateMachine, command
    from replog.machine.context import context_of
    from replog.machine.options import MachineOptions
    from replog.machine.ready import ReplicatedCounter, ReplicatedDict, ReplicatedLock, ReplicatedQueue
    from replog.machine.running import MachineStatus, RunningMachine, run_machine
    from replog.machine.sessions import CommandId
else:
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "replog.machine.commands": ["State", "StateMachine", "command"],
            "replog.machine.context": ["context_of"],
            "replog.machine.options": ["MachineOptions"],
            "replog.machine.ready": ["ReplicatedCounter", "ReplicatedDict", "ReplicatedLock", "ReplicatedQueue"],
            "replog.machine.running": ["MachineStatus", "RunningMachine", "run_machine"],
            "replog.machine.sessions": ["CommandId"],
        },
    )

__all__ = [
    "CommandId",
    "MachineOptions",
    "MachineStatus",
    "ReplicatedCounter",
    "ReplicatedDict",
    "ReplicatedLock",
    "ReplicatedQueue",
    "RunningMachine",
    "State",
    "StateMachine",
    "command",
    "run_machine",
    "context_of",
]
