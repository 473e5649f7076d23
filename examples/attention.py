"""Flash attention from one Triton source, on whatever device Triton has here.

The answer is checked against float64, then timed side by side with torch's own attention:

    python examples/attention.py --heads 8 --tokens 1024 --head-size 64 --causal

On a machine without a GPU the kernel below is compiled for the CPU; it runs unchanged on a GPU.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@triton.jit
def _visit_keys(
    acc,
    row_max,
    row_sum,
    q,
    k_base,
    v_base,
    first,
    end,
    queries,
    tokens,
    score_scale,
    SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Fold the keys first..end into the running softmax; MASKED where some may be out of sight."""
    dims = tl.arange(0, BLOCK_D)
    for start in range(first, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        # K is read as its transpose, [BLOCK_D, BLOCK_N], which is what q @ k wants.
        k_offsets = keys[None, :] * SIZE + dims[:, None]
        v_offsets = keys[:, None] * SIZE + dims[None, :]
        if MASKED:
            k_inside = (keys[None, :] < tokens) & (dims[:, None] < SIZE)
            v_inside = (keys[:, None] < tokens) & (dims[None, :] < SIZE)
        else:
            k_inside = dims[:, None] < SIZE
            v_inside = dims[None, :] < SIZE
        k = tl.load(k_base + k_offsets, mask=k_inside, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * score_scale
        if MASKED:
            visible = keys[None, :] < tokens
            if CAUSAL:
                visible = visible & (keys[None, :] <= queries[:, None])
            scores = tl.where(visible, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, axis=1)
        v = tl.load(v_base + v_offsets, mask=v_inside, other=0.0)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        row_max = new_max
    return acc, row_max, row_sum


@triton.jit
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    tokens,
    score_scale,
    SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """softmax(q k^T scale) v for BLOCK_M queries of one head; tensors are (heads, tokens, size).

    `score_scale` is scale * log2(e), so that exp(x) can be computed as exp2.
    """
    first_query = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * tokens * SIZE
    queries = first_query + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    q_offsets = head + queries[:, None] * SIZE + dims[None, :]
    q_inside = (queries[:, None] < tokens) & (dims[None, :] < SIZE)
    q = tl.load(q_ptr + q_offsets, mask=q_inside, other=0.0)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)

    # Blocks of keys that every query of this program sees need no mask: they come first.
    if CAUSAL:
        end = tl.minimum(first_query + BLOCK_M, tokens)
        unmasked_end = first_query // BLOCK_N * BLOCK_N
    else:
        end = tokens
        unmasked_end = tokens // BLOCK_N * BLOCK_N
    acc, row_max, row_sum = _visit_keys(
        acc, row_max, row_sum, q, k_ptr + head, v_ptr + head, 0, unmasked_end, queries, tokens,
        score_scale, SIZE, CAUSAL, False, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    acc, row_max, row_sum = _visit_keys(
        acc, row_max, row_sum, q, k_ptr + head, v_ptr + head, unmasked_end, end, queries, tokens,
        score_scale, SIZE, CAUSAL, True, BLOCK_N, BLOCK_D,
    )  # fmt: skip

    out = acc / row_sum[:, None]
    tl.store(out_ptr + q_offsets, out.to(out_ptr.dtype.element_ty), mask=q_inside)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    blocks: tuple[int, int] = (64, 32),
) -> torch.Tensor:
    """Attention over contiguous (heads, tokens, head size) tensors.

    A program takes `blocks[0]` queries, and looks at `blocks[1]` keys at a time.
    """
    heads, tokens, size = q.shape
    out = torch.empty_like(q)
    block_m, block_n = blocks
    attention_kernel[(triton.cdiv(tokens, block_m), heads)](
        q,
        k,
        v,
        out,
        tokens,
        math.log2(math.e) / math.sqrt(size),
        SIZE=size,
        CAUSAL=causal,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=max(16, triton.next_power_of_2(size)),
    )
    return out


def torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False
) -> torch.Tensor:
    """The same by torch, which wants a batch dimension in front for its fast paths."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]


def float64_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False
) -> torch.Tensor:
    """The formula, in float64: what both are measured against."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        tokens = q.shape[1]
        hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(dim=-1) @ v


def error_and_limit(
    out: torch.Tensor, by_torch: torch.Tensor, reference: torch.Tensor
) -> tuple[float, float]:
    """Our largest error, and the largest allowed: twice torch's own plus the dtype's rounding."""
    rounded = reference.to(out.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).abs().max().item()
    torch_error = (by_torch - reference).abs().max().item()
    return (out - reference).abs().max().item(), 2 * torch_error + 2 * rounding


def median_seconds(
    candidates: dict[str, Callable[[], torch.Tensor]], device: torch.device, budget_seconds: float
) -> dict[str, float]:
    """Times of all candidates, taken in turns so that a busy moment hits every one of them."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    stop = time.perf_counter() + budget_seconds
    while time.perf_counter() < stop or min(map(len, samples.values())) < 5:
        for name, run in candidates.items():
            synchronize(device)
            start = time.perf_counter()
            run()
            synchronize(device)
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in samples.items()}


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def triton_device() -> torch.device:
    """Where Triton's kernels run here."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    return torch.device(triton.runtime.driver.active.get_active_torch_device())


def at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {minimum}")
        return int(text)

    return parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=at_least(1), default=8)
    parser.add_argument("--tokens", type=at_least(1), default=1024)
    parser.add_argument("--head-size", type=at_least(1), default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure")
    args = parser.parse_args()

    device = triton_device()
    generator = torch.Generator().manual_seed(0)
    shape = (args.heads, args.tokens, args.head_size)
    q, k, v = (
        torch.randn(shape, generator=generator).to(device, DTYPES[args.dtype]) for _ in range(3)
    )
    print(
        f"attention on {device}: {args.heads} heads, {args.tokens} tokens, head size "
        f"{args.head_size}, {args.dtype}, {'causal' if args.causal else 'full'}"
    )

    start = time.perf_counter()
    out = attention(q, k, v, causal=args.causal)
    synchronize(device)
    first = time.perf_counter() - start
    start = time.perf_counter()
    attention(q, k, v, causal=args.causal)
    synchronize(device)
    second = time.perf_counter() - start

    by_torch = torch_attention(q, k, v, causal=args.causal)
    reference = float64_attention(q, k, v, causal=args.causal)
    error, limit = error_and_limit(out, by_torch, reference)
    correct = error <= limit
    print(
        f"first launch {first:.3f} s (compiles, or loads from Triton's cache), next {second:.4f} s"
    )
    print(f"largest error {error:.2e}, allowed {limit:.2e}: {'correct' if correct else 'WRONG'}")
    if not correct:
        return 1

    seconds = median_seconds(
        {
            "tritune": lambda: attention(q, k, v, causal=args.causal),
            "torch": lambda: torch_attention(q, k, v, causal=args.causal),
        },
        device,
        args.seconds,
    )
    # Two products of 2 * tokens^2 * size operations per head; causal needs the lower triangle only.
    pairs = args.tokens * (args.tokens + 1) / 2 if args.causal else args.tokens**2
    operations = 4 * args.heads * pairs * args.head_size
    print(f"\n{'':10}{'median ms':>12}{'GFLOP/s':>12}{'speed-up':>12}")
    for name, median in seconds.items():
        print(
            f"{name:10}{median * 1e3:12.3f}{operations / median / 1e9:12.1f}"
            f"{seconds['torch'] / median:11.2f}x"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
