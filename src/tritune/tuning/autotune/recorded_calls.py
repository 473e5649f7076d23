"""Calls that were recorded to be tuned later, elsewhere: a file for each, beside the store.

A file holds the kernel, the launch of each config, and of the arguments what matters: integers,
which may say where to read, as they are; floating-point numbers by their shape, mean and standard
deviation, for a recorded model must not fill the disk.

Recorded calls are trusted like code, because reading one runs code. So a file that another user
could have written is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tritune.kernels.kernel import Problem
from tritune.policy.sources import warn_once
from tritune.space import Config
from tritune.space.listed import Listed
from tritune.store import Store
from tritune.store.records import problem_text
from tritune.targets.device import detect
from tritune.tuning.autotune.call_folder import TunableCall, WrittenCase, case_in, write_case
from tritune.tuning.autotune.call_memory import memory_table, region_file
from tritune.tuning.autotune.pickling import TransferError
from tritune.tuning.autotune.triton_configs import Candidates
from tritune.tuning.autotune.tune_call import CallTask, job_of, kernel_of, settings_for

if TYPE_CHECKING:
    from tritune.tuning.job import Outcome, Progress, Settings

_SUFFIX = ".call"
#: The member that describes the others; its "format" changes when older files cannot be read.
_METADATA = "about.json"
_FORMAT = 2
#: The integers that one file may hold.
_MOST_BYTES = 1 << 28


class CallProblem(Problem):
    """The fields of a recorded problem."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        vars(self).update(fields)

    def fields(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class RecordedCall:
    """A call in a file."""

    path: Path
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.metadata["kernel"])

    @property
    def problem(self) -> CallProblem:
        return CallProblem(self.metadata["fields"])

    @property
    def device(self) -> torch.device:
        return torch.device(self.metadata["device"])

    @property
    def call_task(self) -> CallTask:
        data = self.metadata
        configs = [Config.from_json(each) for each in data["configs"]]
        candidates = Candidates(Listed(configs), Config.from_json(data["default"]), {})
        kernel = kernel_of(data["kernel"], data["digest"])
        return CallTask(kernel, data["fields"], self.device, candidates)

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[WrittenCase]:
        """Unpack the call to a folder, which is there for as long as the block."""
        with tempfile.TemporaryDirectory(prefix="tritune-call-") as folder:
            with _opened(self.path) as archive:
                archive.extractall(folder)
            for number, statistics in enumerate(self.metadata["regions"]):
                if statistics is not None:
                    _random_like(statistics).numpy().tofile(region_file(Path(folder), number))
            regions = memory_table(Path(folder))["regions"]
            yield case_in(folder, sum(each["nbytes"] for each in regions))


def folder_of(store: Store) -> Path:
    """Return where the calls are that go with a store."""
    return store.database.location.beside("calls")


def record_call(task: CallTask, call: TunableCall, store: Store) -> None:
    """Write a call to a file, once; TransferError where something of it cannot be sent or written.

    A file of another version of tritune is written over; one of another user is left alone.
    """
    points, default = task.candidates.points, task.candidates.default
    if call.launches is None:
        raise TransferError(f"its space has {points.size()} configs, too many to list")
    device = detect(task.device)
    store.add_device(device)
    problem = problem_text(task.fields)
    store.record_problem(task.kernel.name, problem, device.fingerprint)
    digest = task.kernel.functions[0].cache_key
    key = hashlib.sha256("\0".join([digest, problem, task.device.type]).encode()).hexdigest()
    name = re.sub(r"[^\w.]+", "_", task.kernel.name)[-80:]
    path = folder_of(store) / f"{name}-{key[:16]}{_SUFFIX}"
    if _metadata(path).get("format") == _FORMAT:
        return
    with tempfile.TemporaryDirectory(prefix="tritune-call-") as folder:
        write_case(folder, call)
        metadata = {
            "format": _FORMAT,
            "python": list(sys.version_info[:2]),
            "kernel": task.kernel.name,
            "digest": digest,
            "fields": task.fields,
            "device": str(task.device),
            "configs": [config.to_json() for config in points.configs()],
            "default": default.to_json(),
            "regions": _statistics_of_regions(Path(folder)),
        }
        for number, statistics in enumerate(metadata["regions"]):
            if statistics is not None:
                region_file(Path(folder), number).unlink()
        try:
            _pack(Path(folder), metadata, path)
        except OSError as error:
            raise TransferError(f"{path} cannot be written: {error.strerror}") from error


