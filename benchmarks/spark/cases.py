"""What is measured with Spark, and what is compared with what. Two tasks at once, rows of 100 bytes in one binary column."""

from __future__ import annotations

from collections.abc import Callable

import trio

import replog
from benchmarks.figures import Figures
from benchmarks.loads import LOG
from benchmarks.remote.place import Kind, RemotePlace
from benchmarks.setting import Comparison, NotMeasured, Round, Setting
from benchmarks.spark.cpu import tree_cpu_s
from benchmarks.spark.place import missing
from benchmarks.spark.rows import JSON_COLUMNS

_VALUE_BYTES = 100
_QUORUM = "3,3,2"
_ALONE = "1,1,1"  # each ledger on one bookie: what the format costs, with little of what replication does
_VALUES = "value binary"
_JSON_SHARE = 4  # so many times fewer rows with JSON
_ROW_BY_ROW_SHARE = 5  # so many times fewer rows, since each of them takes so much longer
_NOT_THERE: Round = {"not there": {}}


def write(setting: Setting) -> Round:
    """A job to a log and one to a sink that counts; the same rows by `foreachPartition`."""
    if missing():
        return _NOT_THERE
    rows, few = setting.scale.spark_rows, setting.scale.spark_rows // _ROW_BY_ROW_SHARE
    place = setting.remote(Kind())
    _warm_up(setting, place, few)
    return {
        "counted": _job(setting, place, "count", rows),
        "written": _written(setting, place, "write", rows, _QUORUM),
        "written alone": _written(setting, place, "write", rows, _ALONE),
        "row by row": _written(setting, place, "write_partitions", few, _QUORUM),
    }


def read(setting: Setting) -> Round:
    """All columns of a log, or only the values, and a source that has the same batches ready; the values in Parquet files."""
    if missing():
        return _NOT_THERE
    rows = setting.scale.spark_rows
    place = setting.remote(Kind())
    try:
        _job(setting, place, "write", rows, quorum=_QUORUM, **_log(place))
        _job(setting, place, "write_files", rows, kind="parquet")
        _check_read(setting, place, rows)
        _check_files(setting, rows)
        found = {
            f"{name} {what}": figures
            for what, columns in (("rows", None), ("values", _VALUES))
            for name, figures in (
                ("ready", _job(setting, place, "ready", rows, columns=columns)),
                ("read", _job(setting, place, "read", rows, columns=columns, **_log(place))),
            )
        }
        found["parquet values"] = _job(setting, place, "read_files", rows, columns=_VALUES, kind="parquet")
        return found
    finally:
        trio.run(_emptied, place)


