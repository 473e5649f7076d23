"""Problems that take no time, of every op, with every flag somewhere."""

from __future__ import annotations

import pytest

SMALL = {
    "attention": (
        "queries=70 keys=130 heads=4 group=2 head_size=32 dtype=float32",
        "queries=64 heads=4 group=2 head_size=32 window=16 softcap=true",
        "queries=1 keys=200 heads=8 head_size=32 alibi=true batch=3 dtype=bfloat16",
        "queries=64 heads=2 group=1 head_size=32 causal=false mask=boolean",
        "queries=32 keys=64 heads=2 group=1 head_size=16 value_size=32 mask=additive",
        "queries=64 heads=2 group=1 head_size=32 window=64",
    ),
    "attention_varlen": (
        "queries=64 heads=4 group=2 head_size=32 dtype=float32",
        "queries=16 keys=128 heads=4 head_size=32 window=32",
        "queries=1 keys=128 batch=5 heads=4 head_size=32 alibi=true",
    ),
    "paged_attention": (
        "keys=256 kv_heads=2 head_size=32 dtype=float32",
        "keys=256 kv_heads=2 head_size=32 window=true sinks=true",
        "queries=64 keys=64 sequences=3 kv_heads=2 head_size=32 window=true",
        "queries=8 keys=128 kv_heads=2 head_size=32 kv_dtype=float8_e4m3fn",
        "keys=300 page_size=24 kv_heads=1 head_size=32 kv_dtype=int8 softcap=true",
    ),
    "rms_norm": ("rows=3 columns=100", "rows=64 columns=256 dtype=float32"),
    "add_rms_norm": ("rows=3 columns=100 dtype=bfloat16", "rows=64 columns=256 dtype=float32"),
    "silu_mul": ("rows=1 columns=1000", "rows=5 columns=1000 dtype=float32"),
    "gelu_mul": ("rows=5 columns=64 activation=gelu", "rows=1 columns=64 dtype=float32"),
    "rope": (
        "tokens=5",
        "tokens=512 rotary=64 inplace=false interleaved=true q_heads=4 dtype=float32",
    ),
    "linear": ("n=256 k=512", "rows=30 n=256 k=512 inner_contiguous=false dtype=float32"),
    "linear_quantized": (
        "n=256 k=512",
        "rows=30 n=256 k=512 bits=8 group=64 dtype=float32",
        "n=64 k=256 zero_points=true group=32 dtype=bfloat16",
        "n=64 k=256 zero_points=true bits=8",
    ),
}

every_op = pytest.mark.parametrize("name", SMALL)
every_problem = pytest.mark.parametrize(
    ("name", "text"),
    [pytest.param(name, text, id=f"{name} {text}") for name in SMALL for text in SMALL[name]],
)
