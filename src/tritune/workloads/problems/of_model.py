"""The problems that a server meets with a model, in the order of their importance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tritune.errors import TrituneError, not_allowed
from tritune.kernels.kernel import Problem
from tritune.ops.quantize import GROUPS
from tritune.workloads.catalog import WORKLOADS, workload_named
from tritune.workloads.problems.models import Model

EFFORTS = ("quick", "normal", "full")
#: The memory that inputs may take: a CPU shares its own with everything else.
INPUT_BYTES = {"cpu": 2 * 10**9, "cuda": 16 * 10**9}
#: The dtypes that models are served in; most CPUs are slow at half precision.
DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
PAGE_SIZE = 16


class Step(NamedTuple):
    """One step of a server: the number of sequences, and of new and of all tokens of each."""

    sequences: int
    queries: int
    keys: int


#: Steps by the least effort for which they are tuned. Prompts are processed whole or in chunks, and
#: mostly alone; tokens are generated for many sequences at once.
PREFILLS = {
    "quick": (Step(1, 512, 512),),
    "normal": (Step(1, 1024, 1024), Step(1, 256, 256), Step(1, 4096, 4096), Step(1, 512, 4096)),
    "full": (
        *(Step(1, tokens, tokens) for tokens in (64, 128, 2048, 8192)),
        *(Step(batch, 1024, 1024) for batch in (2, 4, 8)),
        *(Step(1, 512, keys) for keys in (2048, 8192, 16384)),
    ),
}
DECODES = {
    "quick": (Step(1, 1, 4096),),
    "normal": (Step(8, 1, 2048), Step(32, 1, 1024), Step(1, 1, 16384)),
    "full": (
        *(Step(1, 1, keys) for keys in (256, 512, 1024, 2048, 8192, 32768)),
        *(Step(4, 1, keys) for keys in (1024, 4096, 16384)),
        *(Step(16, 1, keys) for keys in (512, 2048, 8192)),
        *(Step(64, 1, keys) for keys in (512, 2048)),
        *(Step(128, 1, keys) for keys in (256, 1024)),
    ),
}
#: Prompts that are processed together, of different lengths: the longest is given.
PACKED = {
    "quick": (Step(4, 256, 256),),
    "normal": (
        Step(4, 512, 512),
        Step(8, 1024, 1024),
    ),
    "full": (Step(2, 2048, 2048), Step(16, 256, 256), Step(32, 128, 128), Step(4, 256, 4096)),
}
#: Tokens of a step, for ops that treat each token alone.
TOKENS = {
    "quick": (1024,),
    "normal": (1, 64),
    "full": (2, 4, 8, 16, 32, 128, 256, 512, 2048, 4096, 8192),
}
#: The same for linear layers, whose prompts of a thousand tokens take a CPU seconds.
LINEAR_ROWS = {"quick": (1,), "normal": (256,), "full": (2, 4, 8, 16, 32, 64, 128, 1024)}


def problems_of(
    model: Model,
    ops: Sequence[str] | None = None,
    effort: str = "quick",
    dtype: str | None = None,
    device: torch.device | str = "cpu",
) -> list[tuple[str, Problem]]:
    """Return the problems that ops have in a model, the most important first, each once.

    Without ops, those of all ops that the model uses. Problems that do not fit into the device's
    memory are left out.
    """
    if effort not in EFFORTS:
        raise TrituneError(not_allowed("effort", effort, EFFORTS))
    kind = torch.device(device).type
    # Layers are quantized, or they are not; `ops` may name both.
    other = "linear_quantized" if model.weight_bits is None else "linear"
    chosen = [op for op in WORKLOADS if op != other]
    if ops is not None:
        chosen = [op for op in WORKLOADS if op in {workload_named(op).name for op in ops}]
    found: dict[tuple[str, Problem], None] = {}
    for tier in EFFORTS[: EFFORTS.index(effort) + 1]:
        for op in chosen:
            for values in _GENERATORS[op](model, tier):
                problem = WORKLOADS[op].problem(dtype=dtype or DTYPES[kind], **values)
                found.setdefault((op, problem))
    return [each for each in found if WORKLOADS[each[0]].input_bytes(each[1]) <= INPUT_BYTES[kind]]


def attention_fields(model: Model, step: Step, window: int | None) -> dict[str, Any]:
    """Return the fields of an attention problem of one step."""
    return {
        "batch": step.sequences,
        "heads": model.heads,
        "group": model.group,
        "queries": step.queries,
        "keys": step.keys,
        "head_size": model.head_size,
        "window": window or 0,
        "softcap": model.softcap,
        "alibi": model.alibi,
    }


def paged_fields(model: Model, step: Step, windowed: bool) -> dict[str, Any]:
    """Return the same for a paged cache; keys are those within the window."""
    return {
        "head_size": model.head_size,
        "kv_heads": model.kv_heads,
        "group": model.group,
        "page_size": PAGE_SIZE,
        "queries": step.queries,
        "sequences": step.sequences,
        "keys": step.keys,
        "window": windowed,
        "softcap": model.softcap,
        "alibi": model.alibi,
        "sinks": model.sinks,
    }


def rope_fields(model: Model, tokens: int) -> dict[str, Any]:
    """Return the fields of a rotary embedding problem."""
    return {
        "tokens": tokens,
        "q_heads": model.heads,
        "k_heads": model.kv_heads,
        "size": model.head_size,
        "rotary": model.head_size if model.rotary is None else model.rotary,
    }


def _windows(model: Model, keys: int) -> Iterable[int | None]:
    """Return the windows of the model's layers; one of all keys is none."""
    return dict.fromkeys(w if w is not None and w < keys else None for w in model.windows)


