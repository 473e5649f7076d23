"""triton-dejavu's caches: `cache.json` with the winner of each key and its time.

Which device, compiler and kernel it holds for is in the names of the folders:
`dejavu_0.7/triton_3.2.0/cuda_12.4/gpu_NVIDIA_…/KERNEL/autotune_config-…/code_version-…/
tune_features-…/kernel_configs-…/default/cache.json`.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune.space import Config
from tritune.store.contents import Contents
from tritune.store.decide_winner import Winner
from tritune.store.document import config_from_json
from tritune.store.document import read as document_of
from tritune.store.errors import FormatError
from tritune.store.formats.foreign import (
    claim,
    contents_of,
    imported_run,
    literal,
    named_device,
    winners_of,
)
from tritune.store.jsonfile import brief, write
from tritune.store.records import Run, Task, Trial, problem_text
from tritune.targets.device import Device

FILE = "cache.json"
#: Where the types of the tensor arguments go, which a key has after the named values.
TYPES = "dtypes"
_DRIVERS = {"cuda": "CUDA", "rocm": "ROCm"}


@dataclass(frozen=True)
class _Place:
    """The facts that a cache's folders are named for."""

    triton: str
    driver: str
    gpu: str
    kernel: str
    #: From the kernel's folder down: hashes of the code, the keys and the configs.
    hashes: tuple[str, ...]

    @property
    def identity(self) -> str:
        text = "/".join((self.triton, self.driver, *self.hashes))
        return f"dejavu-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class _Cache:
    cache: dict[str, Any]
    keys: list[Any] | None = None
    timings: dict[str, Any] | None = None


def recognises(document: Any) -> bool:
    return isinstance(document, Mapping) and {"cache", "signature"} <= set(document)


def read(path: Path, document: Any) -> Contents:
    """Return the winners of one cache."""
    place = _place(path)
    kind, _, version = place.driver.partition("_")
    driver = f"{_DRIVERS.get(kind, kind)} {version}"
    device = named_device(place.gpu.replace("_", " "), path, driver)
    cache = document_of(_Cache, document, path)
    settings = {name: value for name, value in document.items() if name not in ("cache", "timings")}
    folders = ["dejavu", place.triton, place.driver, place.gpu, place.kernel, *place.hashes]
    run = imported_run("dejavu", {"folders": folders, "settings": settings}, document["cache"])
    timings = cache.timings or {}
    trials: list[Trial] = []
    for key, text in cache.cache.items():
        problem = problem_text(_problem(key, cache.keys or [], path))
        task = Task(place.kernel, place.identity, problem, device.fingerprint)
        trials.append(claim(task, _config(text, path), run, _times(timings.get(key), document)))
    return contents_of(device, run, trials)


def write_all(contents: Contents, folder: Path) -> list[Path]:
    """Write a cache for every kernel, code and device.

    triton-dejavu looks for a cache under hashes that only it can compute. What came from it goes
    back to its own path; for other results, the folders are filled with what is known.
    """
    files: dict[Path, list[tuple[Winner, Run]]] = defaultdict(list)
    for winner, run in winners_of(contents):
        files[folder / _folders(winner, run, contents.devices) / FILE].append((winner, run))
    for path, group in files.items():
        write(path, json.dumps(_document(group), indent=4) + "\n")
    return sorted(files)


def _place(path: Path) -> _Place:
    parts = path.absolute().parts
    gpu = next((i for i in reversed(range(len(parts))) if parts[i].startswith("gpu_")), None)
    if gpu is None or gpu < 2 or len(parts) < gpu + 3 or not parts[gpu - 2].startswith("triton_"):
        raise FormatError(
            f"{path}: the folders of a triton-dejavu cache say what it holds for, expected "
            "triton_VERSION/cuda_VERSION/gpu_NAME/KERNEL/…/cache.json"
        )
    return _Place(
        triton=parts[gpu - 2].removeprefix("triton_"),
        driver=parts[gpu - 1],
        gpu=parts[gpu].removeprefix("gpu_"),
        kernel=parts[gpu + 1],
        hashes=parts[gpu + 2 : -1],
    )


