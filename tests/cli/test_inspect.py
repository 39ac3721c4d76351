"""`replog inspect`: what people see, what programs get, and the exit status."""

import json
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from replog import cli
from replog.cli.inspect.ledger import as_time, preview
from replog.cli.output import as_size
from tests import forks
from tests.backends.files.inspecting.places import SECRET, flip, golden, make_compacted, make_filled, traces
from tests.backends.lmdb.test_inspecting import make_storage as make_lmdb_storage
from tests.forks import Forked

COMMAND = [sys.executable, "-m", "replog.cli"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Runs the command in this process: its exit status, output and errors."""
    arguments = ("replog", *map(str, arguments))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", list(arguments))
        cli.main()
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return int(ended.value.code or 0), shown.out, shown.err


def lines_of(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


EVERYTHING = [
    ["inspect", "journal"],
    ["inspect", "journal", "--records"],
    ["inspect", "entry-log"],
    ["inspect", "entry-log", "--records"],
    ["inspect", "index"],
    ["inspect", "index", "--batches", "--verify"],
    ["bookie", "info"],
    ["inspect", "ledger", "1"],
    ["inspect", "ledger", "1", "--entries"],
]


def at(command: list[str], path: Path) -> list[str]:
    return [*command[:2], str(path), *command[2:]]


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with everything in it, to look at only."""
    path = tmp_path_factory.mktemp("compacted") / "st"
    make_compacted(path)
    return path


@pytest.mark.parametrize("command", EVERYTHING, ids=" ".join)
def test_a_whole_storage(capsys: pytest.CaptureFixture[str], compacted: Path, command: list[str]) -> None:
    before = traces(compacted)
    status, shown, errors = run(capsys, *at(command, compacted))
    assert (status, errors) == (0, "")
    assert len(shown.splitlines()) > 3
    assert "damage:" not in shown
    status, machine, errors = run(capsys, *at(command, compacted), "--json")
    assert (status, errors) == (0, "")
    for text in (shown, machine):
        assert SECRET.decode() not in text
        assert SECRET.hex() not in text
    is_listing = len(command) > 2
    assert all("kind" in line for line in lines_of(machine)) if is_listing else isinstance(json.loads(machine), dict)
    assert traces(compacted) == before


def test_the_journal_for_programs(capsys: pytest.CaptureFixture[str], compacted: Path) -> None:
    _, output, _ = run(capsys, "inspect", "journal", compacted, "--json")
    document = json.loads(output)
    assert set(document) == {"path", "bookie_id", "version", "files", "problems"}
    current = next(file for file in document["files"] if file["state"] == "current")
    assert {"number", "used_bytes", "groups", "first_sequence", "last_sequence", "epoch"} <= set(current)
    _, output, _ = run(capsys, "inspect", "journal", compacted, "--records", "--json", "--from", current["number"])
    lines = lines_of(output)
    records = [line for line in lines if line["kind"] == "record"]
    assert len(records) == current["records"]
    assert lines[-1]["kind"] == "summary"
    assert next(line["number"] for line in lines if line["kind"] == "file") == current["number"]


def test_damage_is_named_and_is_status_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_filled(tmp_path / "st")
    journal = tmp_path / "st" / "journal" / "000000000001.journal"
    flip(journal, 9000)
    status, shown, errors = run(capsys, "inspect", "journal", tmp_path / "st")
    assert (status, errors) == (1, "")
    assert f"{journal} at " in shown
    assert ": damage: " in shown
    status, shown, _ = run(capsys, "inspect", "journal", tmp_path / "st", "--records")
    assert status == 1
    assert [line for line in shown.splitlines() if line.endswith("BAD")]
    status, shown, _ = run(capsys, "inspect", "journal", tmp_path / "st", "--json")
    assert status == 1
    assert [problem["kind"] for file in json.loads(shown)["files"] for problem in file["problems"]] == ["damage"]
    assert run(capsys, "inspect", "index", journal.with_suffix(".index"), "--verify")[0] == 1
    assert run(capsys, "inspect", "index", journal.with_suffix(".index"))[0] == 0


def test_a_torn_tail_is_status_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Neither the catalog nor the mark knows the last group."""
    path = golden(tmp_path / "st")
    _, output, _ = run(capsys, "inspect", "journal", path, "--json")
    flip(path / "journal" / "000000000001.journal", json.loads(output)["files"][0]["used_bytes"] - 1)
    status, shown, _ = run(capsys, "inspect", "journal", path)
    assert status == 0
    assert "torn tail" in shown


def test_one_ledger(capsys: pytest.CaptureFixture[str], compacted: Path) -> None:
    _, output, _ = run(capsys, "inspect", "ledger", compacted, "1", "--json")
    *batches, ledger = lines_of(output)
    assert {line["kind"] for line in batches} == {"batch"}
    assert (ledger["kind"], ledger["has_key"], ledger["holes"], ledger["is_deleted"]) == ("ledger", True, [], False)
    _, output, _ = run(capsys, "inspect", "ledger", compacted, "1", "--entries", "--json")
    entries = [line for line in lines_of(output) if line["kind"] == "entry"]
    assert [entry["entry_id"] for entry in entries] == list(range(len(entries)))
    assert str(entries[5]["preview"]).startswith("1/5/1 ")
    status, output, _ = run(capsys, "inspect", "ledger", compacted, "1", "--raw", "5")
    assert (status, output) == (0, "1/5/1 ".ljust(1000, "."))
    status, output, errors = run(capsys, "inspect", "ledger", compacted, "1", "--raw", "5", "--stamp", "2")
    assert (status, output) == (1, "")
    assert errors.startswith("replog: ledger 1: entry 5: ")
    assert run(capsys, "inspect", "ledger", compacted, "77")[0] == 1
    deleted, shown, _ = run(capsys, "inspect", "ledger", compacted, "2")
    assert deleted == 0
    assert "fenced permanently" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "journal", "/nowhere"],
        ["inspect", "journal", "/etc"],
        ["inspect", "journal", "/etc/passwd"],
        ["inspect", "index", "/etc/passwd"],
        ["inspect", "entry-log", "/dev/null"],
        ["inspect", "ledger", "/etc", "1"],
        ["inspect", "ledger", "/etc", "one"],
        ["inspect", "ledger", "/etc", "1", "--raw", "1", "--json"],
        ["inspect", "ledger", "/etc", "1", "--stamp", "1"],
        ["inspect", "journal"],
        ["inspect", "nonsense", "/etc"],
        ["bookie", "info", "/etc"],
        ["bookie", "info", "/dev/null"],
        ["bookie", "format", "/etc"],
        ["bookie", "format", "/dev/null"],
    ],
    ids=" ".join,
)
def test_impossible_arguments_end_with_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, output, errors = run(capsys, *arguments)
    assert (status, output) == (2, "")
    assert errors


def test_nothing_is_opened_for_writing(compacted: Path) -> None:
    """An audit hook sees every file that is opened, and every change of a directory, of the whole process."""
    script = f"""
import os, sys
changes = []
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def watch(event, arguments):
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, (str, bytes)) and {str(compacted)!r} in os.fsdecode(path) and flags & WRITING:
            changes.append((event, path, flags))
    elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime", "os.chmod", "fcntl.flock",
                   "fcntl.lockf", "fcntl.fcntl", "os.link", "os.symlink"):
        changes.append((event, *arguments))
