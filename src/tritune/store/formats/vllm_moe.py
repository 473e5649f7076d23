"""vLLM's tuned fused-MoE configs: one file per model shape and device, one config per batch size.

The file's name has the shape and the device, as in
`E=8,N=14336,device_name=NVIDIA_H200,dtype=fp8_w8a8.json`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritune.store.contents import Contents
from tritune.store.document import config_from_json
from tritune.store.errors import FormatError, StoreError
from tritune.store.formats.foreign import (
    claim,
    contents_of,
    imported_run,
    literal,
    named_device,
    winners_of,
)
from tritune.store.jsonfile import brief, write
from tritune.store.records import Task, problem_text

KERNEL = "fused_moe_kernel"
IDENTITY = "vllm-fused-moe"
# Commas separate the fields, except inside the brackets of a block's shape.
_FIELD = re.compile(r"([A-Za-z_]+)=(\[[^\]]*\]|[^,]+)(?:,|$)")


def recognises(path: Path) -> bool:
    return path.name.startswith("E=") and "device_name=" in path.name


def read(path: Path, document: Mapping[str, Any]) -> Contents:
    """Return the configs of one file; batch sizes and shape make the problem."""
    shape = _shape(path)
    device = named_device(str(shape.pop("device_name")).replace("_", " "), path)
    run = imported_run("vllm", {"triton": document.get("triton_version")}, [path.name, document])
    trials = []
    for batch, fields in document.items():
        if batch == "triton_version":
            continue
        if not batch.isdigit():
            raise FormatError(f"{path}: {brief(batch)} is no batch size")
        config = config_from_json(fields, f"{path}: {batch}")
        problem = problem_text({**shape, "M": int(batch)})
        trials.append(claim(Task(KERNEL, IDENTITY, problem, device.fingerprint), config, run))
    return contents_of(device, run, trials)


def write_all(contents: Contents, folder: Path) -> list[Path]:
    """Write a file for every model shape and device whose kernel has the fields of fused MoE."""
    files: dict[str, dict[int, Any]] = defaultdict(dict)
    versions: dict[str, Any] = {}
    for winner, run in winners_of(contents):
        fields = json.loads(winner.task.problem)
        batch = fields.pop("M", None)
        if not isinstance(batch, int) or not {"E", "N"} <= set(fields):
            continue
        name = _name(fields, contents.devices[winner.task.device].name)
        files[name][batch] = winner.config.to_json()
        versions[name] = run.environment.get("triton")
    if not files:
        raise StoreError(
            "there is nothing to write as vllm-moe: no problem has the fields E, N and M"
        )
    for name, configs in files.items():
        version = {"triton_version": versions[name]} if versions[name] else {}
        by_batch = {str(batch): configs[batch] for batch in sorted(configs)}
        write(folder / name, json.dumps({**version, **by_batch}, indent=4) + "\n")
    return sorted(folder / name for name in files)


def _shape(path: Path) -> dict[str, Any]:
    text = path.name.removesuffix(".json")
    shape: dict[str, Any] = {}
    for name, value in _FIELD.findall(text):
        is_list = value.startswith("[")
        shape[name] = [literal(v.strip()) for v in value[1:-1].split(",")] if is_list else value
        if name in ("E", "N") and not value.isdigit():
            raise FormatError(f"{path}: {name} is {brief(value)} in its name, expected a number")
    missing = {"E", "N", "device_name"} - set(shape)
    if missing:
        raise FormatError(f"{path}: its name does not say {', '.join(sorted(missing))}")
    return {**shape, "E": int(shape["E"]), "N": int(shape["N"])}


def _name(shape: Mapping[str, Any], device: str) -> str:
    first = {"E": shape["E"], "N": shape["N"], "device_name": device.replace(" ", "_")}
    usual = [name for name in ("dtype", "block_shape") if name in shape]
    others = sorted(set(shape) - set(first) - set(usual))
    fields = {**first, **{name: shape[name] for name in usual + others}}
    return ",".join(f"{name}={_spelled(value)}" for name, value in fields.items()) + ".json"


def _spelled(value: Any) -> str:
    return str(value).replace(" ", "")
