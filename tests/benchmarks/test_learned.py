"""The comparison of rules for untuned problems learns without what it asks for."""

from __future__ import annotations

import json

import pytest

from benchmarks import learned
from tritune.policy.learning.measured import Measured
from tritune.space import Config


def test_each_rule_answers_problems_that_it_has_not_seen() -> None:
    rows = learned.generated(60)
    seen: list[set[int]] = []

    def rule(known: list[Measured]) -> learned.Ranked:
        seen.append({id(row) for row in known})
        return lambda fields: [Config.of(TILE=9)]

    answers = list(learned.held_out(rows, rule))
    assert len(answers) == 60
    assert {id(row) for row, _, _ in answers} == {id(row) for row in rows}
    assert all(len(known) == 48 for known in seen)
    # What nobody has measured has no evidence.
    assert all(first == Config.of(TILE=9) and call == row.default for row, first, call in answers)


def test_the_figures_are_printed_for_each_rule(capsys: pytest.CaptureFixture[str]) -> None:
    learned.main(["--json", "--data", "/nowhere"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"nearest", "portfolio"} <= {line["rule"] for line in lines}
    timed = [line for line in lines if line["source"] == "generated"]
    assert all(-1 < line["mean, default"] < 0 for line in timed)