sys.addaudithook(watch)
from replog import cli
seen = len(changes)
for command in {[at(command, compacted) for command in EVERYTHING]!r}:
    sys.argv = ["replog", *command]
    try:
        cli.main()
    except SystemExit as ended:
        assert not ended.code, command
assert changes[seen:] == [], changes[seen:]
"""
    done = forks.run([sys.executable, "-c", script], timeout=120)
    assert done.stderr == ""
    assert done.returncode == 0


def test_inspection_ends_when_its_reader_leaves(compacted: Path) -> None:
    command = [*COMMAND, "inspect", "journal", str(compacted), "--records", "--json"]
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["kind"] == "record"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 141)  # 0 if all of it fitted into the pipe


def test_a_terminal_gets_progress_on_standard_error_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_filled(tmp_path / "st")
    script = (
        "import sys; from replog.cli import output; output._PROGRESS_AFTER_S = -1.0; from replog import cli;"
        f"sys.argv = ['replog', 'inspect', 'journal', {str(tmp_path / 'st')!r}, *sys.argv[1:]]; cli.main()"
    )
    shown = {}
    for name, arguments in (("people", []), ("programs", ["--json"])):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            environment = {**os.environ, "TERM": "xterm"}
            command = [sys.executable, "-c", script, *arguments]
            done = forks.run(command, text=False, stderr=theirs, env=environment)
            os.set_blocking(ours, False)
            shown[name] = terminal.read() or b""
            os.close(theirs)
        assert done.returncode == 0
        assert b"\x1b" not in done.stdout
    assert b"journal" in shown["people"]
    assert shown["programs"] == b""


def test_previews() -> None:
    assert preview(b"") == ("utf8", "")
    assert preview(b"a line\n") == ("utf8", "a line\n")
    assert preview(b"\x1b[31mred") == ("hex", b"\x1b[31mred".hex())
    assert preview(b"\xff\xfe") == ("hex", "fffe")
    assert preview(b"a" * 63 + "é".encode()) == ("utf8", "a" * 63)
    assert preview(b"a" * 62 + "é".encode()[:1]) == ("hex", (b"a" * 62 + b"\xc3").hex())


def test_sizes_and_times() -> None:
    assert [as_size(size) for size in (0, 1023, 1024, 1536, 5 << 40, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 TiB",
        "5120.0 TiB",
    ]
    assert as_time(0) == "1970-01-01T00:00:00Z"
    assert as_time((1 << 63) - 1).startswith("2262-")
    assert as_time(-(1 << 63)).startswith("1677-")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may do less")
def test_inspection_works_with_read_permission_only() -> None:
    """Not the owner: no time of access can be avoided, nothing can be written; what may not be read is said in one line."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        make_compacted(path / "st")
        make_filled(path / "secret")
        (path / "secret" / "journal" / "000000000002.journal").chmod(0o600)
        make_filled(path / "closed")
        (path / "closed" / "journal").chmod(0o700)
        script = f"""
import os, sys
from replog import cli
def run(*command):
    sys.argv = ["replog", *command]
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code or 0
for user in (0, 65534):  # first with all rights: then everything is imported
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    for command in {[at(command, path / "st") for command in EVERYTHING]!r}:
        assert run(*command) == 0, command
for name in ("secret", "closed"):
    for command in {[at(command, path / "NAME") for command in EVERYTHING]!r}:
        assert run(*(word.replace("NAME", name) for word in command)) == 1 or command[1] == "index", command
assert run("bookie", "format", {str(path / "new")!r}) in (1, 2)
"""
        done = forks.run([sys.executable, "-c", script], timeout=120)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "Permission denied" in done.stdout + done.stderr


