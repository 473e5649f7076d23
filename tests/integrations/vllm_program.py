"""vLLM's own code with tritune's attention backend, on CPU tensors.

Run with vLLM's sources on the path; prints a JSON object with what the test looks at. Packages that
vLLM needs for other things than attention, and that are not installed, are replaced by empty ones.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

from tests.integrations.absent import replace_absent

replace_absent()

import cloudpickle  # noqa: E402
import torch  # noqa: E402

SIZE, PAGE, PAGES = 32, 16, 64


def reference(
    q, keys, values, *, causal, scale, window=None, softcap=None, slopes=None, sinks=None
):
    """Attention of one request in fp64: q (queries, heads, size), the latest of its keys last."""
    q, keys, values = q.double(), keys.double(), values.double()
    group = q.shape[1] // keys.shape[1]
    keys, values = (each.repeat_interleave(group, 1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at_q = torch.arange(len(keys) - len(q), len(keys))[:, None]
    at_k = torch.arange(len(keys))[None, :]
    if slopes is not None:
        scores = scores + slopes.double()[:, None, None] * (at_k - at_q)
    if causal:
        hidden = at_k > at_q
        if window is not None:
            hidden |= at_k <= at_q - window
        scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, len(q), 1)
        weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def batch(queries, lengths, heads, kv_heads, dtype, layout):
    """A batch of requests with their cache: new tokens, and those that came before."""
    torch.manual_seed(0)
    free = torch.randperm(PAGES)
    most = max(-(-length // PAGE) for length in lengths)
    table = torch.full((len(lengths), most), -1, dtype=torch.int32)
    slots, requests = [], []
    for row, length in enumerate(lengths):
        count = -(-length // PAGE)
        pages, free = free[:count], free[count:]
        table[row, :count] = pages
        at = torch.arange(length)
        slots.append(pages[at // PAGE] * PAGE + at % PAGE)
        new = [torch.randn(length, kv_heads, SIZE).to(dtype) for _ in range(2)]
        requests.append((torch.randn(queries[row], heads, SIZE).to(dtype), *new))
    # As vLLM has it: logically (pages, heads, page, 2 * size), whatever lies beside what.
    shape = (PAGES, kv_heads, PAGE, 2 * SIZE)
    if layout == "tokens outside":
        cache = torch.full((PAGES, PAGE, kv_heads, 2 * SIZE), torch.nan).transpose(1, 2)
    else:
        cache = torch.full(shape, torch.nan)
    return SimpleNamespace(table=table, slots=slots, requests=requests, cache=cache.to(dtype))


def made_builder(backend):
    config = SimpleNamespace(use_v2_model_runner=True)
    return backend.get_builder_cls()(SimpleNamespace(), ["layer"], config, torch.device("cpu"))


def common_metadata(made, queries, lengths, causal):
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=len(lengths),
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(lengths),
        block_table_tensor=made.table,
        slot_mapping=torch.cat([s[-q:] for s, q in zip(made.slots, queries, strict=True)]),
        causal=causal,
    )


def attend(backend, queries, lengths, *, heads=4, kv_heads=2, dtype=torch.float32, causal=True,
           layout="heads outside", kv_cache_dtype="auto", **options):  # fmt: skip
    """The largest error of a batch, relative to the largest element."""
    made = batch(queries, lengths, heads, kv_heads, dtype, layout)
    scale = SIZE**-0.5
    slopes = options.get("alibi_slopes")
    impl = backend.get_impl_cls()(
        heads, SIZE, scale, kv_heads, slopes, options.get("sliding_window"), kv_cache_dtype,
        options.get("logits_soft_cap"), "decoder", None,
        **({"sinks": options["sinks"]} if "sinks" in options else {}),
    )  # fmt: skip
    builder = made_builder(backend)
    layer = SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))
    cache = made.cache
    if kv_cache_dtype != "auto":
        cache = torch.zeros(cache.shape, dtype=torch.uint8)
    for (_, keys, values), slots in zip(made.requests, made.slots, strict=True):
        # The last one is padding, as in a batch that was rounded up.
        padded = torch.cat([slots, torch.tensor([-1])])
        more = [torch.cat([each, each[:1]]) for each in (keys, values)]
        impl.do_kv_cache_update(layer, *more, cache, padded)
    metadata = builder.build(0, common_metadata(made, queries, lengths, causal))
    query = torch.cat([q for q, _, _ in made.requests])
    output = torch.full((len(query) + 3, heads * SIZE), 7.0, dtype=dtype)
    padding = torch.zeros(3, heads, SIZE, dtype=dtype)
    out = impl.forward(layer, torch.cat([query, padding]), None, None, cache, metadata, output)
    assert out is output and bool((output[len(query) :] == 7.0).all())
    causal_of = causal.tolist() if isinstance(causal, torch.Tensor) else [causal] * len(queries)
    if kv_cache_dtype != "auto":
        kind = torch.float8_e5m2 if kv_cache_dtype == "fp8_e5m2" else torch.float8_e4m3fn
        made.requests = [
            (q, 0.5 * (keys / 0.5).to(kind).float(), 0.25 * (values / 0.25).to(kind).float())
            for q, keys, values in made.requests
        ]
    expected = torch.cat([
        reference(
            *request, causal=each, scale=scale, window=options.get("sliding_window"),
            softcap=options.get("logits_soft_cap"), sinks=options.get("sinks"),
            slopes=None if slopes is None else torch.tensor(slopes),
        )
        for request, each in zip(made.requests, causal_of, strict=True)
    ])  # fmt: skip
    difference = out[: len(query)].view(expected.shape).double() - expected
    return float(difference.abs().max() / expected.abs().max())


def encode(backend, lengths, window):
    """As `attend`, for an encoder."""
    torch.manual_seed(0)
    q, k, v = torch.randn(sum(lengths), 4, SIZE), *torch.randn(2, sum(lengths), 2, SIZE)
    impl = backend.get_impl_cls()(
        4, SIZE, SIZE**-0.5, 2, None, window, "auto", None, "encoder_only", None
    )
    builder = made_builder(backend)
    made = SimpleNamespace(
        table=torch.zeros(len(lengths), 1, dtype=torch.int32),
        slots=[torch.zeros(n, dtype=torch.int64) for n in lengths],
    )
    metadata = builder.build(0, common_metadata(made, lengths, lengths, False))
    out = impl.forward(None, q, k, v, torch.empty(0), metadata, torch.empty_like(q))
    parts = []
    for one, keys, values in zip(*(each.split(lengths) for each in (q, k, v)), strict=True):
        whole = reference(one, keys, values, causal=False, scale=SIZE**-0.5)
        if window is not None:
            at = torch.arange(len(one))
            near = (at[:, None] - at[None, :]).abs() < window
            k2, v2 = (x.double().repeat_interleave(2, 1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", one.double(), k2) * SIZE**-0.5
            whole = torch.einsum(
                "hqk,khd->qhd", scores.masked_fill(~near, -torch.inf).softmax(-1), v2
            )
        parts.append(whole)
    return float((out.double() - torch.cat(parts)).abs().max())


def registered(sent=None):
    """What a process of vLLM's finds after it has loaded its plug-ins, more than once; `sent` is
    the member of vLLM's enum that it was started with.
    """
    from tests.integrations.absent import replace_absent

    replace_absent()
    import vllm.plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from tritune.integrations.vllm import register

    found = sorted(vllm.plugins.load_plugins_by_group("vllm.general_plugins"))
    for _ in range(2):
        vllm.plugins.plugins_loaded = False
        vllm.plugins.load_general_plugins()
        register()
    chosen, on_cpu = AttentionBackendEnum["TRITUNE"], AttentionBackendEnum.CPU_ATTN
    return {
        "plugins": found,
        "path": chosen.get_path(),
        "cpu_path": on_cpu.get_path(),
        "names": [each.get_class().get_name() for each in (chosen, on_cpu)],
        "sent": sent is chosen,
    }


#: As Ray starts a worker: what it is to do comes by cloudpickle, plug-ins are loaded later.
RECEIVES = """
import json, sys
from tests.integrations import vllm_program
import cloudpickle
print(json.dumps(vllm_program.registered(cloudpickle.load(sys.stdin.buffer))))
"""


def started_otherwise(chosen):
    """What processes find that were started with the member of the enum, by each method."""
    found = {}
    for method in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, context) as pool:
            found[method] = pool.submit(registered, chosen).result()
    done = subprocess.run(
        [sys.executable, "-c", RECEIVES],
        input=cloudpickle.dumps(chosen), stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return {**found, "cloudpickle": json.loads(done.stdout.splitlines()[-1])}


#: Hides every backend that Triton does not bring itself.
HIDDEN = {"TRITON_BACKENDS_IN_TREE": "1"}
REGISTERS = """
from tests.integrations import vllm_program
from tritune.integrations.vllm import registered
print(type(registered()).CPU_ATTN.get_path())
"""


def without_triton():
    """What computes attention on a CPU where Triton lacks tritune's backend."""
    command = [sys.executable, "-c", REGISTERS]
    environment = {**os.environ, **HIDDEN}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def reasons(backend, **changes):
    """Why vLLM would not use the backend for a model."""
    model = {
        "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16,
        "use_mla": False, "has_sink": False, "use_sparse": False, "use_mm_prefix": False,
        "use_per_head_quant_scales": False, "device_capability": None, "attn_type": "decoder",
    }  # fmt: skip
    return backend.validate_configuration(**{**model, **changes})


