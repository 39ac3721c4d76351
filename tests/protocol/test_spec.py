"""Each rule of the protocol has a test that cites it: the tests stand in test_spec_*.py, by group of rules.

A test of rule W2 is named `test_w2_...`, and its docstring begins with "W2". The rules of bookies that need disks
(B1, B3-B6), of metadata layouts (M2, M3) and of choosing bookies (C8) are tested where those are built.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.cases import case

RULES = {
    "T1": "fencing is an integer; a lower term is refused, an equal or higher one raises the fence durably",
    "T2": "a bounded ledger has two terms: its writer's, and that of everybody who recovers it",
    "T3": "an entry's identity is (ledger, id, stamp), and has one payload for ever",
    "W1": "entry e is stored on the indices (e + w) mod E; indices count, never addresses",
    "W2": "confirmed: an ack quorum made it durable, and every lower id is confirmed",
    "W3": "the bytes are built once, with an authentication code over all fields",
    "W4": "a failed add never says 'not written'; fenced is an unknown outcome",
    "W5": "an idle writer publishes its last add confirmed",
    "W6": "every wait ends in a named error",
    "W7": "what a member lacks since its index failed is recorded",
    "W8": "closes, rolls and takeovers wait for all copies, if the write quorum is guaranteed",
    "C1": "one change at a time; completions freeze at its start",
    "C2": "replacements are not in the ensemble already; the fragment starts at the last add confirmed + 1",
    "C3": "nothing is sent to, or counted from, the new ensemble before the CAS",
    "C4": "on conflict: OPEN tries again, IN_RECOVERY and CLOSED end the writer",
    "C5": "all pending entries belong to the new fragment; acks of replaced indices are dropped",
    "C6": "a late ack from a replaced bookie counts for nothing",
    "C7": "an ensemble may name a known bookie that is away, as long as every write set can be written and recovered",
    "C8": "a bookie that is there is preferred to one that is away",
    "C9": "a failed index does not stop confirmations by the others, and does not count before its change has ended",
    "R1": "a writer closes at its last add confirmed",
    "R2": "fence until each write quorum is covered",
    "R3": "no answer to a fencing request before key and fence are durable",
    "R4": "answers are three-valued; unknown never closes a ledger shorter",
    "R5": "recovery writes carry a frozen last add confirmed",
    "R6": "recovery's own ensemble becomes visible only in its closing CAS",
    "R7": "nothing past the last entry is readable after close",
    "R8": "an empty ledger closes at -1",
    "R9": "recovery reads ask the ensemble as it stood when recovery began",
    "R10": "a positive always wins; absence needs proven denials after everybody who can be reached was heard",
    "R12": "while nothing can be decided, whoever was silent or could not tell is asked again",
    "D1": "a normal open does not fence, and reads up to what it knows to be confirmed",
    "D2": "a bad, missing or late copy sends the read to the next bookie",
    "D3": "two readers never see different bytes for one id, nor a gap, nor another order",
    "B2": "one order per ledger for adds and fences",
    "B7": "only who knows the password writes, fences or reads",
    "B8": "a bookie vouches only for what it can: in doubt its denials are weak, and it takes no plain adds",
    "B8a": "a bookie that was declared lost is neither waited for nor counted, and all others must be heard",
    "M1": "every change is a CAS; a lost answer is resolved by reading back",
    "L1": "taking over recovers the last two ledgers, and serves nothing before the CAS",
    "L2": "rolling: create, CAS the list, then close the previous",
    "L3": "trimming: CAS the list first; segment numbers are never reused",
    "L4": "positions are ordered, printable and stable",
    "L5": "a deposed leader learns it, and nothing of its is confirmed afterwards",
    "L6": "readers cross ledgers in list order",
    "L8": "the log's record names the first segment that may be open; a takeover recovers all from there",
}

HERE = Path(__file__).parent


@cache
def cited_rules() -> list[tuple[str, str, str]]:
    """(rule, function, docstring) of all tests in test_spec_*.py."""
    found = []
    for path in sorted(HERE.glob("test_spec_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.append(
                    (node.name.split("_")[1].upper().replace("B8A", "B8a"), node.name, ast.get_docstring(node) or "")
                )
    return found


def test_each_rule_has_a_test() -> None:
    for rule in RULES:
        with case(rule):
            assert [name for cited, name, _ in cited_rules() if cited == rule]


def test_each_test_cites_the_rule_in_its_name() -> None:
    for rule, name, docstring in cited_rules():
        assert rule in RULES, f"{name} names no rule"
        assert re.match(rf"{rule}\b", docstring), f"the docstring of {name} must begin with {rule}"
