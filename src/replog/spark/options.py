"""The options of the data source: texts from Spark, whose keys are case-insensitive, and what they mean.

A key may be written with or without underscores: `txnId`, `txn_id` and `TXNID` are one option. No option holds a secret:
Spark shows options in plans and in its web pages. All invalid options are reported at once, at planning, on the driver.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

import attrs

import replog
from replog.config import (
    BackendURL,
    Checked,
    ClientOptions,
    FaultsError,
    at_least,
    ledger_password,
    load,
    option,
    structure,
)
from replog.config.parsing import parse_quorum
from replog.errors import ConfigError
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path
from replog.spark import clients

Value = TypeVar("Value")

VALUES = ("binary", "arrow", "json")
AUTO = "auto"
_TXN_ID_CHARACTERS_MAX = 200
# What Spark itself puts among a source's or sink's options.
_OF_SPARK = ("checkpointlocation", "queryname", "asyncprogresstracking")


def _check_metastore(value: Any) -> str | None:
    try:
        url = BackendURL.parse(value)
    except ConfigError as error:
        return str(error)
    if url.scheme == "memory":
        return f"{url} is in the memory of one process, and Spark has several: use another metastore"
    if url.scheme == "lmdb" and not os.path.isabs(url.rest):
        return f"{url} is a relative path, and each process of Spark is in a directory of its own: write it from /"
    return None


def check_log(value: Any) -> str | None:
    """The fault of a log's name, or None."""
    try:
        log_key_path(value)
    except ConfigError as error:
        return str(error)
    return None


def _check_quorum(value: Any) -> str | None:
    try:
        _parse_quorum(value)
    except ConfigError as error:
        return str(error)
    return None


def _check_txn_id(value: Any) -> str | None:
    if not value.strip() or len(value) > _TXN_ID_CHARACTERS_MAX:
        return f"it is empty, or longer than {_TXN_ID_CHARACTERS_MAX} characters"
    return None


def _check_values(value: Any) -> str | None:
    if value == AUTO:
        return f"auto is for reading: say how the rows are to be kept, as {', '.join(VALUES)}"
    return None if value in VALUES else f"{value!r} is none of {', '.join(VALUES)}"


def _parse_quorum(text: str) -> Quorum:
    quorum = parse_quorum(text)
    if quorum is None:
        raise ConfigError(f"{text!r} is written ENSEMBLE,WRITE,ACK, as in 3,3,2")
    return quorum


@attrs.frozen(kw_only=True)
class SparkOptions(Checked):
    """The options of the format `replog`, for writing and reading."""

    metastore: str = attrs.field(
        repr=False,  # it may hold a password
        metadata={"doc": "URL of the metastore; all machines reach it.", "check": _check_metastore},
    )
    log: str = attrs.field(metadata={"doc": "Name of the log.", "check": check_log})
    password_file: str | None = option(
        None, "A file with the ledgers' password, on each machine; the end of its line is not part of it."
    )
    config_file: str | None = option(
        None, "A TOML file, on each machine, with the table `client`: options of the client (TLS, timeouts)."
    )
    quorum: str = option("3,3,2", "Ensemble, write and ack quorum of the ledgers that are written.", _check_quorum)
    values: str = option("binary", "How rows are kept in entries: binary, arrow or json.", _check_values)
    merge_schema: bool = option(False, "Columns that the log does not have are added to its schema, behind the others.")
    txn_id: str | None = option(
        None, "Names what a job writes: a log takes each `txn_id` with its `txn_version` once.", _check_txn_id
    )
    txn_version: int = option(
        0, "Of one `txn_id` the log takes ascending numbers only, each once.", at_least(0, (1 << 63) - 1)
    )
    merge_bytes: int = option(
        256 << 10,
        "A task whose entries have at most so many bytes sends them to the driver, which writes one ledger for all of them. 0: "
        "each task writes its own.",
        at_least(0, 1 << 20),
    )

    def contradictions(self) -> list[str]:
        """Options that contradict each other."""
        return ["txn_version needs a txn_id"] if self.txn_version and self.txn_id is None else []

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Reads the options that Spark passes. Raises `ConfigError` with all faults."""
        names = {field.name.replace("_", ""): field.name for field in attrs.fields(cls)}
        # The key as it was written is kept, for the error.
        given = {key.lower().replace("_", ""): (key, value) for key, value in options.items()}
        values = {names[key]: value for key, (_, value) in given.items() if key in names}
        unknown = [key for word, (key, _) in given.items() if word not in names and not word.startswith(_OF_SPARK)]
        faults = [f"no such option: {key} (there are: {', '.join(names.values())})" for key in unknown]
        try:
            parsed = structure(cls, values, what="replog")
        except FaultsError as error:
            raise FaultsError("the options of format replog", [*faults, *error.faults]) from error
        if faults:
            raise FaultsError("the options of format replog", faults)
        return parsed

    # -- what they mean ---------------------------------------------------------------------------------------------

    def password(self) -> bytes:
        """The ledgers' password: what the file says, else `REPLOG_PASSWORD`, else none. Raises `ConfigError`."""
        return ledger_password(self.password_file, "password_file")

    def transaction(self) -> tuple[str, int] | None:
        """The transaction that `txn_id` names; None if it is not given."""
        return None if self.txn_id is None else (f"txn:{self.txn_id}", self.txn_version)

    # Read on each machine, and never pickled: secrets stay in files of the machine that uses them.
    def client_options(self) -> ClientOptions:
        """From the configuration file's table `client`, over that the variables `REPLOG_CLIENT_...` of this machine."""
        return load(
            ClientOptions,
            toml_path=self.config_file,
            table="client",
            environment=os.environ,
            prefix="REPLOG_CLIENT_",
        )

    def metastore_url(self) -> str:
        """The URL as given, but so that a misspelled directory is not created."""
        parsed = BackendURL.parse(self.metastore)
        if parsed.scheme != "lmdb" or "create" in parsed.options:
            return self.metastore
        return f"{self.metastore}{'&' if parsed.options else '?'}create=false"

    def quorum_of_ledgers(self) -> Quorum:
        """The quorum of the ledgers that are written."""
        return _parse_quorum(self.quorum)

    def run(self, function: Callable[[replog.Client], Awaitable[Value]]) -> Value:
        """Calls this async function with a client of these options, in a trio run of its own; returns what it returns. For a
        process of the user's: nothing of it is left."""
        return clients.run(
            self.metastore_url(), function, options=self.client_options(), quorum=self.quorum_of_ledgers()
        )

    def call(self, function: Callable[[replog.Client], Awaitable[Value]]) -> Value:
        """The same with the client that this process keeps for its next call. For a process of Spark's."""
        with self.worker() as worker:
            return worker.call(function)

    def worker(self) -> AbstractContextManager[clients.WorkerClient]:
        """The client that this process keeps for these options."""
        return clients.worker_client(
            self.metastore_url(), options=self.client_options(), quorum=self.quorum_of_ledgers()
        )