def json_rows(setting: Setting) -> Round:
    """Rows of five columns as JSON to a log and back, and by Spark's own json files."""
    if missing():
        return _NOT_THERE
    rows = setting.scale.spark_rows // _JSON_SHARE
    place = setting.remote(Kind())
    try:
        _job(setting, place, "write_files", rows // _ROW_BY_ROW_SHARE, kind="json")  # as `_warm_up`
        _job(setting, place, "write", rows // _ROW_BY_ROW_SHARE, quorum=_QUORUM, values="json", **_log(place))
        trio.run(_emptied, place)
        files = _job(setting, place, "write_files", rows, kind="json")
        written = _job(setting, place, "write", rows, quorum=_QUORUM, values="json", **_log(place))
        same = setting.spark("same_json", rows=rows, **_log(place))
        if same != {"log": rows, "files": rows, "both": rows}:
            raise NotMeasured(f"of {rows} rows with JSON Spark reads {same}")
        return {
            "json files": files,
            "json written": written,
            "json files read": _job(setting, place, "read_files", rows, columns=JSON_COLUMNS, kind="json"),
            "json read": _job(setting, place, "read", rows, columns=JSON_COLUMNS, values="json", **_log(place)),
        }
    finally:
        trio.run(_emptied, place)


def long_job(setting: Setting) -> Round:
    """Many rows to a log and back, with what comes before the tasks, the tasks, and what comes after them."""
    if missing():
        return _NOT_THERE
    rows = setting.scale.spark_job_rows
    place = setting.remote(Kind())
    _warm_up(setting, place, setting.scale.spark_rows)
    try:
        counted = _job(setting, place, "count", rows)
        written = _job(setting, place, "write", rows, quorum=_QUORUM, **_log(place))
        _check_read(setting, place, rows)
        found = _job(setting, place, "read", rows, columns=None, **_log(place))
    finally:
        trio.run(_emptied, place)
    return {"counted": counted, "written": written, "read": found}


def _warm_up(setting: Setting, place: RemotePlace, rows: int) -> None:
    """Starts Spark's workers, and has Java compile what such jobs take: the first ones are ten times slower."""
    _job(setting, place, "count", rows)
    for job in ("write", "write_partitions"):
        _written(setting, place, job, rows // _ROW_BY_ROW_SHARE, _QUORUM)


def _log(place: RemotePlace) -> dict[str, str]:
    return {"metastore": place.metastore, "log": LOG}


def _job(setting: Setting, place: RemotePlace, job: str, rows: int, **arguments: str | None) -> Figures:
    """With the CPU time of Spark's processes and of the bookies."""
    roots = [setting.spark.process_id, *place.process_ids]
    before_s = tree_cpu_s(roots)
    figures = setting.spark(job, rows=rows, value_bytes=_VALUE_BYTES, **arguments)
    return {**figures, "total_cpu_us": (tree_cpu_s(roots) - before_s) / rows * 1e6}


def _written(setting: Setting, place: RemotePlace, job: str, rows: int, quorum: str) -> Figures:
    """Figures of a job that writes to bookies that have nothing else."""
    try:
        figures = _job(setting, place, job, rows, quorum=quorum, **_log(place))
        found = trio.run(_entries, place)
        if found != rows:
            raise NotMeasured(f"{found} entries were written, and not {rows}")
    finally:
        trio.run(_emptied, place)
    return figures


def _check_read(setting: Setting, place: RemotePlace, rows: int) -> None:
    found = setting.spark("look", metastore=place.metastore, log=LOG)
    if found != {"rows": rows, "bytes": rows * _VALUE_BYTES}:
        raise NotMeasured(f"Spark reads {found}, and not {rows} rows of {_VALUE_BYTES} bytes")


def _check_files(setting: Setting, rows: int) -> None:
    found = setting.spark("look_files", kind="parquet")
    if found != {"rows": rows, "bytes": rows * _VALUE_BYTES}:
        raise NotMeasured(f"Spark reads {found} of its files, and not {rows} rows of {_VALUE_BYTES} bytes")


async def _entries(place: RemotePlace) -> int:
    """How many there are in all logs, all ledgers of which must be closed."""
    found = 0
    async with replog.connect(place.metastore) as client:
        for name in await client.logs():
            for segment in await client.log_segments(name):
                record = await client.ledger_metadata(segment.ledger_id)
                if record.last_entry_id is None:
                    raise NotMeasured(f"ledger {record.ledger_id} of log {name} is open")
                found += record.last_entry_id + 1
    return found


async def _emptied(place: RemotePlace) -> None:
    """Leaving the client deletes all that there is, and has the bookies reuse their files."""
    async with place.client():
        pass


CASES: dict[str, Callable[[Setting], Round]] = {
    "spark-write": write,
    "spark-read": read,
    "spark-json": json_rows,
    "spark-job": long_job,
}
ONCE = {"spark-job"}


def _compared(
    case: str, title: str, measured: str, against: str, goal: float | None = None
) -> tuple[Comparison, Comparison]:
    return (
        Comparison(case, f"Spark: {title}", measured, against, "rows_per_s", "rows_per_s", "rows/s", goal),
        Comparison(
            case,
            f"Spark: {title}: CPU for a row",
            measured,
            against,
            "total_cpu_us",
            "total_cpu_us",
            "us",
            at_least=False,
        ),
    )


def _share(what: str, title: str, figure: str) -> Comparison:
    return Comparison("spark-job", f"Spark: long job, {what}: {title}", what, what, figure, "total_s", "s")


COMPARISONS = (
    *_compared("spark-write", "write, against a sink that counts", "written", "counted", 0.70),
    *_compared("spark-write", "the same, one copy of each entry", "written alone", "counted", 0.80),
    *_compared("spark-write", "write, against foreachPartition", "written", "row by row", 5.0),
    *_compared("spark-read", "read, against a source that is ready", "read rows", "ready rows", 0.60),
    *_compared("spark-read", "the same, only the values", "read values", "ready values", 0.90),
    *_compared("spark-read", "read values, against Parquet files", "read values", "parquet values", 1.0),
    *_compared("spark-read", "a source that is ready, against Parquet files", "ready values", "parquet values"),
    *_compared("spark-json", "write JSON, against json files", "json written", "json files", 0.60),
    *_compared("spark-json", "read JSON, against json files", "json read", "json files read", 0.60),
    Comparison(
        "spark-job", "Spark: long job, against counting", "written", "counted", "rows_per_s", "rows_per_s", "rows/s"
    ),
    *(
        _share(what, title, figure)
        for what in ("written", "read")
        for title, figure in (
            ("all", "total_s"),
            ("before its tasks", "planning_s"),
            ("its tasks", "tasks_s"),
            ("after its tasks", "commit_s"),
        )
    ),
)
