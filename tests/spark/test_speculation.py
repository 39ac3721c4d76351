"""Jobs on a real cluster: attempts side by side on two hosts, executors and drivers that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replog.protocol.model import LedgerMetadata
from tests.servers.bookies import Bookies
from tests.servers.fixtures import need
from tests.servers.spark import missing
from tests.servers.spark_cluster import spark_cluster
from tests.spark import slow
from tests.spark.drivers import PARTITIONS, expected, numbers
from tests.spark.logs import ask, ledgers_of, listed_ids, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.needs_spark,
    pytest.mark.long(is_sampled=False),
    pytest.mark.crash,
]  # six Javas for two minutes

ROOT = Path(__file__).parents[2]
DRIVER_S = 400
SWEEPING_S = 60


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL; two workers on two hosts belong to it."""
    need(missing())
    with spark_cluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster.url


def log_of(fault: str) -> str:
    return f"cluster-{fault}"


def drive(master: str, bookies: Bookies, place: Path, *faults: str) -> int:
    """A driver's whole life, with one job for each fault; its exit status. What it said is in `driver.log`."""
    jobs = [f"{fault}={log_of(fault)}" for fault in faults]
    command = [sys.executable, "-m", "tests.spark.drivers", master, bookies.metastore, str(place), *jobs]
    with (place / "driver.log").open("wb") as log:
        return subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=DRIVER_S, check=False).returncode


@pytest.fixture(scope="module")
def finished(master: str, spark_bookies: Bookies, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one driver's jobs told, which all ended well. It has ended, and its executors have nothing to do."""
    place = tmp_path_factory.mktemp("jobs")
    status = drive(master, spark_bookies, place, *slow.SPECULATED, slow.EXECUTOR_KILLED)
    assert status == 0, (place / "driver.log").read_text(errors="replace")[-8000:]
    return place


def lost(place: Path, fault: str) -> dict[str, Any]:
    """What the attempt that lost told of itself."""
    return slow.Gates(str(place), fault).wait_for("lost")


def check_winner_is_another(bookies: Bookies, fault: str, attempt: int) -> None:
    """The log has each row once, and of the partition that two attempts wrote what the other one wrote."""
    log = log_of(fault)
    assert rows_of(bookies.metastore, log) == expected()
    listed = [ledgers_of(bookies.metastore, log)[each].custom for each in listed_ids(bookies.metastore, log)]
    assert [custom["partition"] for custom in listed] == [str(number) for number in range(PARTITIONS)]
    assert listed[slow.FAULTY_PARTITION]["attempt"] != str(attempt)


def unlisted(bookies: Bookies, log: str) -> dict[int, LedgerMetadata]:
    """Ledgers that were made for the log, and that it does not have."""
    listed = listed_ids(bookies.metastore, log)
    return {id: metadata for id, metadata in ledgers_of(bookies.metastore, log).items() if id not in listed}


def sweep_by_command(bookies: Bookies, log: str, *options: str) -> list[int]:
    """`replog log sweep`: which ledgers it deleted."""
    command = [sys.executable, "-m", "replog.cli", "log", "sweep", log, "--metastore", bookies.metastore, "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    deleted: list[int] = json.loads(done.stdout)["deleted_ledgers"]
    return deleted


def test_the_ledger_of_a_slower_attempt_goes_with_the_commit(finished: Path, spark_bookies: Bookies) -> None:
    """Both had written all and closed their ledgers."""
    told = lost(finished, slow.DONE_BEFORE_COMMIT)
    check_winner_is_another(spark_bookies, slow.DONE_BEFORE_COMMIT, told["attempt"])
    assert told["ledger_id"] is not None
    assert unlisted(spark_bookies, log_of(slow.DONE_BEFORE_COMMIT)) == {}


def test_attempt_fails_when_it_writes_after_the_commit(finished: Path, spark_bookies: Bookies) -> None:
    """The commit fenced and deleted its ledger."""
    told = lost(finished, slow.AMID_COMMIT)
    check_winner_is_another(spark_bookies, slow.AMID_COMMIT, told["attempt"])
    assert told.get("error") in ("FencedError", "LedgerNotFoundError", "LedgerDeletedError"), told
    assert unlisted(spark_bookies, log_of(slow.AMID_COMMIT)) == {}


def test_ledgers_begun_after_the_commit_are_swept(finished: Path, spark_bookies: Bookies) -> None:
    """It wrote to the end, and closed a ledger that nobody waits for. The job has ended, so no grace is needed."""
    log = log_of(slow.BEGUN_AFTER_COMMIT)
    told = lost(finished, slow.BEGUN_AFTER_COMMIT)
    check_winner_is_another(spark_bookies, slow.BEGUN_AFTER_COMMIT, told["attempt"])
    left = unlisted(spark_bookies, log)
    assert list(left) == [told["ledger_id"]]
    assert left[told["ledger_id"]].last_entry_id is not None  # closed
    assert left[told["ledger_id"]].custom["attempt"] == str(told["attempt"])
    assert sweep_by_command(spark_bookies, log) == [told["ledger_id"]]
    assert unlisted(spark_bookies, log) == {}
    assert rows_of(spark_bookies.metastore, log) == expected()


def test_a_killed_executor_costs_no_row(finished: Path, spark_bookies: Bookies) -> None:
    """Amid a task, and whatever other attempts it ran: they may outlive it for a moment, and what they leave is swept."""
    log = log_of(slow.EXECUTOR_KILLED)
    assert lost(finished, slow.EXECUTOR_KILLED)["executor"] > 1
    assert rows_of(spark_bookies.metastore, log) == expected()

    deadline_s = time.monotonic() + SWEEPING_S
    while unlisted(spark_bookies, log):
        assert time.monotonic() < deadline_s, "there is always something left to sweep"
        ask(spark_bookies.metastore, lambda client: client.jobs.sweep(log))
    assert rows_of(spark_bookies.metastore, log) == expected()


def test_a_driver_killed_before_its_commit_changes_nothing(
    master: str, spark: SparkSession, spark_bookies: Bookies, tmp_path: Path
) -> None:
    """All tasks had ended. Another driver runs the job again, and once more: it is in the log once. What the killed one wrote
    waits for the grace to be over, since nobody knows that it won't commit."""
    log = log_of(slow.DRIVER_KILLED)
    status = drive(master, spark_bookies, tmp_path, slow.DRIVER_KILLED)
    assert status == -signal.SIGKILL, (tmp_path / "driver.log").read_text(errors="replace")[-8000:]
    assert rows_of(spark_bookies.metastore, log) == []
    left = sorted(unlisted(spark_bookies, log))
    assert len(left) == PARTITIONS

    for _ in range(2):
        writer = numbers(spark).write.format("replog").mode("append").option("metastore", spark_bookies.metastore)
        writer.option("log", log).option("txnId", slow.DRIVER_KILLED).save()
        assert rows_of(spark_bookies.metastore, log) == expected()
        assert sorted(unlisted(spark_bookies, log)) == left
    assert sweep_by_command(spark_bookies, log) == []
    assert sweep_by_command(spark_bookies, log, "--grace", "0s") == left
    assert unlisted(spark_bookies, log) == {}
    assert rows_of(spark_bookies.metastore, log) == expected()
