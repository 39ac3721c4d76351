"""What is told of the machine is there on any Linux, and names no place on it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.machine import describe


def test_a_machine_is_described(tmp_path: Path) -> None:
    found = describe(tmp_path)

    assert found.processors >= 1
    assert found.memory_bytes > 1 << 28
    assert found.kernel.startswith("Linux ")
    assert found.python.startswith("CPython 3.")
    assert all((found.processor, found.file_system, found.disk, found.replog))
    assert not [each for each in (found.disk, found.replog) if "/" in each]