def _pack(folder: Path, metadata: Mapping[str, Any], path: Path) -> None:
    """Write metadata and the files of a folder to a recorded call."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600)
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_METADATA, json.dumps(metadata))
        for file in sorted(folder.iterdir()):
            archive.write(file, file.name)
    os.replace(part, path)


def recorded_calls(store: Store) -> list[RecordedCall]:
    """Return the recorded calls, without those of another Python's programs."""
    found = []
    for path in sorted(folder_of(store).glob(f"*{_SUFFIX}")):
        try:
            metadata = _metadata(path)
        except TransferError as error:
            warn_once(str(error))
            continue
        if metadata and metadata.get("format") != _FORMAT:
            warn_once(f"{path} is from another version of tritune: record the call again")
        elif metadata.get("python") == list(sys.version_info[:2]):
            found.append(RecordedCall(path, metadata))
    return found


def tune_recorded_calls(
    calls: Sequence[RecordedCall],
    store: Store,
    settings: Settings,
    command: str,
    begin: Callable[[RecordedCall, CallProblem], None],
    watch: Callable[[Progress], None],
) -> Iterator[tuple[RecordedCall, Outcome]]:
    """Tune calls one after the other; what is in the store is not measured again."""
    from tritune.tuning.measure.environment import environment
    from tritune.tuning.tuner import begin_run, tune_case
    from tritune.tuning.workers.kept_workers import Workers

    if not calls:
        return
    run = begin_run(store, command, environment(settings))
    with Workers(settings) as workers:
        for call in calls:
            begin(call, call.problem)
            task = call.call_task
            with call.unpacked() as written:
                job = job_of(task, written, store)
                here = settings_for(task, written.nbytes)
                roomy = here.memory_bytes <= settings.memory_bytes
                shared = workers if roomy else None
                yield call, tune_case(job, store, run, here, watch, shared)


def _metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a file; nothing where it has none that can be read.

    TransferError where another user could have written it.
    """
    try:
        with _opened(path) as archive:
            metadata = json.loads(archive.read(_METADATA))
    except PermissionError as error:
        raise TransferError(f"{path} cannot be read: {error.strerror}") from error
    except (OSError, zipfile.BadZipFile, KeyError, ValueError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a recorded call; TransferError where another user could have written it."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o022:
            raise TransferError(
                f"{path} is not read, because another user could have written it and reading it "
                "runs code: if you trust it, make it your own (cp) and private (chmod 600)"
            )
        with zipfile.ZipFile(file) as archive:
            yield archive


def _statistics_of_regions(folder: Path) -> list[dict[str, Any] | None]:
    """Describe each region of memory for `_random_like`; None where its contents count."""
    table = memory_table(folder)
    found: list[dict[str, Any] | None] = []
    kept = 0
    for number, region in enumerate(table["regions"]):
        kinds = {tensor["dtype"] for tensor in table["tensors"] if tensor["region"] == number}
        kind = kinds.pop() if len(kinds) == 1 else "uint8"
        if getattr(torch, kind).is_floating_point and region["nbytes"]:
            found.append(_statistics(region_file(folder, number), region["nbytes"], kind))
        else:
            kept += region["nbytes"]
            found.append(None)
    if kept > _MOST_BYTES:
        raise TransferError(
            f"its arguments hold {kept >> 20} MiB of whole numbers, and a file takes no more than "
            f"{_MOST_BYTES >> 20} MiB"
        )
    return found


def _statistics(path: Path, nbytes: int, kind: str) -> dict[str, Any]:
    dtype = getattr(torch, kind)
    count = nbytes // dtype.itemsize
    values = torch.from_file(str(path), shared=False, size=count, dtype=dtype).double()
    # Memory that was never written may hold anything.
    values = values[values.isfinite() & (values.abs() < 2.0**60)]
    mean, spread = (values.mean(), values.std(correction=0)) if len(values) else (0.0, 0.0)
    return {"dtype": kind, "nbytes": nbytes, "mean": float(mean), "spread": float(spread)}


def _random_like(statistics: Mapping[str, Any]) -> torch.Tensor:
    """Return the bytes of random numbers like those that were recorded; the same every time."""
    dtype = getattr(torch, statistics["dtype"])
    count = math.ceil(statistics["nbytes"] / dtype.itemsize)
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=generator) * statistics["spread"] + statistics["mean"]
    return values.to(dtype).view(torch.uint8)[: statistics["nbytes"]]
