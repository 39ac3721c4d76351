"""Machines, and a storage's core, check themselves: at least one assertion for every two functions of more than one statement.

Counted are `assert` statements, and functions whose body has more than one statement besides the docstring: a property
that returns an attribute has nothing to check. Assertions are about bugs of our own. Mistakes of a peer, a disk or a
caller raise a named error instead, so modules of the protocol that only read or make bytes, or check answers, are not
counted.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.cases import case

SOURCE = Path(__file__).parents[2] / "src" / "replog"
READS_BYTES = {
    *("answers.py", "batch.py", "digest.py", "envelope.py", "frames.py", "greetings.py", "holding.py", "messages.py"),
    *("proofs.py", "wire.py"),
}
COUNTED = [
    *(path for path in sorted((SOURCE / "protocol").glob("*.py")) if path.name not in READS_BYTES),
    SOURCE / "bookie" / "commits.py",
    SOURCE / "bookie" / "groups.py",
    *(
        SOURCE / "backends" / "files" / f"{name}.py"
        for name in (
            "checkpoint",
            "entry_log",
            "index",
            "index_file",
            "index_page",
            "indexing",
            "journal",
            "record",
            "replay",
            "scanning",
            "spares",
            "stamp_sections",
        )
    ),
]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def counts(path: Path) -> tuple[int, int]:
    """The functions of more than one statement, and the assertions."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [node for node in functions if len([each for each in node.body if not is_docstring(each)]) > 1]
    return len(long), sum(isinstance(node, ast.Assert) for node in nodes)


def test_every_second_function_asserts() -> None:
    for path in COUNTED:
        with case(path):
            functions, assertions = counts(path)
            assert 2 * assertions >= functions - 1, f"{assertions} assertions in {functions} functions"
