"""The code on the README runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^<!-- run -->\n+```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_page_has_code() -> None:
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_code_on_the_page_runs(script: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
