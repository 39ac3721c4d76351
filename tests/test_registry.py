"""Plugins: those built in, those installed, and those that are wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from replog.abc import Metastore, PlacementPolicy
from replog.config import BackendURL
from replog.errors import ConfigError, PluginConflictError, PluginNotFoundError
from replog.hookspecs import Backend, LedgerRecovered, NoOptions, hookimpl
from replog.metastores.memory import MemoryMetastore
from replog.placements.uniform import RandomPlacement
from replog.registry import PluginInfo, Registry
from replog.registry import loading as module
from replog.transports.memory import MemoryTransport

EVENT = LedgerRecovered(7, 41, 0.25)


def offering(*backends: Backend[Any], hook: str = "replog_metastores") -> SimpleNamespace:
    def offer() -> Sequence[Backend[Any]]:
        return list(backends)

    return SimpleNamespace(**{hook: hookimpl(offer)})


def opening(name: str, options: NoOptions) -> Metastore:
    return MemoryMetastore(name)


def registry(**plugins: object) -> Registry:
    return Registry(plugins, load_installed=False, environment={})


# -- what is built in ---------------------------------------------------------------------------------------------


def test_the_built_ins_are_plugins_and_open_by_url() -> None:
    built_in = registry()
    assert isinstance(built_in.open_metastore("memory:name"), MemoryMetastore)
    assert isinstance(built_in.open_transport("memory"), MemoryTransport)
    assert isinstance(built_in.open_placement(BackendURL("random")), RandomPlacement)
    plugins = {plugin.name: plugin for plugin in built_in.plugins()}
    assert plugins["memory-metastore"] == PluginInfo("memory-metastore", "built in", ("metastore memory",), False)
    assert plugins["lmdb-metastore"].offers == ("metastore lmdb",)


@pytest.mark.parametrize("builtin", module._BUILTINS, ids=lambda builtin: builtin[0])
def test_every_built_in_describes_its_offer(builtin: tuple[str, str, str]) -> None:
    name, _, extra = builtin
    plugins = [each for each in registry().plugins() if each.name == name]
    assert plugins or extra, "only a plugin that needs an extra may be missing"
    for plugin in plugins:
        assert plugin.offers
        for offer in plugin.offers:
            kind, scheme = offer.split()
            assert registry().backend(kind, scheme).summary


@pytest.mark.real
def test_importing_the_registry_loads_no_plugin() -> None:
    script = """
    import sys
    import replog.registry
    plugins = ("replog.metastores", "replog.transports", "replog.backends", "replog.placements.uniform")
    assert not [name for name in sys.modules if name.startswith(plugins)], "a plugin was imported"
    replog.registry.Registry()
    assert not {"kazoo", "pyspark", "pyarrow"} & set(sys.modules), "an optional package was imported"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


# -- what is not there --------------------------------------------------------------------------------------------


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(PluginNotFoundError, match=r"no plugin offers the metastore scheme 'lmbd'; known: .*lmdb"):
        registry().open_metastore("lmbd:./wal")
    with pytest.raises(PluginNotFoundError, match="the placement scheme 'memory'; known: random"):
        registry().open_placement("memory:")


@pytest.mark.parametrize(
    ("scheme", "package"), [("etcd", "replog-etcd"), ("objects", "replog-objects"), ("sqlite", "replog-sqlite")]
)
def test_scheme_of_an_absent_plugin_names_the_package(scheme: str, package: str) -> None:
    with pytest.raises(PluginNotFoundError, match=f"pip install '{package}'"):
        registry().open_metastore(f"{scheme}:x")


def test_a_built_in_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "needs_kazoo.py").write_text("import a_package_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_BUILTINS", (*module._BUILTINS, ("new", "needs_kazoo", "zookeeper")))
    with pytest.raises(PluginNotFoundError, match=r"new needs: pip install 'replog\[zookeeper\]'"):
        registry().open_metastore("new:x")


def test_a_backend_without_its_package_names_the_extra() -> None:
    def open_late(rest: str, options: NoOptions) -> Metastore:
        raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo")

    lazy = registry(lazy=offering(Backend("late", open_late, extra="zookeeper"), Backend("strange", open_late)))
    with pytest.raises(PluginNotFoundError, match=r"No module named 'kazoo'; pip install 'replog\[zookeeper\]'"):
        lazy.open_metastore("late:x")
    with pytest.raises(PluginNotFoundError, match="the package that has 'kazoo'"):
        lazy.open_metastore("strange:x")


def test_a_bug_in_a_built_in_is_not_taken_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUILTINS", (("new", "replog.no_such_module", "zookeeper"),))
    with pytest.raises(ModuleNotFoundError, match=r"replog\.no_such_module"):
        registry()


