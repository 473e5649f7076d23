"""The output of `tritune db ls` and `tritune db show`, for people and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tritune.cli._terminal import console, table, warn
from tritune.store import FormatError, Store
from tritune.store.decide_winner import Winner
from tritune.store.document import to_json
from tritune.store.summary import Summary
from tritune.targets.device import Device

if TYPE_CHECKING:
    from tritune.policy.learning.learned import LearnedPolicy

#: (identity, device's fingerprint): results of one version of a kernel's code on one device.
Place = tuple[str, str]


def show_list(found: Sequence[Summary], devices: Mapping[str, Device], location: str) -> None:
    out = console()
    if not found:
        out.print(f"{escape(location)} holds no trials yet")
        return
    tasks = table(("kernel", "problem", "device"), ("trials", "failures", "best", "speed-up"))
    for each in found:
        tasks.add_row(
            escape(each.task.kernel),
            escape(problem_line(each.task.problem)),
            escape(devices[each.task.device].name),
            str(each.trials),
            str(sum(each.failures.values())),
            time_text(each.winner.ms if each.winner else None),
            _speedup_text(each.winner),
        )
    out.print(tasks)


def show_kernel(
    kernel: str,
    found: Sequence[Summary],
    devices: Mapping[str, Device],
    learned: Mapping[Place, LearnedPolicy],
) -> None:
    out = console()
    for place, group in _places(found):
        identity, fingerprint = place
        device = devices[fingerprint]
        out.print(
            f"[bold]{escape(kernel)}[/] on {escape(device.name)} ({device.target}), "
            f"code {escape(identity)}"
        )
        winners = table(("problem", "config"), ("best", "default", "speed-up", "samples"))
        for each in group:
            winners.add_row(escape(problem_line(each.task.problem)), *_winner_cells(each.winner))
        out.print(winners)
        out.print(f"  {_failure_line(group)}")
        for line in learned[place].describe() if place in learned else ["nothing learned yet"]:
            out.print(f"  learned policy: {escape(line)}")


def learned_policies(store: Store, found: Sequence[Summary]) -> dict[Place, LearnedPolicy]:
    """Return what the policy has learned of each version of a kernel on each device."""
    from tritune.policy.learning import saved

    policies = {}
    for (identity, device), group in _places(found):
        try:
            policy = saved.load(store, group[0].task.kernel, identity, device)
        except FormatError as error:
            warn(error)
            continue
        if policy is not None:
            policies[identity, device] = policy
    return policies


def summary_document(each: Summary, devices: Mapping[str, Device]) -> dict[str, Any]:
    return {
        "kernel": each.task.kernel,
        "identity": each.task.identity,
        "problem": json.loads(each.task.problem),
        "device": _device_document(each.task.device, devices),
        "trials": each.trials,
        "failures": each.failures,
        **_winner_document(each.winner),
    }


def kernel_document(
    kernel: str,
    found: Sequence[Summary],
    devices: Mapping[str, Device],
    learned: Mapping[Place, LearnedPolicy],
) -> dict[str, Any]:
    results = []
    for (identity, fingerprint), group in _places(found):
        policy = learned.get((identity, fingerprint))
        results.append(
            {
                "identity": identity,
                "device": _device_document(fingerprint, devices),
                "trials": sum(each.trials for each in group),
                "failures": _failures(group),
                "winners": [
                    {"problem": json.loads(each.task.problem), **_winner_document(each.winner)}
                    for each in group
                    if each.winner is not None
                ],
                "learned": policy
                and {
                    "regret": policy.regret and dict(vars(policy.regret)),
                    "problems": policy.problems,
                },
            }
        )
    return {"kernel": kernel, "results": results}


def problem_line(problem: str) -> str:
    """Return a problem as people read it: batch=1 causal=true."""
    fields = json.loads(problem)
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, separators=(',', ':'))}"
        for name, value in fields.items()
    )


def time_text(ms: float | None) -> str:
    if ms is None:
        return "unknown"
    return f"{ms * 1e3:.4g} us" if ms < 1 else f"{ms:.4g} ms"


def _device_document(fingerprint: str, devices: Mapping[str, Device]) -> dict[str, Any]:
    return {"fingerprint": fingerprint, **to_json(devices[fingerprint])}


def _winner_document(winner: Winner | None) -> dict[str, Any]:
    return {
        "config": winner and winner.config.to_json(),
        "best_ms": winner and winner.ms,
        "default_ms": winner and winner.default_ms,
        "speedup": winner and winner.speedup,
        "samples": winner.samples if winner else 0,
        "tied": winner.tied if winner else False,
    }


def _winner_cells(winner: Winner | None) -> tuple[str, ...]:
    if winner is None:
        return "none worked", "", "", "", ""
    default = "" if winner.default_ms is None else time_text(winner.default_ms)
    return (
        escape(str(winner.config)),
        time_text(winner.ms),
        default,
        _speedup_text(winner),
        str(winner.samples),
    )


def _speedup_text(winner: Winner | None) -> str:
    speedup = winner.speedup if winner else None
    return "" if speedup is None else f"{speedup:.2f}x"


def _failures(group: Sequence[Summary]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in group:
        total.update(each.failures)
    return dict(sorted(total.items()))


def _failure_line(group: Sequence[Summary]) -> str:
    trials = sum(each.trials for each in group)
    failures = _failures(group)
    reasons = ", ".join(f"{count} {reason}" for reason, count in failures.items())
    return f"{trials} trials; failures: {reasons or 'none'}"


def _places(found: Sequence[Summary]) -> list[tuple[Place, list[Summary]]]:
    def place(each: Summary) -> Place:
        return each.task.identity, each.task.device

    return [(key, list(group)) for key, group in groupby(sorted(found, key=place), place)]
