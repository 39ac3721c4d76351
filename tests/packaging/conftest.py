"""The wheel and the sdist of this tree, and an environment that has only the wheel and what it declares."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import attrs
import pytest

from tests.packaging.sites import ROOT, link, needed_by, requirements_of


@attrs.frozen
class Built:
    """What hatchling has made of this tree, and the wheel that it made of the sdist."""

    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


@attrs.frozen
class Installed:
    """A virtual environment without pip. `site` has the wheel, and links to what the wheel needs without any extra."""

    directory: Path
    site: Path

    def run(self, *command: str, also: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment. Of the environment of the tests it sees the packages in `also`, if any."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REPLOG_"))}
        environment |= {"COLUMNS": "120", "TERM": "dumb"}
        if also is not None:
            environment["PYTHONPATH"] = str(also)
        program = self.directory / "bin" / command[0]
        return subprocess.run(
            [str(program), *command[1:]],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            cwd=self.directory,
        )


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built with the hatchling of this environment: pip would ask an index for one."""
    directory = tmp_path_factory.mktemp("built")
    _build(ROOT, directory, "sdist", "wheel")
    (sdist,) = directory.glob("*.tar.gz")
    (directory / "unpacked").mkdir()
    # Before Python 3.11.4, tarfile has no filter for what leads out of the directory.
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(directory / "unpacked")], check=True, timeout=120)
    (unpacked,) = (directory / "unpacked").iterdir()
    _build(unpacked, directory / "again", "wheel")
    return Built(sdist, next(directory.glob("*.whl")), next((directory / "again").glob("*.whl")))


def _build(source: Path, target: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *(f"-t{kind}" for kind in kinds)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="session")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new virtual environment with the wheel, installed by pip, and what it needs."""
    directory = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(directory, with_pip=False, symlinks=True)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    install = [*pip, "install", "--no-index", "--no-deps", "--no-compile", str(built.wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    (site,) = (directory / "lib").glob("python3*/site-packages")
    link(needed_by(requirements_of()).values(), site)
    return Installed(directory, site)


@pytest.fixture(scope="session")
def extra_cli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the extra `cli` brings."""
    site = tmp_path_factory.mktemp("cli")
    link(needed_by(requirements_of("cli")).values(), site)
    return site
