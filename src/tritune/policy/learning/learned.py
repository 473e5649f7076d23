"""The policy for problems that were not tuned: the nearest problems' winners, on evidence.

It answers where measurements say that the answer is no slower than the kernel's default
(`evidence.py`), and says how well: its regret on problems that were held out while it learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritune.policy.learning.evidence import Evidence
from tritune.policy.learning.held_out import AgainstDefault, Regret, held_out
from tritune.policy.learning.measured import Measured, Valid, digest
from tritune.policy.nearest import Fields
from tritune.space import Config

#: With fewer problems than these, none is held out.
FEWEST_PROBLEMS = 5
#: Answers are trusted after so many for held-out problems that were not the default...
FEWEST_ANSWERS = 3
#: ... none of which was slower than the default by more than this share of its time.
NOISE = 0.05


@dataclass(frozen=True)
class LearnedPolicy:
    kernel: str
    identity: str
    #: The device's fingerprint.
    device: str
    evidence: Evidence
    #: Of the nearest problems' configs; None where there were too few problems to hold any out.
    regret: Regret | None
    #: Of the answers that calls get; None likewise.
    held_out: AgainstDefault | None
    problems: int
    #: A digest of the data it was learned from.
    data: str

    @property
    def trusted(self) -> bool:
        """Return whether held-out answers were measured to be no slower than the default."""
        held_out = self.held_out
        if held_out is None or held_out.answers < FEWEST_ANSWERS:
            return False
        return held_out.slower <= NOISE

    def answer(self, fields: Fields, default: Config, valid: Valid) -> Config | None:
        """Return the config for a problem that was not measured and whose default is this; None
        where nothing is known to be better.
        """
        return self.evidence.answer(fields, default, valid) if self.trusted else None

    def describe(self) -> list[str]:
        """Say in lines for people what can be expected of the policy."""
        count = len({config for _, config in self.evidence.winners})
        lines = [
            f"the nearest problem's, of {count} config{'s' * (count != 1)}, "
            f"learned from {self.problems} problem{'s' * (self.problems != 1)}"
        ]
        regret = self.regret
        if regret is None or not regret.measured:
            lines.append("regret on held-out problems: unknown, too little was measured")
        else:
            lines.append(
                f"regret on held-out problems: mean {regret.mean:.1%}, 95th percentile "
                f"{regret.p95:.1%} ({regret.measured} of {regret.problems} answers were measured)"
            )
        lines.append(f"problems that were not tuned: {self.answers}")
        return lines

    @property
    def answers(self) -> str:
        """Say what problems that were not tuned run with."""
        if self.trusted:
            return (
                "one of these configs where measurements on both sides speak for it, else the "
                "default"
            )
        why = "too little was measured to know better"
        if self.held_out is not None and self.held_out.slower > NOISE:
            why = f"a held-out answer was {self.held_out.slower:.0%} slower than it"
        return f"the default config, as {why}"

    def to_json(self) -> dict[str, Any]:
        regret, held_out = self.regret, self.held_out
        return {
            "kernel": self.kernel,
            "identity": self.identity,
            "device": self.device,
            "problems": self.problems,
            "regret": None if regret is None else dict(vars(regret)),
            "held_out": None if held_out is None else dict(vars(held_out)),
            "data": self.data,
            "evidence": self.evidence.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LearnedPolicy:
        return LearnedPolicy(
            kernel=data["kernel"],
            identity=data["identity"],
            device=data["device"],
            evidence=Evidence.from_json(data["evidence"]),
            regret=None if data["regret"] is None else Regret(**data["regret"]),
            held_out=None if data["held_out"] is None else AgainstDefault(**data["held_out"]),
            problems=data["problems"],
            data=data["data"],
        )


def fit(
    rows: Sequence[Measured], valid: Valid, kernel: str, identity: str, device: str
) -> LearnedPolicy | None:
    """Learn from everything that was measured; None from nothing."""
    if not rows:
        return None
    regret, called = held_out(rows, valid) if len(rows) >= FEWEST_PROBLEMS else (None, None)
    return LearnedPolicy(
        kernel, identity, device, Evidence.of(rows), regret, called, len(rows), digest(rows)
    )
