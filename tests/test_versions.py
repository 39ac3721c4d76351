"""The package's classifiers say which versions of Python were tested, and `make test-versions` finds interpreters."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests import versions

ROOT = Path(__file__).parent.parent
OURS = versions.series_of(sys.executable)


def test_classifiers_are_the_tested_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    assert tuple(classified) == versions.TESTED
    assert project["requires-python"] == f">={versions.TESTED[0]}"


def test_series_is_none_when_an_interpreter_does_not_run(tmp_path: Path) -> None:
    assert OURS in {*versions.TESTED, *versions.NEWER}
    shim = tmp_path / "python3.13"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert versions.series_of(str(shim)) is None
    assert versions.series_of(str(tmp_path / "absent")) is None


def test_interpreters_come_from_pyenv_behind_a_dead_shim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands, prefix = tmp_path / "commands", tmp_path / "prefix"
    for directory in (commands, prefix / "bin"):
        directory.mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(sys.executable)
    pyenv = f"#!/bin/sh\nif [ $1 = versions ]; then echo 2.7.18; echo {OURS}.99; else echo {prefix}; fi\n"
    for name, script in (("pyenv", pyenv), (f"python{OURS}", "#!/bin/sh\nexit 127\n")):
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.delenv("PYTHONS", raising=False)
    assert list(versions.interpreters()) == [(OURS, f"{prefix}/bin/python")]


def test_variable_names_the_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONS", sys.executable)
    assert list(versions.interpreters()) == [(OURS, sys.executable)]
    monkeypatch.setenv("PYTHONS", "/no/such/python")
    with pytest.raises(SystemExit, match="PYTHONS names /no/such/python"):
        list(versions.interpreters())
