"""The protocol as machines without I/O, clock, chance or logging.

A machine has one method for each thing that can happen, and leaves effects for its shell to do, in order. The simulator
(`tests.simulator`) and the real shells (`replog.client`, `replog.log`, `replog.bookie`) drive the same ones.
"""
