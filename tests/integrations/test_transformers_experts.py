"""A mixture of experts: the choice of experts is recorded, and replayed where it must be the same.

In half precision rounding decides between experts whose scores are nearly equal, in `eager` as well
as in tritune, and one such token changes its logits by as much as the experts differ. What is left
when every run uses the same experts is rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.integrations.families import logits, make
from tests.integrations.families import prompt as make_prompt
from tritune.testing import assert_within_rule

FAMILIES = ["gpt_oss", "mixtral"]
PROMPTS = [make_prompt(40, seed=seed) for seed in range(4)]


@contextmanager
def routed(model: Any, chosen: Sequence[torch.Tensor] | None = None) -> Iterator[list[Any]]:
    """Yield a list of (scores of all experts, chosen experts), one entry for each router that runs.

    With `chosen` the routers choose those experts, weighted by the scores of this run.
    """
    seen: list[Any] = []

    def record(router: Any, inputs: Any, outputs: Any) -> Any:
        scores, weights, experts = outputs
        if chosen is not None:
            experts = chosen[len(seen)]
            weights = scores.gather(1, experts).softmax(1).to(weights.dtype)
        seen.append((scores, experts))
        return scores, weights, experts

    routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    hooks = [router.register_forward_hook(record) for router in routers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def choice(model: Any, attention: str, ids: torch.Tensor) -> list[torch.Tensor]:
    """The experts that each layer chooses."""
    with routed(model) as seen:
        logits(model, attention, ids)
    return [experts for _, experts in seen]


def results(model: Any, attention: str, choices: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The logits of all prompts, and each layer's scores of the experts, all with given choices."""
    every = []
    for ids, chosen in zip(PROMPTS, choices, strict=True):
        with routed(model, chosen) as seen:
            found = logits(model, attention, ids)
        every.append([found, *(scores for scores, _ in seen)])
    return [torch.cat(of_prompts) for of_prompts in zip(*every, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_good_as_eager_with_the_experts_that_eager_chose(family: str) -> None:
    model = make(family, torch.bfloat16)
    choices = [choice(model, "eager", ids) for ids in PROMPTS]
    exact = results(copy.deepcopy(model).float(), "eager", choices)
    plain, out = (results(model, attention, choices) for attention in ("eager", "tritune"))
    for ours, reference, theirs in zip(out, exact, plain, strict=True):
        assert_within_rule(ours, reference, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_chooses_the_experts_of_eager(family: str) -> None:
    model = make(family)
    for ids in PROMPTS:
        ours, theirs = (choice(model, attention, ids) for attention in ("tritune", "eager"))
        assert all(map(torch.equal, ours, theirs))
