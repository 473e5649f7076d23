"""Small pieces of real files, as the tools wrote them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

DEJAVU_FOLDERS = (
    "dejavu_0.7/triton_3.2.0/cuda_12.4/gpu_NVIDIA_A100-SXM4-80GB/fused_add_rmsnorm_triton/"
    "autotune_config-356e536ec49f15d9/code_version-a429a376f7b92788/"
    "tune_features-02c9cd04ab398246/kernel_configs-758eb6d491f16071/default"
)
DEJAVU_KEY = "('4096', '1', '1', '1', '4096', 'torch.float16', 'torch.float16', 'torch.float16')"
DEJAVU = {
    "signature": "JITFunction(ibm_triton_lib.kernels.rms:fused_add_rmsnorm_triton)",
    "total_bench_time_s": 620.1700329780579,
    "evaluated_configs": 450,
    "keys": ["stride_x_batch", "stride_x_m", "stride_x_k", "stride_rms_w", "N_SIZE"],
    "cache": {
        DEJAVU_KEY: "BLOCK_N_SIZE: 4096, num_warps: 32, num_ctas: 1, num_stages: 3, "
        "num_buffers_warp_spec: 0, maxnreg: None"
    },
    "timings": {DEJAVU_KEY: [0.009338859468698502]},
    "timings_data": {
        "labels": ["ms"],
        "rep_t_ms": 100,
        "warmup_t_ms": 25,
        "cuda_graphs": True,
    },
}

VLLM_NAME = (
    "E=8,N=14336,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
)
VLLM = {
    "triton_version": "3.5.0",
    "1": {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 256,
        "GROUP_SIZE_M": 1,
        "num_warps": 8,
        "num_stages": 4,
    },
    "16": {
        "BLOCK_SIZE_M": 32,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 256,
        "GROUP_SIZE_M": 16,
        "num_warps": 4,
        "num_stages": 3,
    },
}

T4 = {
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "miliseconds"},
    "results": [
        {
            "timestamp": "2023-12-22 10:33:52.030910+00:00",
            "configuration": {"block_size_x": 32, "use_padding": 0},
            "times": {"compilation": 499.7, "runtimes": [1.5, 1.7]},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": 1.6, "unit": ""}],
            "objectives": ["time"],
        },
        {
            "timestamp": "2023-12-22 10:33:53.030910+00:00",
            "configuration": {"block_size_x": 64, "use_padding": 0},
            "times": {"compilation": 3055.96},
            "invalidity": "runtime",
            "correctness": 0,
            "measurements": [{"name": "time", "value": "RuntimeFailedConfig", "unit": ""}],
            "objectives": ["time"],
        },
    ],
}

AOTRITON_COLUMNS = {
    "gpu": "gfx942_mod0",
    "inputs$Q_dtype": "torch.float16",
    "inputs$Max_seqlen_q": 128,
    "inputs$CAUSAL_TYPE": 0,
    "inputs$BLOCK_DMODEL": 224,
    "tuned_kernel$PERSISTENT_TYPE": 0,
    "tuned_kernel$BLOCK_M": 128,
    "tuned_kernel$PRE_LOAD_V": 1,
    "compiler_options$waves_per_eu": 2,
    "compiler_options$num_warps": 4,
}


def write_dejavu(folder: Path) -> Path:
    path = folder / DEJAVU_FOLDERS / "cache.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(DEJAVU, indent=4))
    return path


def write_json(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def write_aotriton(path: Path) -> Path:
    names = ", ".join(f'"{name}"' for name in AOTRITON_COLUMNS)
    places = ", ".join("?" for _ in AOTRITON_COLUMNS)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'CREATE TABLE "FLASH$attn_fwd" ({names})')
        for length in (128, 256):
            row = {**AOTRITON_COLUMNS, "inputs$Max_seqlen_q": length}
            connection.execute(
                f'INSERT INTO "FLASH$attn_fwd" VALUES ({places})', list(row.values())
            )
    return path
