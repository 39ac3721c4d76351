"""`replog plugins`, and other commands, where plugins are installed, some of which are wrong."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import attrs
import pytest

from replog import cli
from replog.registry import importing

GOOD = """
from replog.hookspecs import Backend, hookimpl
from replog.abc import Metastore

class Store(Metastore):
    async def create(self, key, value): ...
    async def get(self, key): ...
    async def put(self, key, value, expected): ...
    async def delete(self, key, expected=None): ...
    async def children(self, key): ...

def open_it(rest, options):
    return Store()

@hookimpl
def replog_metastores():
    return [Backend("{scheme}", open_it, summary="a shelf: {scheme}:WHERE")]
"""


def install(directory: Path, name: str, source: str, *, requires: str = "replog", point: str = "") -> None:
    """What pip leaves behind for a project with an entry point."""
    (directory / f"{name}.py").write_text(textwrap.dedent(source))
    info = directory / f"replog_{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: replog-{name}\nVersion: 1.5\nRequires-Dist: {requires}\n"
    )
    (info / "entry_points.txt").write_text(f"[replog]\n{name} = {point or name}\n")


@attrs.frozen
class Ended:
    """A command that was run in this process."""

    status: int
    stdout: str
    stderr: str


Replog = Callable[..., Ended]


@pytest.fixture
def replog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Replog]:
    """Runs a command where what stands in `tmp_path` is installed. Nothing that it imports from there stays."""

    def run(*arguments: str, disabled: str = "") -> Ended:
        monkeypatch.setenv("REPLOG_PLUGINS_DISABLED", disabled)
        monkeypatch.setattr(sys, "argv", ["replog", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return Ended(int(ended.value.code or 0), shown.out, shown.err)

    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield run
    for name, module in list(sys.modules.items()):
        if name not in before and str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


def rows(replog: Replog, *, disabled: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    done = replog("plugins", "--json", disabled=disabled)
    assert done.stderr == ""
    return done.status, {row["name"]: row for row in json.loads(done.stdout)}


def test_installed_plugin_is_shown_with_its_offers(replog: Replog, tmp_path: Path) -> None:
    install(tmp_path, "shelf", GOOD.format(scheme="shelf"))
    status, found = rows(replog)
    assert status == 0
    assert found["shelf"] == {
        "name": "shelf",
        "state": "loaded",
        "origin": "replog-shelf 1.5",
        "offers": ["metastore shelf"],
        "observes": False,
        "needs": [],
        "problem": None,
    }
    shown = replog("plugins")
    (line,) = [line for line in shown.stdout.splitlines() if "│ shelf " in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "shelf",
        "replog-shelf 1.5",
        "metastore shelf",
        "a shelf: shelf:WHERE",
    ]


WRONG = {
    "no such module": ("", {"point": "not_there"}, ["not_there", "installation is incomplete: install it again"]),
    "no such attribute": ("", {"point": "wrong:Plugin"}, ["'wrong:Plugin'", "has no attribute 'Plugin'"]),
    "syntax": ("def (", {}, ["SyntaxError"]),
    "exits": ("import sys; sys.exit(3)", {}, ["SystemExit(3)"]),
    "a dependency is missing": (
        "import a_shelf_library",
        {"requires": "shelf-library>=2"},
        ["Install the package that has the module 'a_shelf_library' (it asks for shelf-library>=2)"],
    ),
    "made for a newer replog": (
        "from replog.abc import Shelf",
        {"requires": "replog>=7"},
        ["cannot import name 'Shelf'", "may be made for another replog than", "(it asks for replog>=7)"],
    ),
    "made for a replog with more modules": (
        "import replog.shelves",
        {"requires": "replog>=7"},
        ["may be made for another replog than", "(it asks for replog>=7)"],
    ),
    "misspelt hook": (
        GOOD.format(scheme="x").replace("def replog_metastores", "def replog_metastore"),
        {},
        ["a hook that does not exist: replog_metastore. Did you mean replog_metastores?"],
    ),
    "unmarked hook": (
        GOOD.format(scheme="x").replace("@hookimpl", ""),
        {},
        ["its replog_metastores is not marked as a hook: put @hookimpl above it"],
    ),
    "no hook": ("VERSION = 1", {}, ["it has no hook. There are: replog_archives, replog_authenticators, "]),
    "no list": (
        GOOD.format(scheme="x").replace("return [", "return (").replace('WHERE")]', 'WHERE"))'),
        {},
        ["its replog_metastores returned Backend(", "it must be a list of Backend"],
    ),
    "a hook that raises": (
        GOOD.format(scheme="x").replace("summary=", "color="),
        {},
        ["its replog_metastores raised TypeError", "color"],
    ),
    "no scheme": (GOOD.format(scheme="My Shelf"), {}, ["its metastore 'My Shelf': that is not a scheme"]),
    "a scheme that is taken": (
        GOOD.format(scheme="lmdb"),
        {},
        ["metastore scheme 'lmdb' is claimed by two plugins, 'lmdb-metastore' of built in and 'wrong' of"],
    ),
}


@pytest.mark.parametrize(("source", "more", "problems"), WRONG.values(), ids=WRONG)
def test_wrong_plugin_is_named_and_others_are_listed(
    replog: Replog, tmp_path: Path, source: str, more: dict[str, str], problems: list[str]
) -> None:
    install(tmp_path, "shelf", GOOD.format(scheme="shelf"))
    install(tmp_path, "wrong", source, **more)
    status, found = rows(replog)
    assert status == 1
    assert found["wrong"]["state"] == "wrong"
    assert found["wrong"]["offers"] == []
    for problem in [*problems, "'wrong' of replog-wrong 1.5"]:
        assert problem in found["wrong"]["problem"]
    assert "REPLOG_PLUGINS_DISABLED" in found["wrong"]["problem"]
    assert found["shelf"]["state"] == found["lmdb-metastore"]["state"] == "loaded"
    shown = replog("plugins")
    assert shown.status == 1
    assert shown.stderr == ""
    assert found["wrong"]["problem"] in shown.stdout
    refused = replog("log", "list", "--metastore", "shelf:x")
    assert refused.status == 2
    assert refused.stderr == f"replog: {found['wrong']['problem']}\n"
    status, found = rows(replog, disabled="wrong")
    assert (status, found["wrong"]["state"], found["wrong"]["problem"]) == (0, "disabled", None)


def test_all_wrong_plugins_are_reported_together(replog: Replog, tmp_path: Path) -> None:
    install(tmp_path, "one", "import nothing_of_that_name")
    install(tmp_path, "two", "VERSION = 1")
    install(tmp_path, "three", GOOD.format(scheme="three"))
    refused = replog("log", "list", "--metastore", "three:x")
    assert refused.status == 2
    assert refused.stderr.startswith("replog: 2 plugins are wrong\n")
    assert "plugin 'one' of replog-one 1.5" in refused.stderr
    assert "plugin 'two' of replog-two 1.5" in refused.stderr
    status, found = rows(replog)
    assert status == 1
    assert {name for name, row in found.items() if row["state"] == "wrong"} == {"one", "two"}
    assert found["three"]["state"] == "loaded"


def test_plugin_is_named_when_it_fails_to_open(replog: Replog, tmp_path: Path) -> None:
    abstract = GOOD.format(scheme="shelf").replace("async def children(self, key): ...", "")
    install(tmp_path, "shelf", abstract)
    refused = replog("log", "list", "--metastore", "shelf:x")
    assert refused.status == 2
    assert "plugin 'shelf' of replog-shelf 1.5: its metastore 'shelf' cannot be opened: TypeError" in refused.stderr
    assert "children" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_misspelt_scheme_is_asked_about(replog: Replog, tmp_path: Path) -> None:
    install(tmp_path, "shelf", GOOD.format(scheme="shelf"))
    for misspelt, meant in (("shelve", "shelf"), ("lmbd", "lmdb"), ("zookeper", "zookeeper"), ("sqlit", "sqlite")):
        refused = replog("log", "list", "--metastore", f"{misspelt}:x")
        assert refused.status == 2
        assert f"scheme '{misspelt}'" in refused.stderr
        assert f"did you mean '{meant}'?" in refused.stderr


def test_unknown_disabled_names_are_reported(replog: Replog, tmp_path: Path) -> None:
    status, found = rows(replog, disabled="memory-storage, memory-store")
    assert status == 0
    assert (found["memory-storage"]["state"], found["memory-storage"]["problem"]) == ("disabled", None)
    assert found["memory-store"]["problem"] == "REPLOG_PLUGINS_DISABLED names it, and there is no plugin 'memory-store'"


def test_plugin_without_its_extra_says_how_to_install_it(replog: Replog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.registry.registry.is_installed", lambda extra: extra != "zookeeper")
    shown = replog("plugins")
    assert shown.status == 0, "a package that nobody asked for is no fault"
    (line,) = [line for line in shown.stdout.splitlines() if "zookeeper-metastore" in line]
    assert "needs: pip install 'replog[zookeeper]'" in line
    _, found = rows(replog)
    assert found["zookeeper-metastore"]["needs"] == ["replog[zookeeper]"]


def test_whether_an_extra_is_installed_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def version_of(name: str) -> str:
        if name == "kazoo":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr("replog.registry.importing.version_of", version_of)
    assert not importing.is_installed("zookeeper")
    assert importing.is_installed("arrow")
