"""What a mutant of the source is: a small wrong change, why it is dangerous, and the tests that should see it."""

from __future__ import annotations

from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "replog"


@attrs.frozen
class SourceMutant:
    """Other text at one place of a file under `src/replog`. `old` must be there exactly once.

    `tests` are given to pytest one after the other, until one run fails: that is the mutant's end."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    def changed(self, text: str) -> str:
        """The file's text with the mistake. Raises ValueError if the code has outgrown the mutant."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: {self.file} has {count} times {self.old!r}: mend this mutant")
        return text.replace(self.old, self.new)
