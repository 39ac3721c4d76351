"""Where it was measured, as far as a reader needs it to compare with a machine of theirs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.results import Machine

_ROOT = Path(__file__).parents[2]


def describe(directory: Path) -> Machine:
    """This one, with the disk below this directory."""
    device, file_system = _mounted(directory.resolve())
    return Machine(
        processor=_value(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        file_system=file_system,
        disk=_model(device),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        replog=_commit(),
    )


def _value(path: Path, name: str) -> str:
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _mounted(directory: Path) -> tuple[str, str]:
    """Device and type of the file system that this directory is on: that of the longest place."""
    found = ("", "", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, place, file_system = (word.replace("\\040", " ") for word in line.split()[:3])
        if directory.is_relative_to(place) and len(place) >= len(found[0]):
            found = (place, device, file_system)
    return found[1], found[2]


def _model(device: str) -> str:
    """What the kernel calls the disk that this is, or is a part of; without what names one machine alone."""
    name = Path(device).resolve().name
    for block in (Path("/sys/class/block") / name, (Path("/sys/class/block") / name).resolve().parent):
        model = block / "device" / "model"
        if model.is_file():
            return model.read_text().strip()
    return "a virtual disk" if name.startswith(("vd", "xvd")) else "a disk without a name"


def _commit() -> str:
    """Of the work tree; with a plus sign where something was not committed."""
    if not shutil.which("git"):
        return "unknown"
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], cwd=_ROOT, capture_output=True, text=True
    )
    return described.stdout.strip() or "unknown"
