"""The shells of client, log and bookie, run from a seed: real code on virtual time, in a world that does its worst."""

from tests.simulator.shells.running import ShellResult, simulate_shells

__all__ = ["ShellResult", "simulate_shells"]
