"""What `import replog` offers is what docs/reference/python documents, and it costs no optional dependency."""

import importlib
import inspect
import subprocess
import sys

import pytest
import trio.testing

import replog
from replog import aio, api, blocking, errors, results
from replog.aio.faces import FACES as ASYNCIO
from replog.blocking.faces import FACES as THREADS
from replog.runtime.faces import Face, Faces
from tests.kit import cluster, own_faces
from tests.reference import documented, documented_attributes

NAMES_MAX = 45
NAMES: dict[str, list[str]] = {
    each.__name__: vars(each)["__all__"] for each in (replog, aio, blocking, errors, results)
}


def test_replog_exports_few_names() -> None:
    assert len(replog.__all__) <= NAMES_MAX


def test_replog_exports_five_errors() -> None:
    exported = [getattr(replog, name) for name in replog.__all__]
    named = {each.__name__ for each in exported if isinstance(each, type) and issubclass(each, BaseException)}
    assert named == {"ReplogError", "FencedError", "TransientError", "ConfigError", "ClosedError"}


def test_every_error_of_replog_is_in_replog_errors() -> None:
    assert errors.__all__
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), replog.ReplogError), name


def test_every_export_has_one_page() -> None:
    pages = documented()
    exports = [f"{module}.{name}" for module, names in NAMES.items() for name in names]
    assert {name: pages.get(name) for name in exports if len(pages.get(name, ())) != 1} == {}


def test_pages_document_only_exports() -> None:
    """But for the groups of a client, and for parts of results."""
    groups = {"replog.api.Admin", "replog.api.Cursors", "replog.api.Jobs"}
    others = {name for name, pages in documented().items() if pages == {"results"} and name not in results.__all__}
    for name in documented().keys() - groups - others:
        module, _, last = name.rpartition(".")
        assert last in importlib.import_module(module).__all__, name


def test_faces_export_the_same_names() -> None:
    """What a program calls is the same without trio; options, values and errors are those of `replog`."""
    assert sorted(NAMES["replog.aio"]) == sorted(NAMES["replog.blocking"])
    assert set(NAMES["replog.aio"]) <= set(NAMES["replog"])


def test_no_name_is_exported_twice() -> None:
    for module, names in NAMES.items():
        assert len(set(names)) == len(names), module


def test_exported_names_exist() -> None:
    for module, names in NAMES.items():
        assert [name for name in names if getattr(sys.modules[module], name, None) is None] == [], module


def test_importing_replog_imports_no_optional_dependency() -> None:
    script = "import sys, replog; print(*sys.modules.keys() & {'kazoo', 'pyarrow', 'pyspark'})"
    done = subprocess.run([sys.executable, "-c", script], timeout=60, text=True, capture_output=True, check=True)
    assert done.stdout.split() == []


# -- the verbs of a client ----------------------------------------------------------------------------------------------

VERBS_MAX = 22
GROUPS = {
    "admin": {
        *("audit", "backup", "bookies", "declare_lost", "drain", "drain_status", "known_bookies", "pause_repairs"),
        *(
            "add_archive",
            "adopt_archives",
            "archive_log",
            "archives",
            "audit_archives",
            "collect_archives",
            "recall_log",
        ),
        *("raise_ledger_ids", "raise_ledger_term", "rebalance", "repair", "restore", "resume_repairs", "undrain"),
    },
    "jobs": {"append_ledgers", "producers", "retire_producers", "retire_transactions", "sweep", "transactions"},
    "cursors": {"delete", "list", "move"},
}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_a_client_has_few_verbs_and_three_groups() -> None:
    names = public(replog.Client)
    assert set(GROUPS) <= names
    assert len(names - set(GROUPS)) <= VERBS_MAX
    for group, verbs in GROUPS.items():
        assert public(inspect.get_annotations(getattr(replog.Client, group).fget, eval_str=True)["return"]) == verbs


def faces_of(kind: Faces) -> dict[type, type[Face]]:
    """All faces of a kind, by the classes that they are of."""
    for home in kind._homes.values():
        importlib.import_module(home)
    return own_faces(kind)


def test_faces_are_found_by_the_modules_of_their_classes() -> None:
    """A face that is not would be imported too late: the first object of its class would come out as it is."""
    for kind in (ASYNCIO, THREADS):
        homes = {source.__module__: made.__module__ for source, made in faces_of(kind).items()}
        assert homes == kind._homes


def test_faces_have_the_shape_of_trio_classes() -> None:
    """But for leaving, which those without a block need."""
    for kind in (ASYNCIO, THREADS):
        for source, made in faces_of(kind).items():
            leaving = {"aclose", "close", "timeout_s"}
            assert public(source) - leaving == public(made) - leaving, made


def test_both_faces_make_the_same_classes() -> None:
    """But for readers of a range, which are plain iterators for threads."""
    given_by_asyncio = {each.__name__ for each in faces_of(ASYNCIO)} - {"LedgerRangeReader"}
    assert given_by_asyncio == {each.__name__ for each in faces_of(THREADS)}


# -- members of classes ---------------------------------------------------------------------------------------------------

LOOKED_AT = (
    *(replog.Client, api.Admin, api.Jobs, api.Cursors),
    *(replog.LedgerWriter, replog.LogWriter, replog.LedgerReader, replog.LogReader),
    *(replog.Cursor, replog.RunningMachine, results.RemoteBookie),
)


@pytest.mark.parametrize("cls", LOOKED_AT, ids=lambda cls: cls.__name__)
def test_public_members_are_documented(cls: type) -> None:
    """A public member is on its class's page by its docstring; what is not for callers begins with an underscore."""
    assert {name for name in public(cls) if not getattr(cls, name).__doc__} == set()


def is_verb(member: object) -> bool:
    """True for what callers await or enter."""
    function = inspect.unwrap(member) if callable(member) else None
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


STATES_ERRORS_ONCE = {"RemoteBookie"}  # all its calls raise the same, which the class says


@pytest.mark.parametrize(
    "cls", [cls for cls in LOOKED_AT if cls.__name__ not in STATES_ERRORS_ONCE], ids=lambda cls: cls.__name__
)
def test_verbs_state_their_errors_and_then_the_state_after_cancellation(cls: type) -> None:
    wrong = []
    for name in sorted(public(cls) - {"aclose"}):
        words = (getattr(cls, name).__doc__ or "").lower()
        if is_verb(getattr(cls, name)):
            raises, cancelled = words.find("raises"), words.find("cancelled")
            if raises < 0 or 0 <= cancelled < raises:
                wrong.append(name)
    assert wrong == []


async def test_attributes_of_writers_and_readers_are_documented(autojump_clock: trio.testing.MockClock) -> None:
    """What `__init__` sets, too."""
    async with cluster(3) as world, world.client() as client:
        async with client.create_ledger() as ledger, client.write_log("log") as log:
            opening = client.open_ledger(ledger.ledger_id), client.read_log("log"), client.cursor("log", "mine")
            async with opening[0] as of_ledger, opening[1] as of_log, opening[2] as cursor:
                found = {
                    (type(each).__name__, name)
                    for each in (client, ledger, log, of_ledger, of_log, cursor)
                    for name in dir(each)
                    if name not in public(type(each)) | documented_attributes(type(each)) and not name.startswith("_")
                }
    assert found == set()
