"""Update rules: one per file, the formula on top; `rule.py` has what they share."""

from __future__ import annotations

from poseidon.solver.rules.registry import RULES, rule_for
from poseidon.solver.rules.rule import Hyper, Rule, Slot

__all__ = ["RULES", "Hyper", "Rule", "Slot", "rule_for"]
