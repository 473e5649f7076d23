"""Problems of real models, gathered into suites to be measured together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritune.errors import TrituneError, unknown
from tritune.kernels.kernel import Problem
from tritune.workloads.catalog import workload_named
from tritune.workloads.problems.models import PRESETS, Model
from tritune.workloads.problems.of_model import Step, attention_fields, paged_fields, rope_fields

#: An op and the fields of a problem that differ from the op's defaults.
Entry = tuple[str, Mapping[str, Any]]

F32, F16, BF16 = "float32", "float16", "bfloat16"
LLAMA, QWEN, GEMMA = PRESETS["llama-3-8b"], PRESETS["qwen3-8b"], PRESETS["gemma-3-4b"]
OSS, MISTRAL = PRESETS["gpt-oss-20b"], PRESETS["mistral-7b"]


def suite(name: str) -> list[tuple[str, Problem]]:
    """Return the ops and problems of a suite, each once."""
    if name not in SUITES:
        raise TrituneError(unknown("suite", name, SUITES))
    found = ((op, workload_named(op).problem(**fields)) for op, fields in SUITES[name])
    return list(dict.fromkeys(found))


def _prefill(
    model: Model, tokens: int, dtype: str, causal: bool = True, windowed: bool = False
) -> Entry:
    fields = attention_fields(model, Step(1, tokens, tokens), model.window if windowed else None)
    return "attention", {**fields, "dtype": dtype, "causal": causal}


def _decode(model: Model, batch: int, context: int, dtype: str) -> Entry:
    return "attention", {**attention_fields(model, Step(batch, 1, context), None), "dtype": dtype}


def _paged(model: Model, batch: int, context: int, dtype: str, windowed: bool = False) -> Entry:
    keys = min(context, 2 * model.window) if windowed and model.window else context
    fields = paged_fields(model, Step(batch, 1, keys), windowed)
    return "paged_attention", {**fields, "dtype": dtype}


def _attention() -> Iterator[Entry]:
    yield from (_prefill(LLAMA, tokens, F32) for tokens in (128, 256, 512, 1024, 2048, 4096))
    yield from (_prefill(LLAMA, 1024, dtype) for dtype in (BF16, F16))
    yield from (_prefill(LLAMA, 1024, dtype, causal=False) for dtype in (F32, BF16))
    yield from (_prefill(QWEN, tokens, BF16) for tokens in (512, 2048))
    yield from (_prefill(GEMMA, 2048, dtype, windowed=True) for dtype in (F32, BF16))
    yield _prefill(GEMMA, 1024, BF16)
    yield from (_prefill(OSS, 1024, dtype, windowed=True) for dtype in (F32, BF16))
    yield _prefill(MISTRAL, 4096, BF16)
    for dtype in (F32, BF16, F16):
        yield from (_decode(LLAMA, 1, context, dtype) for context in (4096, 16384))
    yield from (_decode(LLAMA, 1, context, BF16) for context in (1024, 32768))
    yield from (_decode(QWEN, batch, context, BF16) for batch, context in ((4, 4096), (16, 1024)))
    yield _decode(GEMMA, 1, 8192, BF16)
    yield from (_paged(LLAMA, 1, 16384, dtype) for dtype in (F32, BF16, F16))
    yield from (_paged(QWEN, batch, context, BF16) for batch, context in ((8, 4096), (16, 1024)))
    yield _paged(GEMMA, 4, 2048, BF16)
    yield from (_paged(OSS, 4, 4096, BF16, windowed) for windowed in (False, True))
    yield _paged(MISTRAL, 1, 16384, BF16, windowed=True)


def _norms() -> Iterator[Entry]:
    for model in (LLAMA, GEMMA):
        for rows, dtype in ((1, BF16), (1024, F32), (1024, BF16), (1024, F16)):
            yield "rms_norm", {"rows": rows, "columns": model.hidden, "dtype": dtype}
            yield "add_rms_norm", {"rows": rows, "columns": model.hidden, "dtype": dtype}


def _rope() -> Iterator[Entry]:
    for model in (LLAMA, OSS):
        for tokens, dtype in ((1, BF16), (1024, F32), (1024, BF16)):
            yield "rope", {**rope_fields(model, tokens), "dtype": dtype}


def _activations() -> Iterator[Entry]:
    for rows, dtype in ((1, BF16), (1024, F32), (1024, BF16), (1024, F16)):
        yield "silu_mul", {"rows": rows, "columns": LLAMA.mlp, "dtype": dtype}
    yield "gelu_mul", {"rows": 1024, "columns": GEMMA.mlp, "dtype": BF16}


def _projection(rows: int, dtype: str) -> Entry:
    return "linear", {"rows": rows, "n": LLAMA.hidden, "k": LLAMA.hidden, "dtype": dtype}


def _linear() -> Iterator[Entry]:
    for dtype in (F32, BF16, F16):
        yield from (_projection(rows, dtype) for rows in (1, 4, 16, 256))
    for bits in (8, 4):
        yield "linear_quantized", {**_projection(1, BF16)[1], "bits": bits}


def _vendors() -> Iterator[Entry]:
    """Yield problems that vendors' libraries are best at: large GEMMs, prefill, GEMV."""
    for dtype in (F32, BF16):
        yield from (_projection(rows, dtype) for rows in (1024, 1, 4))
        for causal in (False, True):
            op, fields = _prefill(LLAMA, 1024, dtype, causal)
            yield op, {**fields, "group": 1}


_PARTS: Mapping[str, Sequence[Entry]] = {
    "attention": tuple(_attention()),
    "norms": tuple(_norms()),
    "rope": tuple(_rope()),
    "activations": tuple(_activations()),
    "linear": tuple(_linear()),
    "vendors": tuple(_vendors()),
}
SUITES: Mapping[str, Sequence[Entry]] = {
    **_PARTS,
    "all": tuple(entry for part in _PARTS.values() for entry in part),
}