# -- options ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Options:
    """What a stranger's plugin takes."""

    path_bytes: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    flag: bool = False


def test_options_are_checked_before_a_plugin_sees_them() -> None:
    seen: list[object] = []

    def open_it(rest: str, options: Options) -> Metastore:
        seen.append((rest, options))
        return MemoryMetastore()

    plugged = registry(mine=offering(Backend("mine", open_it, Options)))
    plugged.open_metastore("mine:a/b?path_bytes=2KiB&flag=on")
    assert seen == [("a/b", Options(2048, True))]
    with pytest.raises(ConfigError) as raised:
        plugged.open_metastore("mine:x?path_bytes=0&flag=maybe&falg=1")
    for fault in ("path_bytes: 'path_bytes' must be >= 1: 0", "flag: 'maybe'", "no such option: falg"):
        assert fault in str(raised.value)
    assert len(seen) == 1


# -- what is wrong ------------------------------------------------------------------------------------------------


async def asynchronous() -> None:
    """A hook must not be one."""


async def open_asynchronously(rest: str, options: NoOptions) -> Metastore:
    return MemoryMetastore()


@hookimpl
def replog_metastore() -> list[Backend[Metastore]]:
    return []


@hookimpl
def replog_observe(event: object, extra: object) -> None:
    pass


@hookimpl(wrapper=True)
def replog_metastores() -> Any:
    return (yield)


def raising() -> list[Backend[Metastore]]:
    raise RuntimeError("no disk today")


WRONG = {
    "misspelt hook": (
        SimpleNamespace(replog_metastore=replog_metastore),
        "hook that does not exist: .*replog_metastore",
    ),
    "unknown argument": (SimpleNamespace(replog_observe=replog_observe), "extra"),
    "asynchronous hook": (
        SimpleNamespace(replog_metastores=hookimpl(asynchronous)),
        "replog_metastores is asynchronous",
    ),
    "asynchronous observer": (SimpleNamespace(replog_observe=hookimpl(asynchronous)), "replog_observe is asynchronous"),
    "wrapper": (SimpleNamespace(replog_metastores=replog_metastores), "is a wrapper"),
    "no backend": (offering(MemoryMetastore), "it must be a list of Backend"),  # type: ignore[arg-type]
    "raises": (SimpleNamespace(replog_metastores=hookimpl(raising)), "no disk today"),
    "asynchronous open": (offering(Backend("x", open_asynchronously)), "`open` of its metastore 'x' is asynchronous"),
    "options of no class": (offering(Backend("x", opening, dict)), "not an attrs class"),
}


@pytest.mark.parametrize(("plugin", "fault"), WRONG.values(), ids=WRONG)
def test_a_wrong_plugin_is_refused_by_name(plugin: object, fault: str) -> None:
    with pytest.raises(PluginConflictError, match=fault) as raised:
        registry(mine=plugin)
    assert "'mine'" in str(raised.value)


def test_a_scheme_claimed_twice_names_both() -> None:
    one, two = offering(Backend("x", opening)), offering(Backend("x", opening))
    with pytest.raises(PluginConflictError, match=r"'x' is claimed by two plugins, 'one' .* and 'two'"):
        registry(one=one, two=two)
    with pytest.raises(PluginConflictError, match="'memory-metastore' of built in and 'mine'"):
        registry(mine=offering(Backend("memory", opening)))
    with pytest.raises(PluginConflictError, match="two plugins are named 'lmdb-metastore'"):
        registry(**{"lmdb-metastore": one})
    registry(one=one, other=offering(Backend("x", lambda rest, options: RandomPlacement()), hook="replog_placements"))


def test_opened_object_of_a_plugin_is_checked() -> None:
    async def later() -> Metastore:
        return MemoryMetastore()

    plugged = registry(
        mine=offering(Backend("wrong", lambda rest, options: RandomPlacement()), Backend("late", lambda *_: later()))
    )
    with pytest.raises(
        PluginConflictError, match="'mine' of given by the program: its metastore 'wrong' opened a RandomPlacement"
    ):
        plugged.open_metastore("wrong:")
    with pytest.raises(PluginConflictError, match="opened a coroutine, which is not a Metastore"):
        plugged.open_metastore("late:")


# -- what is installed --------------------------------------------------------------------------------------------


def install(directory: Path, name: str, source: str) -> None:
    """What pip leaves behind for a project with an entry point."""
    (directory / f"{name}.py").write_text(textwrap.dedent(source))
    info = directory / f"replog_{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: replog-{name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[replog]\n{name} = {name}\n")


