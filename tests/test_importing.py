"""What imports cost: `import replog` changes nothing in the program that imports it, and commands import what they use.

Memory is kept only when a program asks for it.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.lanes.seeds import some

# What a program may have set up before it imports a library, as JSON.
STATE = textwrap.dedent("""
    import faulthandler, gc, json, locale, logging, os, signal, socket, sys, threading, time, tracemalloc, warnings

    def state():
        loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
        return {
            "threads": [each.name for each in threading.enumerate()],
            "tasks": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1,
            "signals": {str(each): str(signal.getsignal(each)) for each in sorted(signal.valid_signals())},
            "wakeup": signal.set_wakeup_fd(-1),
            "logging": [
                (each.name, each.level, len(each.handlers), each.disabled)
                for each in loggers
                if isinstance(each, logging.Logger) and (each.handlers or each.level or each.disabled)
            ],
            "logging off": logging.root.manager.disable,
            "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), len(gc.callbacks)],
            "hooks": [str(sys.excepthook), str(sys.unraisablehook), str(threading.excepthook), str(sys.displayhook)],
            "tracing": [sys.gettrace() is None, sys.getprofile() is None, sys.getswitchinterval()],
            "limits": [sys.getrecursionlimit(), socket.getdefaulttimeout(), locale.setlocale(locale.LC_ALL)],
            "children": os.path.isdir("/proc/self/task") and open("/proc/thread-self/children").read(),
            "faults": faulthandler.is_enabled(),
            "environment": dict(os.environ),
            "directory": os.getcwd(),
        }
""")

# Bytes of blocks that glibc has mapped on their own: -1 where there is no such count.
MAPPED = textwrap.dedent("""
    import ctypes

    class Counts(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks".split()]
        _fields_ += [(name, ctypes.c_size_t) for name in "uordblks fordblks keepcost".split()]

    def mapped_bytes():
        counts = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if counts is None:
            return -1
        counts.restype = Counts
        return counts().hblkhd
""")


def answer_of(script: str) -> dict[str, object]:
    """The JSON object that this script prints, in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_import_changes_nothing_in_its_host() -> None:
    script = f"{STATE}\nbefore = state()\nimport replog\nprint(json.dumps({{'before': before, 'after': state()}}))"
    answer = answer_of(script)
    assert answer["after"] == answer["before"]


def test_import_allocates_no_large_block() -> None:
    script = (
        "import json, tracemalloc\ntracemalloc.start()\nimport replog\nkept, peak = tracemalloc.get_traced_memory()\n"
    )
    answer = answer_of(f"{script}print(json.dumps({{'kept': kept, 'peak': peak}}))")
    assert int(str(answer["peak"])) - int(str(answer["kept"])) < 4 << 20


@pytest.mark.parametrize(("asks", "is_mapped"), [("", True), ("replog.runtime.platform.keep_freed_memory()", False)])
def test_large_blocks_are_mapped_unless_a_program_asks(asks: str, is_mapped: bool) -> None:
    steps = f"import json, replog\n{asks}\nbefore = mapped_bytes()\nblock = bytes(8 << 20)\nafter = mapped_bytes()"
    answer = answer_of(f"{MAPPED}\n{steps}\nprint(json.dumps({{'before': before, 'after': after}}))")
    if answer["before"] == -1:
        pytest.skip("this C library does not count what it maps")
    assert (int(str(answer["after"])) - int(str(answer["before"])) >= 8 << 20) is is_mapped


@pytest.mark.parametrize(
    "command",
    some(
        [
            "bookie --show-config --json --metastore memory: --data nowhere --set bookie.repair=off",
            "log read none --dir .",
            "log list --json --dir .",
        ],
        few=2,
    ),
)
def test_command_starts_without_imports_of_other_commands(command: str, tmp_path: Path) -> None:
    """Hundreds of milliseconds of each start, and of each bookie of a cluster on one machine."""
    script = (
        "import atexit, json, os, sys\n"
        "unused = {'pydantic', 'pygments', 'rich', 'structlog', 'tomllib', 'replog.backends.files.inspecting'}\n"
        "atexit.register(lambda: os.write(2, json.dumps({'found': sorted(unused & set(sys.modules))}).encode()))\n"
        f"sys.argv = ['replog', *{command.split()!r}]\n"
        "from replog.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.endswith('{"found": []}'), done.stderr
