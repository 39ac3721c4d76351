"""`replog`: the command. Needs the packages of the extra `cli`.

Exit status: 0 success; 1 failure (for `demo` also: a confirmed entry was missing, doubled, changed or out of order, or an act
did not happen as planned; for `inspect` and `bookie info` also: something is damaged or unreadable); 2 the request is invalid:
wrong usage or configuration, a missing extra, a path with nothing to inspect, a directory that `bookie format` refuses; 128 + n
stopped by signal n, even if the reason is that nobody reads the output any more (141, SIGPIPE).
Errors are one line on standard error; standard output has results only.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import NoReturn

__all__ = ["main"]

# The packages of the extra `cli` that the command imports. `pip install replog` alone does not bring them.
_PACKAGES = ("rich", "structlog", "typer")


def main() -> NoReturn:
    """The console script."""
    # Looked for, not imported: most commands start without structlog and rich.
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        installs = "pip install 'replog[cli]'"
        print(f"replog: the command needs {', '.join(missing)}, not installed here. Type: {installs}", file=sys.stderr)
        sys.exit(2)
    from replog.cli.commands import run

    run()