def _problem(key: str, names: Sequence[Any], path: Path) -> dict[str, Any]:
    try:
        values = ast.literal_eval(key)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        values = None
    if not isinstance(values, tuple) or len(values) < len(names):
        raise FormatError(f"{path}: the key {brief(key)} does not fit the keys {brief(names)}")
    texts = [str(value) for value in values]
    fields = {str(name): literal(text) for name, text in zip(names, texts, strict=False)}
    return {**fields, TYPES: texts[len(names) :]}


def _config(text: Any, path: Path) -> Config:
    pairs = [item.partition(": ") for item in str(text).split(", ")]
    if not isinstance(text, str) or not all(name and colon for name, colon, _ in pairs):
        raise FormatError(f"{path}: {brief(text)} is no config, expected NAME: VALUE, …")
    # None stands for "not set", which a config says by not having the parameter.
    values = {name: literal(value) for name, _, value in pairs if value != "None"}
    return config_from_json(values, path)


def _times(recorded: Any, document: Mapping[str, Any]) -> list[Any]:
    """Return the time itself, of lists that may have the quantiles too."""
    if isinstance(recorded, Mapping):  # as early versions wrote it
        recorded = recorded.get("values")
    if not isinstance(recorded, list):
        return [] if recorded is None else [recorded]
    details = document.get("timings_data")
    labels = details.get("labels") if isinstance(details, Mapping) else None
    place = labels.index("ms") if isinstance(labels, list) and "ms" in labels else 0
    return recorded[place : place + 1]


def _folders(winner: Winner, run: Run, devices: Mapping[str, Device]) -> Path:
    known = run.environment.get("folders")
    if run.environment.get("tool") == "dejavu" and isinstance(known, list):
        _, triton, driver, gpu, kernel, *hashes = (str(part) for part in known)
    else:
        device = devices[winner.task.device]
        versions = run.environment.get("versions")
        triton = str(versions.get("triton")) if isinstance(versions, Mapping) else "unknown"
        driver = f"{device.target.family}_{device.driver or 'unknown'}"
        gpu, kernel = device.name, winner.task.kernel
        hashes = [f"code_version-{winner.task.identity}", "default"]
    parts = ("dejavu_0.7", f"triton_{triton}", driver, f"gpu_{gpu}", kernel, *hashes)
    # A name from a store may hold anything; it must stay one folder below the one that was asked.
    return Path(*(_plain(part) for part in parts))


def _plain(part: str) -> str:
    text = "".join(c if c.isalnum() or c in "-_.+" else "_" for c in part)
    return text if text.strip(".") else "_"


def _document(group: Sequence[tuple[Winner, Run]]) -> dict[str, Any]:
    settings = group[0][1].environment.get("settings")
    known = dict(settings) if isinstance(settings, Mapping) else {}
    fields = [json.loads(winner.task.problem) for winner, _ in group]
    every = sorted(set().union(*fields) - {TYPES})
    names = known.get("keys") or every
    keys = [_key(problem, names) for problem in fields]
    kernel = group[0][0].task.kernel
    return {
        "signature": known.get("signature", f"JITFunction({kernel})"),
        "total_bench_time_s": known.get("total_bench_time_s", 0.0),
        "evaluated_configs": known.get("evaluated_configs", len(group)),
        "keys": names,
        "cache": {key: _spelled(winner) for key, (winner, _) in zip(keys, group, strict=True)},
        "timings": {
            key: [winner.ms] for key, (winner, _) in zip(keys, group, strict=True) if winner.ms
        },
        "timings_data": known.get("timings_data", {"labels": ["ms"]}),
    }


def _key(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    values = [str(fields.get(name)) for name in names]
    types = fields.get(TYPES)
    return str((*values, *(types if isinstance(types, list) else ())))


def _spelled(winner: Winner) -> str:
    return ", ".join(f"{name}: {value}" for name, value in winner.config.to_json().items())