Values = Iterator[dict[str, Any]]


def _attention(model: Model, tier: str) -> Values:
    for step in (*PREFILLS[tier], *DECODES[tier]):
        for window in _windows(model, step.keys):
            yield attention_fields(model, step, window)


def _attention_varlen(model: Model, tier: str) -> Values:
    for step in PACKED[tier]:
        for window in _windows(model, step.keys):
            yield attention_fields(model, step, window)


def _paged_attention(model: Model, tier: str) -> Values:
    chunks = (step for step in PREFILLS[tier] if step.queries < step.keys)
    for step in (*DECODES[tier], *chunks):
        for window in _windows(model, step.keys):
            keys = step.keys if window is None else min(step.keys, window + step.queries)
            yield paged_fields(model, step._replace(keys=keys), windowed=window is not None)


def _rms_norm(model: Model, tier: str) -> Values:
    for tokens in TOKENS[tier]:
        # The first norm of a model has no residual yet.
        yield {"rows": tokens, "columns": model.hidden}
        if model.qk_norm:
            yield {"rows": tokens * model.heads, "columns": model.head_size}


def _add_rms_norm(model: Model, tier: str) -> Values:
    for tokens in TOKENS[tier]:
        yield {"rows": tokens, "columns": model.hidden}


def _rope(model: Model, tier: str) -> Values:
    for tokens in TOKENS[tier] if model.rotary != 0 else ():
        yield rope_fields(model, tokens)


def _gated(model: Model, tier: str, activations: Sequence[str]) -> Values:
    for tokens in TOKENS[tier] if model.activation in activations else ():
        rows = tokens * (model.active_experts or 1)
        yield {"rows": rows, "columns": model.mlp, "activation": model.activation}


def _linear_quantized(model: Model, tier: str) -> Values:
    for layer in _linear(model, tier):
        group = next((g for g in reversed(GROUPS) if layer["k"] % g == 0), None)
        if group is not None:
            yield {**layer, "bits": model.weight_bits or 4, "group": group}


def _linear(model: Model, tier: str) -> Values:
    """Yield the largest layers first.

    Experts' layers are left out: they are many small ones at once, for which there is no kernel.
    """
    queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    layers = {"qkv": (queries + 2 * keys, model.hidden), "out": (model.hidden, queries)}
    if model.active_experts is None:
        layers = {"up": (2 * model.mlp, model.hidden), "down": (model.hidden, model.mlp), **layers}
    for rows in LINEAR_ROWS[tier]:
        for n, k in layers.values() if tier != "quick" else list(layers.values())[:2]:
            yield {"rows": rows, "n": n, "k": k}
    if tier != "quick":
        # Logits are wanted of the last token of a sequence only.
        for sequences in (1,) if tier == "normal" else (8, 32):
            yield {"rows": sequences, "n": model.vocab, "k": model.hidden}


_GENERATORS: dict[str, Callable[[Model, str], Values]] = {
    "attention": _attention,
    "attention_varlen": _attention_varlen,
    "paged_attention": _paged_attention,
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "rope": _rope,
    "silu_mul": functools.partial(_gated, activations=("silu",)),
    "gelu_mul": functools.partial(_gated, activations=("gelu", "gelu_tanh")),
    "linear": _linear,
    "linear_quantized": _linear_quantized,
}
