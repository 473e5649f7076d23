"""Greedy generation by vLLM's engine: writes a JSON object with what each case gave.

The arguments are the folder of `vllm_model.save_model`, the file to write, and cases: words out of
v1, v2 (model runners), lora, spawned (the engine and its worker are processes of their own).
"""

import gc
import json
import os
import sys
from pathlib import Path

from tests.integrations.vllm_model import RANK, prompts

TOKENS = 20
#: What the server is given, too.
OPTIONS = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_lora_rank": RANK,
}


def generate(folder, case):
    """What vLLM says of itself, and the tokens."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.triton_utils import HAS_TRITON

    spawned, lora = "spawned" in case, "lora" in case
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(spawned))
    if "v1" in case:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    else:
        os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    options = {**OPTIONS, "enable_lora": lora}
    if spawned:
        options["attention_backend"] = "TRITUNE"
    llm = LLM(model=str(folder / "model"), **options)
    config = llm.llm_engine.vllm_config
    layers = config.compilation_config.static_forward_context.values()
    adapter = LoRARequest("adapter", 1, str(folder / "adapter")) if lora else None
    requests = [{"prompt_token_ids": prompt} for prompt in prompts()]

    def tokens(**how):
        sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, **how)
        outputs = llm.generate(requests, sampling, lora_request=adapter, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return {
        "tokens": tokens(temperature=0),
        "best of one": tokens(temperature=1, top_k=1, top_p=0.9),
        "v2": config.use_v2_model_runner,
        "triton": HAS_TRITON,
        "attention": sorted({type(layer.impl).__module__ for layer in layers}),
        "tritune": "tritune" in sys.modules,
    }


def main():
    from vllm.distributed import cleanup_dist_env_and_memory

    folder, answer, *cases = sys.argv[1:]
    found = {}
    for case in cases:
        found[case] = generate(Path(folder), case.split())
        gc.collect()
        cleanup_dist_env_and_memory()
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
