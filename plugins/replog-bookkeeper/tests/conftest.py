"""Fixtures: a cluster of Java's bookies that all tests share, and a program that drives Java's client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests find `java_bookies`, wherever pytest was started

import java_bookies
from java_bookies import Cluster, Driver, Java


@pytest.fixture(scope="session")
def compiled_java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    java_bookies.need_bookkeeper()
    return Java.compiled(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def shared_cluster(compiled_java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_bookies.cluster(tmp_path_factory.mktemp("bookkeeper"), 5, java=compiled_java) as found:
        yield found


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Five bookies that serve, which a test may kill and freeze."""
    shared_cluster.heal()
    return shared_cluster


@pytest.fixture(scope="session")
def shared_mixed(compiled_java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_bookies.cluster(tmp_path_factory.mktemp("mixed"), 2, python_bookies=3, java=compiled_java) as found:
        yield found


@pytest.fixture
def mixed(shared_mixed: Cluster) -> Cluster:
    """Two bookies of Java's and three of replog's, which a test may kill and freeze."""
    shared_mixed.heal()
    return shared_mixed


@pytest.fixture(scope="session")
def shared_driver(shared_cluster: Cluster) -> Iterator[Driver]:
    driver = Driver(shared_cluster.java, shared_cluster.uri, shared_cluster.directory / "driver.log")
    driver("client", "java", "v3")
    driver("client", "java-v2", "v2")
    yield driver
    driver.kill()


@pytest.fixture
def driver(shared_driver: Driver) -> Driver:
    """Java's client: "java" speaks the protocol's version 3, "java-v2" version 2."""
    return shared_driver


@pytest.fixture(scope="module")
def shared_mixed_driver(shared_mixed: Cluster) -> Iterator[Driver]:
    driver = Driver(shared_mixed.java, shared_mixed.uri, shared_mixed.directory / "driver.log")
    for version in ("v2", "v3"):
        driver("client", version, version)
    yield driver
    driver.kill()


@pytest.fixture
def mixed_driver(shared_mixed_driver: Driver, mixed: Cluster) -> Driver:
    """Java's client of the mixed cluster, by the version of the protocol that it speaks: "v2" and "v3"."""
    return shared_mixed_driver
