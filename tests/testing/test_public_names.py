"""What `replog.testing` offers is documented, and costs nothing until it is used."""

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from replog import testing
from tests.reference import documented

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "testing.md"


@pytest.mark.parametrize("name", testing.__all__)
def test_a_public_name_exists_and_is_listed(name: str) -> None:
    assert getattr(testing, name).__doc__
    assert documented()[f"replog.testing.{name}"] == {"testing"}


def test_every_fault_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in attrs.asdict(testing.Faults.none()) if f"`{name}`" not in page] == []


def test_every_member_of_a_cluster_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    members = [*vars(testing.SimulatedCluster), *vars(testing.SimulatedBookie)]
    public = [name for name in members if not name.startswith("_")]
    assert len(public) > 15
    assert [name for name in public if f"`{name}" not in page and f"await {name}(" not in page] == []


def test_importing_replog_imports_no_tests() -> None:
    script = "import sys, replog; sys.exit(any(each.startswith('replog.testing') for each in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
