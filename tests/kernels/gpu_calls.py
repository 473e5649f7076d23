"""Calls of every op, as small as they can be while kernels are made for large ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.kernels.gpu_compile import Target
from tritune.ops.attention import attention
from tritune.ops.gated import silu_mul
from tritune.ops.linear import linear
from tritune.ops.paged_attention import paged_attention
from tritune.ops.quantize import quantize_weight
from tritune.ops.rms_norm import add_rms_norm
from tritune.ops.rope import rope

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
DTYPES = {"fp16": FP16, "bf16": BF16, "fp32": FP32}


@dataclass(frozen=True)
class Case:
    """A call of an op."""

    kernel: str
    call: Callable[[], Any]
    #: Which of a target's matrix instructions it uses: `matrix`, `few_rows`, `full`, or none.
    products: str | None = None


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=FP16)


def linear_call(rows: int, bits: int | None = None) -> Callable[[], Any]:
    def call() -> None:
        weight: Any = half(1024, 2048)
        if bits is not None:
            weight = quantize_weight(weight, bits, 128, zero_points=bits == 4)
        linear(half(rows, 2048), weight, half(1024), activation="silu")

    return call


def attention_call(queries: int, dtype: torch.dtype, size: int) -> None:
    keys = torch.zeros(1, 2, 512 if queries > 1 else 4096, size, dtype=dtype)
    queries_ = torch.zeros(1, 8, queries, size, dtype=dtype)
    attention(queries_, keys, keys, causal=True, return_lse=queries == 1)


def paged_call(
    queries: int, dtype: torch.dtype, size: int, kv_dtype: torch.dtype | None = None
) -> None:
    cache = torch.zeros(64, 16, 2, size, dtype=kv_dtype or dtype)
    table = torch.arange(64, dtype=torch.int32)[None, :]
    lengths = torch.tensor([1024], dtype=torch.int32)
    starts = torch.tensor([0, queries], dtype=torch.int32)
    paged_attention(
        torch.zeros(queries, 8, size, dtype=dtype), cache, cache, table, lengths, starts
    )


CASES = {
    "linear, 1 row": Case("linear", linear_call(1), "few_rows"),
    "linear, 512 rows": Case("linear", linear_call(512), "matrix"),
    "linear in 8 bits, 1 row": Case("linear_quantized", linear_call(1, bits=8), "few_rows"),
    "linear in 4 bits, 512 rows": Case("linear_quantized", linear_call(512, bits=4), "matrix"),
    "rms_norm": Case("rms_norm", lambda: add_rms_norm(half(64, 4096), half(64, 4096), half(4096))),
    "rope": Case(
        "rope",
        lambda: rope(
            half(64, 32, 128), half(64, 8, 128), torch.zeros(64, 128), torch.zeros(64, 128)
        ),
    ),
    "gated": Case("gated", lambda: silu_mul(half(64, 4096), half(64, 4096))),
}


def attention_cases() -> dict[str, Case]:
    """Prefill and decode, of tensors and of pages, for all dtypes and head sizes."""
    cases = {}
    for what, kernel, call in (
        ("attention", "attention", attention_call),
        ("paged attention", "paged_attention", paged_call),
    ):
        for phase, queries in (("prefill", 512), ("decode", 1)):
            for name, dtype in DTYPES.items():
                for size in (64, 128, 256):
                    rows = "matrix" if queries > 1 else "few_rows"
                    cases[f"{what}, {name}, head {size}, {phase}"] = Case(
                        kernel,
                        lambda call=call, queries=queries, dtype=dtype, size=size: call(
                            queries, dtype, size
                        ),
                        "full" if dtype == FP32 else rows,
                    )
    cases["paged attention, fp8 cache, decode"] = Case(
        "paged_attention", lambda: paged_call(1, FP16, 128, torch.float8_e4m3fn), "few_rows"
    )
    return cases


#: No thread of RDNA3 has registers for a row of q that is 256 numbers of fp32 wide, and products in
#: full fp32, for which it has no matrix instruction, want all of the row.
TOO_WIDE = {("gfx1100", "fp32, head 256")}


def dealt_out(targets: list[Target]) -> dict[Target, dict[str, Case]]:
    """Every call for each target, but of attention's, each to one: all would take minutes.

    Where large tiles have matrix instructions of their own, what a large one compiles to is looked
    at in any case.
    """
    dealt = {target: dict(CASES) for target in targets}
    for number, (name, case) in enumerate(attention_cases().items()):
        able = [t for t in targets if not any(t.arch == a and part in name for a, part in TOO_WIDE)]
        dealt[able[number % len(able)]][name] = case
        for target in targets:
            if target.matrix != target.few_rows and "fp16, head 128, prefill" in name:
                dealt[target][name] = case
    return dealt
