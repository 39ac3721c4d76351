"""Files that are not there, not ours, locked or full: each is a named error, and nothing of anybody else's is changed."""

from __future__ import annotations

import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from replog.errors import (
    ConfigError,
    KeyNotFoundError,
    LocalProtocolError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
    PluginNotFoundError,
)
from replog.registry import Registry
from replog.testing import check_metastore_outage
from replog_sqlite import SQLiteMetastore, SQLiteOptions


@asynccontextmanager
async def opened(path: Path | str, *, timeout_s: float = 10.0) -> AsyncIterator[SQLiteMetastore]:
    metastore = SQLiteMetastore(path, SQLiteOptions(timeout_s=timeout_s))
    try:
        yield metastore
    finally:
        await metastore.aclose()


def names_in(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


# -- what it is found by ------------------------------------------------------------------------------------------


async def test_it_is_installed_and_opened_by_its_url(tmp_path: Path) -> None:
    registry = Registry(environment={})
    (info,) = [each for each in registry.plugins() if each.name == "sqlite-metastore"]
    assert info.origin.startswith("replog-sqlite ")
    assert info.offers == ("metastore sqlite",)
    metastore = registry.open_metastore(f"sqlite:{tmp_path}/a.sqlite?timeout_s=3&lease_s=4")
    assert isinstance(metastore, SQLiteMetastore)
    assert metastore.lease_s == 4
    await metastore.create("a/b", b"1")
    await metastore.aclose()
    disabled = Registry(environment={"REPLOG_PLUGINS_DISABLED": "sqlite-metastore"})
    with pytest.raises(PluginNotFoundError, match="pip install 'replog-sqlite'"):
        disabled.open_metastore("sqlite:x")


@pytest.mark.parametrize(
    "url", ["sqlite:", "sqlite", "sqlite:%00", "sqlite:x?timeout_s=0", "sqlite:x?lease_s=nan", "sqlite:x?x=1"]
)
def test_an_invalid_url_is_refused_before_anything_is_opened(url: str) -> None:
    with pytest.raises(ConfigError, match=r"PATH|timeout_s|lease_s|no such option: x"):
        Registry(environment={}).open_metastore(url)


async def test_written_values_reach_the_next_opener(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as one:
        version = await one.create("a", b"1")
    async with opened(tmp_path / "f") as other:
        assert (await other.get("a")).version == version
        await other.delete("a")
        assert await other.create("a", b"2") > version, "a version was given out twice"


async def test_after_closing_nothing_works(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        await metastore.create("a", b"")
        await metastore.aclose()
        for call in (metastore.get("a"), metastore.put("a", b"", 1), metastore.wait_changed("a", 1)):
            with pytest.raises(trio.ClosedResourceError):
                await call
    assert names_in(tmp_path) == ["f"], "SQLite's files beside it are gone with the last client"


async def test_impossible_keys_and_values_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        for call in (metastore.get("a//b"), metastore.create("", b""), metastore.delete("x" * 481)):
            with pytest.raises(LocalProtocolError):
                await call
        with pytest.raises(MetastoreError, match="exceed"):
            await metastore.create("a", bytes(1_000_001))
    assert not (tmp_path / "f").exists()


async def test_values_are_read_in_one_go_and_only_right_below(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        for key in ("a", "a/b", "a/\N{GREEK SMALL LETTER ALPHA}", "a/c/d", "a/b/e", "a-b", "a0", "ab/c"):
            await metastore.create(key, key.encode())
        found = await metastore.values("a")
        assert {word: each.value.decode() for word, each in found.items()} == {"b": "a/b", "\u03b1": "a/\u03b1"}
        assert found["b"] == await metastore.get("a/b")
        assert await metastore.children("a") == ["b", "c", "\u03b1"]
        assert await metastore.values("nothing") == {}


async def test_children_are_found_among_keys_sorting_between_them(tmp_path: Path) -> None:
    """Printable characters sort before "/", after it, and far behind: a word may end with any of them."""
    words = [
        "a",
        "a ",
        "a!",
        "a.",
        "a0",
        "a00",
        "a-b",
        "aa",
        "b",
        "\N{GREEK SMALL LETTER ALPHA}",
        "\U0001f600",
        "~",
        "0",
        "!",
    ]
    async with opened(tmp_path / "f") as metastore:
        for word in words:
            await metastore.create(f"k/{word}", b"")
            await metastore.create(f"k/{word}/x/y", b"")
            await metastore.create(f"k/{word}/z", b"")
        for key in ("k", "k0", "k-", "j/a", "l/a"):
            await metastore.create(key, b"")
        assert await metastore.children("k") == sorted(words)
        assert sorted(await metastore.values("k")) == sorted(words)
        for word in words:
            assert await metastore.children(f"k/{word}") == ["x", "z"]
            await metastore.delete(f"k/{word}")
        assert await metastore.children("k") == sorted(words)
        assert await metastore.values("k") == {}


# -- files that are not ours --------------------------------------------------------------------------------------


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.sqlite"
    connection = sqlite3.connect(theirs)
    connection.execute("CREATE TABLE entries (a)")
    connection.close()
    before = theirs.read_bytes()
    async with opened(theirs) as metastore:
        for _ in range(2):  # and again: what failed to open is not half open
            with pytest.raises(MetastoreCorruptError, match=r"another program's.*Nothing was changed"):
                await metastore.create("a", b"")
    assert theirs.read_bytes() == before


async def test_foreign_database_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"something else" * 1000)
    async with opened(tmp_path / "f") as metastore:
        with pytest.raises(MetastoreCorruptError, match="not a database; nothing was changed"):
            await metastore.get("a")
    assert (tmp_path / "f").read_bytes() == b"something else" * 1000


async def test_an_empty_file_becomes_a_metastore(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    async with opened(tmp_path / "f") as metastore:
        await metastore.create("a", b"")


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        await metastore.create("a", b"")
    connection = sqlite3.connect(tmp_path / "f")
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = dump(tmp_path / "f")
    async with opened(tmp_path / "f") as metastore:
        with pytest.raises(
            MetastoreCorruptError, match=r"of format 2, and this replog-sqlite knows 1: use the version"
        ):
            await metastore.create("b", b"")
    assert dump(tmp_path / "f") == before


async def test_damage_in_the_middle_is_reported(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        for number in range(50):
            await metastore.create(f"a/{number}", bytes(1000))
    with (tmp_path / "f").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 8)
    async with opened(tmp_path / "f") as metastore:
        with pytest.raises(MetastoreCorruptError, match="malformed"):
            await metastore.children("a")


@pytest.mark.parametrize("name", ["missing/f", "."])
async def test_impossible_path_is_a_named_error(tmp_path: Path, name: str) -> None:
    async with opened(f"{tmp_path}/{name}") as metastore:
        with pytest.raises(MetastoreError, match=r"nothing was written\. Is its directory there"):
            await metastore.get("a")
    assert names_in(tmp_path) == []


async def test_missing_file_may_be_awaited(tmp_path: Path) -> None:
    await check_metastore_outage(lambda: opened(tmp_path / "missing" / "f"))


async def test_sqlites_own_memory_is_not_a_file(tmp_path: Path) -> None:
    async with opened(":memory:") as metastore:
        with pytest.raises(MetastoreError, match="Name a file on a local disk"):
            await metastore.create("a", b"")


# -- locked and full ----------------------------------------------------------------------------------------------


async def test_locked_database_is_reported_and_read_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as patient:
        version = await patient.create("a", b"1")
    async with opened(tmp_path / "f", timeout_s=2.0) as metastore:
        holder = sqlite3.connect(tmp_path / "f", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for call in (metastore.create("b", b""), metastore.put("a", b"2", version), metastore.delete("a")):
            with pytest.raises(MetastoreError, match=r"nothing was written\. Another process is writing") as raised:
                await call
            assert not isinstance(raised.value, MetastoreUncertainError)
        assert (await metastore.get("a")).value == b"1"
        async with opened(tmp_path / "f", timeout_s=2.0) as newcomer:
            assert await newcomer.children("a") == []
        holder.rollback()
        holder.close()
        await metastore.put("a", b"2", version)


async def test_a_full_database_takes_nothing_and_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path / "f") as metastore:
        version = await metastore.create("a", b"1")
        connection = metastore._database._connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(MetastoreError, match=r"full; nothing was written\. Make space") as raised:
            await metastore.put("a", bytes(500_000), version)
        assert not isinstance(raised.value, MetastoreUncertainError)
        assert (await metastore.get("a")).version == version
        await metastore.put("a", b"2", version)  # another connection, without that limit


COMMIT_FAILS = """
import resource, sys
import trio
from replog.errors import MetastoreUncertainError
from replog_sqlite import SQLiteMetastore

async def main():
    metastore = SQLiteMetastore(sys.argv[1])
    version = await metastore.create("a", b"1")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))  # the write-ahead log is written in the commit
    try:
        await metastore.put("a", bytes(500_000), version)
    except MetastoreUncertainError as error:
        assert "in the commit: read back" in str(error)
    else:
        raise AssertionError("a commit that cannot be written succeeded")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found = await metastore.get("a")
    assert (found.value, found.version) == (b"1", version)
    await metastore.put("a", b"2", version)
    await metastore.aclose()

trio.run(main)
"""


async def test_failed_commit_has_an_unknown_outcome(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(COMMIT_FAILS), str(tmp_path / "f")]
    done = await trio.run_process(command, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    async with opened(tmp_path / "f") as metastore:
        assert (await metastore.get("a")).value == b"2"
        with pytest.raises(KeyNotFoundError):
            await metastore.get("b")
