"""The shells of client, log and bookie, run from a seed: real code on virtual time, in a world that does its worst."""

from replog.testing.simulation.shells.running import ShellResult, simulate_shells

__all__ = ["ShellResult", "simulate_shells"]
