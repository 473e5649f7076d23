"""Calls written down to be tuned later, elsewhere: a file for each, beside the store.

A file holds the kernel, what each config makes of the call, and of the arguments what matters:
whole numbers, which may say where to read, as they are; floating-point numbers by their shape,
mean and spread, for a recorded model must not fill the disk.
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
from tritune.space import Config
from tritune.space.listed import Listed
from tritune.store import Store
from tritune.store.location import default_path
from tritune.store.records import problem_text
from tritune.targets.device import detect
from tritune.tuning.autotune.call_folder import CallToTune, WrittenCase, case_in, write_case
from tritune.tuning.autotune.portable import PortableError
from tritune.tuning.autotune.portable.packer import FILE
from tritune.tuning.autotune.tune_call import Question, job_of, kernel_with_digest, settings_for

if TYPE_CHECKING:
    from tritune.tuning.tuner import Outcome, Progress, Settings

_SUFFIX = ".call"
_ABOUT = "about.json"
#: The memory of whole numbers that one file may hold.
_MOST_BYTES = 1 << 28


class CallProblem(Problem):
    """The facts about a call that its `key` names."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        vars(self).update(fields)

    def fields(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class RecordedCall:
    """A call in a file."""

    path: Path
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.about["kernel"])

    @property
    def problem(self) -> CallProblem:
        return CallProblem(self.about["fields"])

    @property
    def device(self) -> torch.device:
        return torch.device(self.about["device"])

    def question(self) -> Question:
        """Return what has to be decided."""
        about = self.about
        return Question(
            kernel_with_digest(about["kernel"], about["digest"]),
            about["fields"],
            self.device,
            Listed([Config.from_json(each) for each in about["configs"]]),
            Config.from_json(about["default"]),
        )

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[WrittenCase]:
        """Unpack the call to a folder, which is there for as long as the block."""
        with tempfile.TemporaryDirectory(prefix="tritune-call-") as folder:
            with zipfile.ZipFile(self.path) as archive:
                archive.extractall(folder)
            document = json.loads((Path(folder) / FILE).read_text())
            for number, sketch in enumerate(self.about["regions"]):
                if sketch is not None:
                    _made_up(sketch).numpy().tofile(Path(folder) / f"region{number}")
            yield case_in(folder, sum(each["nbytes"] for each in document["regions"]))


def folder_of(store: Store) -> Path:
    """Return where the calls are that go with a store."""
    location = store.database.location
    if location.path is not None:
        return location.path.with_name(location.path.name + ".calls")
    name = hashlib.sha256(str(location).encode()).hexdigest()[:16]
    return default_path().with_name(f"{name}.calls")


def record_call(question: Question, wanted: CallToTune, store: Store) -> None:
    """Write a call down, once; PortableError where something of it cannot be sent."""
    if wanted.configs is None:
        raise PortableError(f"its space has {question.points.size()} configs, too many to list")
    device = detect(question.device)
    store.add_device(device)
    problem = problem_text(question.fields)
    store.record_problem(question.kernel.name, problem, device.fingerprint)
    digest = question.kernel.functions[0].cache_key
    key = hashlib.sha256("\0".join([digest, problem, question.device.type]).encode()).hexdigest()
    name = re.sub(r"[^\w.]+", "_", question.kernel.name)[-80:]
    path = folder_of(store) / f"{name}-{key[:16]}{_SUFFIX}"
    if path.exists():
        return
    with tempfile.TemporaryDirectory(prefix="tritune-call-") as folder:
        write_case(folder, wanted)
        document = json.loads((Path(folder) / FILE).read_text())
        about = {
            "python": list(sys.version_info[:2]),
            "kernel": question.kernel.name,
            "digest": digest,
            "fields": question.fields,
            "device": str(question.device),
            "configs": [config.to_json() for config in question.points.configs()],
            "default": question.default.to_json(),
            "regions": _sketches(folder, document),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(_ABOUT, json.dumps(about))
            archive.write(Path(folder) / FILE, FILE)
            for number, sketch in enumerate(about["regions"]):
                if sketch is None:
                    archive.write(Path(folder) / f"region{number}", f"region{number}")
        os.replace(part, path)


def recorded_calls(store: Store) -> list[RecordedCall]:
    """Return the recorded calls, without those of another Python's programs."""
    found = []
    for path in sorted(folder_of(store).glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError, zipfile.BadZipFile, KeyError, ValueError):
            with zipfile.ZipFile(path) as archive:
                about = json.loads(archive.read(_ABOUT))
            if about["python"] == list(sys.version_info[:2]):
                found.append(RecordedCall(path, about))
    return found


def tune_recorded_calls(
    calls: Sequence[RecordedCall],
    store: Store,
    settings: Settings,
    command: str,
    begin: Callable[[RecordedCall, CallProblem], None],
    watch: Callable[[Progress], None],
) -> Iterator[tuple[RecordedCall, Outcome]]:
    """Tune calls one after the other; what is known is not measured again."""
    from tritune.tuning.measure.environment import environment
    from tritune.tuning.tuner import begin_run, tune_case
    from tritune.tuning.workers.crew import Crew

    if not calls:
        return
    run = begin_run(store, command, environment(settings))
    with Crew(settings) as crew:
        for call in calls:
            begin(call, call.problem)
            question = call.question()
            with call.unpacked() as written:
                job = job_of(question, written, store)
                here = settings_for(question, written.nbytes)
                roomy = here.memory_bytes <= settings.memory_bytes
                shared = crew if roomy else None
                yield call, tune_case(job, store, run, here, watch, shared)


def _sketches(folder: str, document: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """Describe each region of memory for `_made_up`; None where its contents count."""
    views = [each["view"] for each in document["objects"] if each["is"] == "tensor"]
    found: list[dict[str, Any] | None] = []
    kept = 0
    for number, region in enumerate(document["regions"]):
        kinds = {view["dtype"] for view in views if view["region"] == number}
        kind = kinds.pop() if len(kinds) == 1 else "uint8"
        if getattr(torch, kind).is_floating_point and region["nbytes"]:
            found.append(_sketch(Path(folder) / f"region{number}", region["nbytes"], kind))
        else:
            kept += region["nbytes"]
            found.append(None)
    if kept > _MOST_BYTES:
        raise PortableError(
            f"its arguments hold {kept >> 20} MiB of whole numbers, and a file takes no more than "
            f"{_MOST_BYTES >> 20} MiB"
        )
    return found


def _sketch(path: Path, nbytes: int, kind: str) -> dict[str, Any]:
    dtype = getattr(torch, kind)
    count = nbytes // dtype.itemsize
    values = torch.from_file(str(path), shared=False, size=count, dtype=dtype).double()
    # What nobody has written yet may hold anything.
    values = values[values.isfinite() & (values.abs() < 2.0**60)]
    mean, spread = (values.mean(), values.std(correction=0)) if len(values) else (0.0, 0.0)
    return {"dtype": kind, "nbytes": nbytes, "mean": float(mean), "spread": float(spread)}


def _made_up(sketch: Mapping[str, Any]) -> torch.Tensor:
    """Make numbers like those that were recorded; the same every time."""
    dtype = getattr(torch, sketch["dtype"])
    count = math.ceil(sketch["nbytes"] / dtype.itemsize)
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=generator) * sketch["spread"] + sketch["mean"]
    return values.to(dtype).view(torch.uint8)[: sketch["nbytes"]]
