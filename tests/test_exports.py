"""What `import replog` offers is what docs/reference/api.md lists, and it costs no optional dependency."""

import re
import subprocess
import sys
from pathlib import Path

import replog

API_PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"

# A name is listed by a heading, a list item or a table row that begins with it: "### `replog.embed(...)`".
LISTED = re.compile(r"^(?:#+|[-*]|\|) *`(?:await |async with |with )?replog\.(\w+)[`(\[]", re.MULTILINE)


def test_the_page_lists_what_is_exported() -> None:
    assert sorted(set(LISTED.findall(API_PAGE.read_text(encoding="utf-8")))) == sorted(replog.__all__)


def test_no_name_is_exported_twice() -> None:
    assert len(set(replog.__all__)) == len(replog.__all__)


def test_exported_names_exist() -> None:
    assert [name for name in replog.__all__ if getattr(replog, name, None) is None] == []


def test_importing_replog_imports_no_optional_dependency() -> None:
    script = "import sys, replog; print(*sys.modules.keys() & {'kazoo', 'pyarrow', 'pyspark'})"
    done = subprocess.run([sys.executable, "-c", script], timeout=60, text=True, capture_output=True, check=True)
    assert done.stdout.split() == []
