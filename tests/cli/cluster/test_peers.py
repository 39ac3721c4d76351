"""Where the bookies of a local cluster listen that keep its metastore."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from replog.cli.cluster.bookie_processes import Plan
from replog.cli.cluster.peers import ClusterFailedError, peers_of, url_of


def test_cluster_keeps_its_addresses(tmp_path: Path) -> None:
    addresses = peers_of(tmp_path, 3)
    assert len(set(addresses)) == 3
    assert peers_of(tmp_path, 4) == addresses
    assert (tmp_path / "metastore.url").read_text() == f"{url_of(addresses)}\n"


def test_taken_port_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    first, *others = peers_of(tmp_path, 3)
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        now = peers_of(tmp_path, 3)
    assert now[0] != first
    assert list(now[1:]) == others


@pytest.mark.parametrize("bookies", [1, 2])
def test_few_bookies_have_a_file(bookies: int, tmp_path: Path) -> None:
    assert peers_of(tmp_path, bookies) == ()
    assert Plan(tmp_path, bookies).metastore == f"lmdb:{tmp_path}/metadata"


def test_grown_cluster_keeps_its_file(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    assert peers_of(tmp_path, 3) == ()


def test_damaged_file_of_addresses_is_named(tmp_path: Path) -> None:
    (tmp_path / "metastore.url").write_text("quorum:nonsense")
    with pytest.raises(ClusterFailedError, match=f"{tmp_path}/metastore.url"):
        peers_of(tmp_path, 3)


def test_bookies_beside_the_peers_only_know_them(tmp_path: Path) -> None:
    plan = Plan(tmp_path, 4, peers=("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"))
    assert plan.where(1) == ["--peers", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "--listen", "127.0.0.1:2"]
    assert plan.where(3) == ["--metastore", "quorum:127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "--listen", "127.0.0.1:0"]
