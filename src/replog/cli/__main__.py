"""`python -m replog.cli`: the command, where no script is installed."""

from __future__ import annotations

from replog.cli import main

if __name__ == "__main__":
    main()
