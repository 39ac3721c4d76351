"""The modules of replog that a program has loaded, and their rooms."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded_after(script: str) -> set[str]:
    """The modules of replog that a new interpreter has after this script."""
    shown = "import json, sys\nprint(json.dumps([each for each in sys.modules if each.split('.')[0] == 'replog']))"
    done = subprocess.run([sys.executable, "-c", f"{script}\n{shown}"], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def rooms_of(modules: set[str]) -> set[str]:
    """The rooms of which there is more than the package: a package may name what it imports on demand."""
    return {each.split(".")[1] for each in modules if each.count(".") > 1}
