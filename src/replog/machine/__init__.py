"""Replicated state machines: a class whose commands are records of a log, applied in every process in the log's order."""

from replog.machine.commands import State, StateMachine, command
from replog.machine.context import context_of
from replog.machine.options import MachineOptions
from replog.machine.ready import ReplicatedCounter, ReplicatedDict, ReplicatedLock, ReplicatedQueue
from replog.machine.running import MachineStatus, RunningMachine, run_machine
from replog.machine.sessions import CommandId

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
