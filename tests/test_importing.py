"""What imports cost: `import replog` changes nothing in the program that imports it; programs and commands import what they use.

Memory is kept only when a program asks for it.
"""

import ast
import importlib
import inspect
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.imports import loaded_after, rooms_of
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


@pytest.mark.parametrize(
    "imports", ["import replog", "from replog import *", "from replog.aio import *; from replog.blocking import *"]
)
def test_import_changes_nothing_in_its_host(imports: str) -> None:
    script = f"{STATE}\nbefore = state()\n{imports}\nprint(json.dumps({{'before': before, 'after': state()}}))"
    answer = answer_of(script)
    assert answer["after"] == answer["before"]


def test_import_allocates_no_large_block() -> None:
    script = "import json, tracemalloc\ntracemalloc.start()\nfrom replog import *\nkept, peak = tracemalloc.get_traced_memory()\n"
    answer = answer_of(f"{script}print(json.dumps({{'kept': kept, 'peak': peak}}))")
    assert int(str(answer["peak"])) - int(str(answer["kept"])) < 4 << 20


@pytest.mark.parametrize(("asks", "is_mapped"), [("", True), ("replog.runtime.platform.keep_freed_memory()", False)])
def test_large_blocks_are_mapped_unless_a_program_asks(asks: str, is_mapped: bool) -> None:
    imports = "import json, replog.runtime.platform\nfrom replog import *"
    steps = f"{imports}\n{asks}\nbefore = mapped_bytes()\nblock = bytes(8 << 20)\nafter = mapped_bytes()"
    answer = answer_of(f"{MAPPED}\n{steps}\nprint(json.dumps({{'before': before, 'after': after}}))")
    if answer["before"] == -1:
        pytest.skip("this C library does not count what it maps")
    assert (int(str(answer["after"])) - int(str(answer["before"])) >= 8 << 20) is is_mapped


# -- what a program loads ---------------------------------------------------------------------------------------------------

# Rooms that no client needs, and those that serve bookies.
BESIDE = {"backup", "cli", "demo", "machine", "metrics", "repair", "spark", "testing"}
PLUGINS = {"authentication", "backends", "metastores", "placements", "transports"}
BOOKIES = {"bookie"}
FACES = {"aio", "blocking"}


@pytest.mark.parametrize(
    ("imports", "modules_max", "unused"),
    [
        (
            "import replog, replog.aio, replog.blocking, replog.results",
            10,
            BESIDE | PLUGINS | BOOKIES | {"client", "log"},
        ),
        ("from replog import ReplogError, FencedError", 20, BESIDE | PLUGINS | BOOKIES | FACES | {"client", "log"}),
        ("from replog import connect", 180, BESIDE | PLUGINS | BOOKIES | FACES),
        ("from replog.aio import connect", 190, BESIDE | PLUGINS | BOOKIES | {"blocking"}),
        ("from replog.blocking import connect", 190, BESIDE | PLUGINS | BOOKIES | {"aio"}),
        ("from replog import embed", 220, BESIDE | PLUGINS | FACES),
    ],
)
def test_program_loads_only_rooms_that_it_uses(imports: str, modules_max: int, unused: set[str]) -> None:
    """A module costs half a millisecond of each start, on an idle machine."""
    loaded = loaded_after(imports)
    assert rooms_of(loaded) & unused == set()
    assert len(loaded) <= modules_max


# Prints the modules that the block imports within its contexts, for each face.
USES = textwrap.dedent("""
    import asyncio, contextlib, json, sys, trio
    import replog, replog.aio, replog.blocking

    async def use(client):
        async with contextlib.AsyncExitStack() as stack:
            log = await stack.enter_async_context(client.write_log("log"))
            ledger = await stack.enter_async_context(client.create_ledger())
            before = set(sys.modules)
            await log.append(b"one")
            await log.extend([b"two"])
            log.push_nowait(b"three")
            await log.flush()
            await ledger.append(b"one")
            late = set(sys.modules) - before
            reader = await stack.enter_async_context(client.read_log("log"))
            cursor = await stack.enter_async_context(client.cursor("log", "mine"))
            before = set(sys.modules)
            await reader.receive()
            await cursor.receive()
            await cursor.commit()
            return late | (set(sys.modules) - before)

    async def use_trio(path):
        async with replog.embed(path) as client:
            return await use(client)

    async def use_asyncio(path):
        async with replog.aio.embed(path) as client:
            return await use(client)

    def use_threads(path):
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(replog.blocking.embed(path))
            log = stack.enter_context(client.write_log("log"))
            before = set(sys.modules)
            log.append(b"one")
            log.extend([b"two"])
            late = set(sys.modules) - before
            reader = stack.enter_context(client.read_log("log"))
            before = set(sys.modules)
            reader.receive()
            return late | (set(sys.modules) - before)
""")


@pytest.mark.parametrize("call", ["trio.run(use_trio, path)", "asyncio.run(use_asyncio(path))", "use_threads(path)"])
def test_appends_and_reads_import_nothing(call: str, tmp_path: Path) -> None:
    """An import takes the event loop's time: all that they need is loaded once their contexts are entered."""
    script = f"{USES}\npath = {str(tmp_path / 'wal')!r}\nprint(json.dumps({{'late': sorted({call})}}))"
    assert answer_of(script) == {"late": []}


@pytest.mark.parametrize("name", ["replog", "replog.api", "replog.machine", "replog.results"])
def test_types_of_names_on_demand_are_their_values(name: str) -> None:
    """What a type checker reads is what a program gets, and `dir` and `*` have it."""
    package = importlib.import_module(name)
    typed: dict[str, object] = {}
    for node in ast.walk(ast.parse(inspect.getsource(package))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), name, "exec"), typed)
    del typed["__builtins__"]
    assert {each: getattr(package, each) for each in typed} == typed
    assert set(package.__all__) <= set(typed)
    assert set(typed) <= set(dir(package))


def test_unknown_names_on_demand_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match=r"^module 'replog' has no attribute 'conect'$"):
        _ = importlib.import_module("replog").conect


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


def test_help_imports_no_command() -> None:
    script = (
        "import atexit, json, os, sys\n"
        "atexit.register(lambda: os.write(2, json.dumps([each for each in sys.modules if 'replog' in each]).encode()))\n"
        "sys.argv = ['replog', '--help']\n"
        "from replog.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stderr)
    assert rooms_of(set(loaded)) <= {"cli", "errors", "runtime"}
    assert len(loaded) <= 20
