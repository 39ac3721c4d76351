"""Labels of bookies: `NAME=VALUE`, such as `zone=a` or `rack=r1`. Placement policies give them their meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?", re.ASCII)
_NAME_CHARACTERS_MAX = 64
_VALUE_CHARACTERS_MAX = 256
LABELS_MAX = 32  # of one bookie: every client reads them, in its announcement


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """The labels in texts like "zone=a". A text without "=" has the value "". Checked by `check_labels`."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def check_labels(texts: Any) -> str | None:
    """The fault of these texts, or None: for an option."""
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
        return f"{texts!r} must be texts such as zone=a"
    names = [text.partition("=")[0] for text in texts]
    # Looked for before `parse_labels`, which would silently keep the last one.
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return f"label {twice[0]} is given twice"
    without = [text for text in texts if "=" not in text]
    if without:
        return f"{without[0]!r} must be NAME=VALUE, as zone=a"
    return fault_of_labels(parse_labels(texts))


def fault_of_labels(labels: Mapping[Any, Any]) -> str | None:
    """The fault of these labels, or None."""
    if len(labels) > LABELS_MAX:
        return f"{len(labels)} labels are given, and a bookie has at most {LABELS_MAX}"
    for name, value in labels.items():
        # Types are checked, too: labels of plugins come here as they are, while those of options were structured.
        if not isinstance(name, str) or len(name) > _NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
            return f"the name of a label must be up to {_NAME_CHARACTERS_MAX} letters, digits, '_', '.', '/' or '-', not {name!r}"
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _VALUE_CHARACTERS_MAX:
            return f"label {name} must have a printable value of 1 to {_VALUE_CHARACTERS_MAX} characters, not {value!r}"
    return None