GOOD = """
from replog.hookspecs import Backend, hookimpl
from replog.metastores.memory import MemoryMetastore

@hookimpl
def replog_metastores():
    return [Backend("{scheme}", lambda rest, options: MemoryMetastore(rest))]
"""


def test_an_installed_plugin_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "installed_one", GOOD.format(scheme="one"))
    monkeypatch.syspath_prepend(tmp_path)
    found = Registry(environment={})
    assert isinstance(found.open_metastore("one:x"), MemoryMetastore)
    assert PluginInfo("installed_one", "replog-installed_one 1.5", ("metastore one",), False) in found.plugins()
    disabled = Registry(environment={"REPLOG_PLUGINS_DISABLED": "another, installed_one"})
    with pytest.raises(PluginNotFoundError, match="disabled: another, installed_one"):
        disabled.open_metastore("one:x")
    with pytest.raises(PluginNotFoundError):
        Registry(load_installed=False, environment={}).open_metastore("one:x")


def test_a_broken_plugin_is_named_and_can_be_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "installed_broken", "import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    broken = "plugin 'installed_broken' of replog-installed_broken 1.5: it cannot be imported.*nothing_of_that_name"
    with pytest.raises(PluginConflictError, match=broken) as raised:
        Registry(environment={})
    assert "REPLOG_PLUGINS_DISABLED=installed_broken" in str(raised.value)
    Registry(disabled=["installed_broken"], environment={})


def labelling(labels: Callable[[], object]) -> SimpleNamespace:
    return SimpleNamespace(replog_bookie_labels=hookimpl(labels))


def test_plugins_give_labels() -> None:
    given = registry(cloud=labelling(lambda: {"zone": "a"}), racks=labelling(lambda: {"rack": "r1", "zone": "a"}))
    assert given.gives_labels
    assert given.bookie_labels() == {"zone": "a", "rack": "r1"}
    assert not registry().gives_labels
    assert registry().bookie_labels() == {}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (lambda: {"zone": "b"}, "zone=[ab] contradicts zone=[ab] of '(cloud|other)'"),
        (lambda: ["zone=b"], "not a mapping"),
        (lambda: {"": "b"}, "the name of a label"),
        (lambda: {"zone": ""}, "label zone must have a printable value"),
        (lambda: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_wrong_labels_of_a_plugin_are_refused(labels: Callable[[], object], words: str) -> None:
    with pytest.raises(PluginConflictError, match=words):
        registry(cloud=labelling(lambda: {"zone": "a"}), other=labelling(labels)).bookie_labels()


def test_two_installed_plugins_with_one_scheme_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("installed_two", "installed_three"):
        install(tmp_path, name, GOOD.format(scheme="same"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginConflictError, match=r"replog-installed_(two|three) 1\.5") as raised:
        Registry(environment={})
    assert "'installed_two'" in str(raised.value)
    assert "'installed_three'" in str(raised.value)


def test_a_built_in_can_be_disabled_and_replaced() -> None:
    replaced = Registry(
        {
            "mine": offering(
                Backend("random", lambda rest, options: RandomPlacement(), summary="mine"), hook="replog_placements"
            )
        },
        load_installed=False,
        disabled=["random-placement"],
    )
    assert isinstance(replaced.open_placement("random"), PlacementPolicy)
    assert replaced.backend("placement", "random").summary == "mine"


# -- observers ----------------------------------------------------------------------------------------------------


def observing(observer: Callable[..., object]) -> SimpleNamespace:
    return SimpleNamespace(replog_observe=hookimpl(observer))


def test_observers_are_called() -> None:
    told: list[object] = []

    def with_event(event: object) -> None:
        told.append(event)

    def without() -> None:
        told.append("something")

    observed = registry(one=observing(with_event), two=observing(without))
    observed.observe(EVENT)
    assert told == [EVENT, "something"] or told == ["something", EVENT]
    assert [plugin.name for plugin in observed.plugins() if plugin.observes] == ["one", "two"]
    registry().observe(EVENT)  # nobody is fine


def test_raising_observer_is_reported_once_and_stops_no_writer() -> None:
    told: list[object] = []

    def broken(event: object) -> None:
        raise ZeroDivisionError("oops")

    def good(event: object) -> None:
        told.append(event)

    observed = registry(broken=observing(broken), good=observing(good))
    with pytest.warns(RuntimeWarning, match=r"plugin 'broken' failed to observe LedgerRecovered.*oops"):
        observed.observe(EVENT)
    observed.observe(EVENT)  # a warning would be an error here
    assert told == [EVENT, EVENT]
