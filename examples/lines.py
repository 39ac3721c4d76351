"""Keeps the lines of standard input, and prints where each one is kept. Ctrl-C ends it: what was printed stays.

python examples/lines.py DIRECTORY < FILE
"""

from __future__ import annotations

import sys

from replog import blocking


def main(directory: str) -> None:
    with blocking.embed(directory) as client, client.write_log("lines") as log:
        for line in sys.stdin:
            position = log.append(line.rstrip("\n").encode())
            print(position, flush=True)  # from here on it survives everything


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:  # raised in the loop; the blocks above were left on it, and have closed the log
        sys.exit(130)
