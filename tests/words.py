"""Counts sentences that have to be read twice: `python -m tests.words` names the worst ones; `--all` names every one.

Three habits are counted, because all three hide who does what:

- sentences in docstrings of the sources that begin with What, Who, Those, Whoever or Whatever;
- docstrings of the sources that begin with "As `x`", where the reader needs to know what differs from `x`;
- names of tests with a relative pronoun.

The limits only ever go down. Counting does not replace reading: a sentence without these words may be as hard to read.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parent.parent
SOURCES = ("src/**/*.py", "plugins/*/src/**/*.py")
TESTS = ("tests/**/*.py", "plugins/*/tests/**/*.py", "benchmarks/**/*.py", "examples/**/*.py")

SHOWN = 10
_SENTENCE = re.compile(r"(?:\A|(?<=[.!?:]\s)|(?<=\n\n)|(?<=^- ))(?:What|Who|Those|Whoever|Whatever)\b", re.MULTILINE)
_AS = re.compile(r"\AAs `")
_PRONOUN = re.compile(r"_(?:who|whom|whose|that|which|what|whoever|whatever|whichever)(?=_|\Z)")


@attrs.frozen
class Found:
    """A place and its words."""

    place: str
    words: str


@attrs.frozen
class Habit:
    """One thing that is counted, with the most that a test allows."""

    name: str
    limit: int
    found: tuple[Found, ...]

    def report(self, shown: int) -> str:
        """The count, and the longest ones, one a line."""
        worst = sorted(self.found, key=lambda each: (-len(each.words), each.place))[:shown]
        lines = [f"{self.name}: {len(self.found)} (at most {self.limit})"]
        return "\n".join([*lines, *(f"  {each.place}: {each.words}" for each in worst)])


def habits() -> tuple[Habit, ...]:
    """The three counts of the tree as it is."""
    sentences: list[Found] = []
    references: list[Found] = []
    for place, text in _docstrings():
        sentences.extend(Found(place, _sentence(text, match.start())) for match in _SENTENCE.finditer(text))
        if _AS.match(text):
            references.append(Found(place, _sentence(text, 0)))
    names = [Found(place, name) for place, name in _tests() if _PRONOUN.search(name)]
    return (
        Habit("sentences in docstrings that begin with What, Who, Those, Whoever, Whatever", 40, tuple(sentences)),
        Habit('docstrings that begin with "As `x`"', 60, tuple(references)),
        Habit("names of tests with a relative pronoun", 40, tuple(names)),
    )


def _docstrings() -> Iterator[tuple[str, str]]:
    for path, node in _nodes(SOURCES):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text


def _tests() -> Iterator[tuple[str, str]]:
    for path, node in _nodes(TESTS):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{path.relative_to(ROOT)}:{node.lineno}", node.name


def _nodes(patterns: tuple[str, ...]) -> Iterator[tuple[Path, ast.AST]]:
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
                yield path, node


def _sentence(text: str, start: int) -> str:
    """The sentence of the text that begins here, on one line."""
    end = re.compile(r"[.!?](?=\s|\Z)|\n\n|\Z").search(text, start)
    assert end is not None, "the pattern matches at the end of any text"
    return " ".join(text[start : end.end()].split())


def main() -> None:
    """Prints the three counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__.partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="name every one, not only the longest ones")
    shown = None if parser.parse_args().all else SHOWN
    for habit in habits():
        print(habit.report(len(habit.found) if shown is None else shown))


if __name__ == "__main__":
    main()
