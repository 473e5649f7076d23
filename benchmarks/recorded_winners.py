"""Winners of real tunings of flash attention, in the words of tritune's attention space.

From triton-dejavu's caches (a folder with `**/cache.json`) and AOTriton's database: the best config
that somebody measured for each problem on real GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune.store.contents import Contents
from tritune.store.formats import aotriton, dejavu
from tritune.targets.target import Target

#: What a tile's code is made from; further parameters differ from tool to tool.
TILE = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
#: Parameters that tritune has too, where a winner says something of them.
MORE = ("PRE_LOAD_V", "waves_per_eu", "matrix_instr_nonkdim")

#: The keys of the caches lack the batch; that it was 1 follows from the recorded times, which would
#: exceed the A100's peak with more.
DEJAVU_BATCH = 1
#: What AOTriton's tuner runs, whatever the problem (the defaults of its options).
AOTRITON_BATCH_AND_HEADS = (8, 12)


@dataclass(frozen=True)
class RecordedWinner:
    target: Target
    dtype: str
    head_size: int
    causal: bool
    queries: int
    keys: int
    batch: int
    heads: int
    group: int
    #: Of the parameters above, those that the record has.
    values: tuple[tuple[str, Any], ...]

    @property
    def tile(self) -> tuple[int, ...]:
        known = dict(self.values)
        return tuple(known[name] for name in TILE)

    @property
    def kind(self) -> tuple[Target, str, int, bool]:
        """What decides the code beside the config."""
        return self.target, self.dtype, self.head_size, self.causal


def winners(dejavu_folder: Path | None, aotriton_file: Path | None) -> list[RecordedWinner]:
    """Every problem of both sources that tritune's attention can be asked: fp16 and bf16, heads of
    64 and 128, no dropout, no bias.
    """
    found: list[RecordedWinner] = []
    if dejavu_folder is not None:
        for path in sorted(dejavu_folder.rglob("cache.json")):
            contents = dejavu.read(path, json.loads(path.read_text()))
            if any("BLOCK_M" in trial.config for trial in contents.trials):
                found += _of_dejavu(contents)
    if aotriton_file is not None:
        found += _of_aotriton(aotriton.read(aotriton_file))
    return found


def _of_dejavu(contents: Contents) -> Iterator[RecordedWinner]:
    for trial in contents.trials:
        problem = json.loads(trial.task.problem)
        yield RecordedWinner(
            contents.devices[trial.task.device].target,
            "float16",
            problem["BLOCK_DMODEL"],
            bool(problem["IS_CAUSAL"]),
            problem["MAX_SEQLENS_Q"],
            problem["MAX_SEQLENS_K"],
            DEJAVU_BATCH,
            problem["HQ"],
            problem["HQ"] // problem["HK"],
            _values(trial.config.as_kwargs()),
        )


def _of_aotriton(contents: Contents) -> Iterator[RecordedWinner]:
    for trial in contents.trials:
        problem = json.loads(trial.task.problem)
        dtype = str(problem.get("Q_dtype")).removeprefix("torch.")
        off = ("ENABLE_DROPOUT", "BIAS_TYPE", "USE_ALIBI", "INT8", "PADDED_HEAD")
        if (
            dtype not in ("float16", "bfloat16")
            or problem.get("BLOCK_DMODEL") not in (64, 128)
            or any(problem.get(name) for name in off)
        ):
            continue
        yield RecordedWinner(
            contents.devices[trial.task.device].target,
            dtype,
            problem["BLOCK_DMODEL"],
            problem["CAUSAL_TYPE"] != 0,
            problem["Max_seqlen_q"],
            problem["Max_seqlen_k"],
            *AOTRITON_BATCH_AND_HEADS,
            1,
            _values(trial.config.as_kwargs()),
        )


def _values(config: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    known = {name: config[name] for name in (*TILE, *MORE) if name in config}
    if "PRE_LOAD_V" in known:
        known["PRE_LOAD_V"] = bool(known["PRE_LOAD_V"])
    return tuple(known.items())