def refusal(backend, head_size, kv_cache_dtype):
    """What a layer says that the backend cannot compute."""
    try:
        backend.get_impl_cls()(4, head_size, 1.0, 2, None, None, kv_cache_dtype)
    except ValueError as error:
        return str(error)


def main():
    here = registered()
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    processes = started_otherwise(AttentionBackendEnum["TRITUNE"])
    backend = AttentionBackendEnum.CPU_ATTN.get_class()
    half, brain = torch.float16, torch.bfloat16
    errors = {
        "prefill": attend(backend, [20, 7], [20, 7]),
        "decode": attend(backend, [1, 1, 1], [33, 5, 16]),
        "mixed": attend(backend, [9, 1, 16], [40, 17, 16]),
        "mixed, other layout": attend(backend, [9, 1], [40, 17], layout="tokens outside"),
        "mixed, one KV head": attend(backend, [9, 1], [40, 17], kv_heads=1),
        "half": attend(backend, [9, 1], [40, 17], dtype=half),
        "bfloat16": attend(backend, [9, 1], [40, 17], dtype=brain),
        "window": attend(backend, [9, 1], [40, 17], sliding_window=6),
        "softcap": attend(backend, [9, 1], [40, 17], logits_soft_cap=5.0),
        "sinks": attend(backend, [9, 1], [40, 17], sinks=torch.randn(4)),
        "alibi": attend(backend, [9, 1], [40, 17], alibi_slopes=[0.5, 0.25, 0.125, 0.0625]),
        "not causal": attend(backend, [9, 1], [40, 17], causal=False),
        "each its own": attend(backend, [9, 4], [40, 17], causal=torch.tensor([True, False])),
        "fp8 cache": attend(backend, [9, 1], [40, 17], kv_cache_dtype="fp8"),
        "fp8 e5m2 cache": attend(backend, [9, 1], [40, 17], kv_cache_dtype="fp8_e5m2"),
        "encoder": encode(backend, [20, 7], None),
        "encoder with window": encode(backend, [20, 7], 3),
    }
    impl = backend.get_impl_cls()(4, SIZE, 1.0, 2, None, None, "auto")
    profiling = impl.forward(None, None, None, None, None, None, torch.full((5, 128), 7.0))
    print(
        json.dumps(
            {
                "processes": {"here": here, **processes},
                "without_triton": without_triton(),
                "errors": errors,
                "profiling": float(profiling.abs().max()),
                "reasons": {
                    "good": reasons(backend, has_sink=True, has_sliding_window=True),
                    "bad": reasons(backend, head_size=576, use_mla=True, block_size=24),
                    "cache in another dtype": reasons(backend, kv_cache_dtype="float16"),
                    "window that looks ahead": reasons(
                        backend, use_non_causal=True, has_sliding_window=True
                    ),
                },
                "refused": [
                    refusal(backend, 512, "auto"),
                    refusal(backend, 64, "bfloat16"),
                    refusal(backend, 64, "int8_per_token_head"),
                ],
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
