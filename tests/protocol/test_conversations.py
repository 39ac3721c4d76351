"""Every committed conversation still runs exactly as it is written.

After a change that is meant: `python -m tests.simulator --rewrite tests/protocol/conversations/*.txt`, and
read the difference before it is committed.
"""

from pathlib import Path

import attrs
import pytest

from tests.simulator import conversation

FILES = sorted((Path(__file__).parent / "conversations").glob("*.txt"))


def test_there_are_conversations() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_conversation_runs_as_written(path: Path) -> None:
    written = conversation.read(path)
    _, said = written.run()
    assert said.lines == written.lines
    assert str(said) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [path for path in FILES if path.stem.endswith("-not")], ids=lambda path: path.stem)
def test_the_bug_makes_the_difference(path: Path) -> None:
    """The same schedule breaks a rule with the bug, and none without it."""
    written = conversation.read(path)
    assert written.mutant
    assert written.expect
    assert attrs.evolve(written, mutant="").run()[1].expect == ""