def test_a_storage_in_lmdb(tmp_path: Path) -> None:
    """Its bookie info and its ledgers; what LMDB can't even read ends in one line, though it kills its process."""
    make_lmdb_storage(tmp_path)

    def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = forks.run([*COMMAND, *arguments])
        assert "Traceback" not in done.stderr
        return done

    path = str(tmp_path)
    done = run_alone("inspect", "ledger", path, "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    *batches, ledger = lines_of(done.stdout)
    assert (len(batches), ledger["has_key"], ledger["fence_term"]) == (22, True, 3)
    assert run_alone("inspect", "ledger", path, "1", "--raw", "7").stdout.startswith("1/7/1 ")
    assert run_alone("inspect", "ledger", path, "9").returncode == 1
    for command in ("journal", "entry-log", "index"):
        done = run_alone("inspect", command, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "of it there are `inspect ledger` and `bookie info`" in done.stderr
    assert run_alone("bookie", "info", path, "--journal-dir", path).returncode == 2
    data = (tmp_path / "data.mdb").read_bytes()
    (tmp_path / "data.mdb").write_bytes(data[: 3 * 4096])
    for arguments in (("bookie", "info", path), ("inspect", "ledger", path, "1")):
        done = run_alone(*arguments)
        assert done.returncode == 1
        assert f"replog: {tmp_path}/data.mdb is damaged at " in done.stderr
