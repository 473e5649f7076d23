"""What older code stored answers as it did then: tests/fixtures/c60291b says how it was made."""

from __future__ import annotations

import dataclasses
import gzip
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite
import pytest
import triton

from tritune.cpu import features
from tritune.kernels.identity import code_digest, compiler_identity, identity, released_code
from tritune.pack.file import Pack
from tritune.policy.pinned import PinnedSource
from tritune.policy.sources import PolicySource, StoreSource
from tritune.targets.device import Device
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "c60291b"
RECORDED = json.loads((FIXTURES / "answers.json").read_text())
KERNELS = {workload.kernel.name: workload.kernel for workload in WORKLOADS.values()}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device that the results were measured on, as if this process ran there."""
    cpu = features.Cpu(**RECORDED["cpu"])
    monkeypatch.setattr(features, "host", lambda: cpu)
    monkeypatch.setattr(llvmlite, "__version__", RECORDED["llvmlite"])
    monkeypatch.setattr(triton, "__version__", RECORDED["triton"])
    caches = (features.resolve, identity, compiler_identity)
    for cached in caches:
        cached.cache_clear()
    fields = {**RECORDED["device"], "target": Target.parse(RECORDED["device"]["target"])}
    fields.pop("fingerprint")
    # The package's version is no longer part of what a device says of itself.
    yield Device(**{**fields, "driver": fields["driver"].partition(", ")[2]})
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "made-by-c60291b.sqlite"
    path.write_bytes(gzip.decompress((FIXTURES / "store.sqlite.gz").read_bytes()))
    return path


def answers(
    source: PolicySource, device: Device, asked: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    found = []
    for each in asked:
        kernel = KERNELS[each["kernel"]]
        names = [field.name for field in dataclasses.fields(kernel.problem)]
        problem = kernel.problem(**{name: each["problem"][name] for name in names})
        assert problem.fields() == each["problem"]
        answer = source.kernel_policy(kernel, device).answer(problem)
        found.append({**each, "source": answer.source, "config": answer.config.to_json()})
    return found


def test_devices_and_kernels_are_known_by_their_old_names(device: Device) -> None:
    assert device.fingerprint == RECORDED["device"]["fingerprint"]
    found = {name: identity(kernel, device.target) for name, kernel in KERNELS.items()}
    assert found == RECORDED["identities"]


def test_an_old_store_gives_the_same_answers(device: Device, store: Path) -> None:
    assert answers(StoreSource(str(store)), device, RECORDED["store"]) == RECORDED["store"]


def test_an_old_pinned_file_gives_the_same_answers_without_a_warning(device: Device) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = PinnedSource(FIXTURES / "winners.json")
        assert source.digest() == RECORDED["pinned digest"]
        assert answers(source, device, RECORDED["pinned"]) == RECORDED["pinned"]


@pytest.mark.parametrize("name", ["cpu", "cuda90"])
def test_an_old_pack_opens_and_has_the_same_entries(name: str) -> None:
    with Pack(FIXTURES / f"{name}.pack") as pack:
        sections = [
            {
                "op": section.op,
                "kernel": section.kernel,
                "target": section.target,
                "problem": dict(section.problem),
                "configs": [build.config.to_json() for build in section.builds],
                "entries": [list(build.entries) for build in section.builds],
            }
            for section in pack.sections
        ]
        entries = {k: [e.binary_sha256, e.metadata_sha256] for k, e in pack.entries.items()}
    assert {"sections": sections, "entries": entries} == RECORDED["packs"][name]


@pytest.mark.parametrize("name", KERNELS)
def test_the_device_code_of_a_kernel_is_the_code_that_has_its_name(name: str) -> None:
    now = code_digest(KERNELS[name].functions)
    assert released_code()[name]["digest"] == now, (
        f"the device code of {name} has changed. If `make golden` says that the generated code has "
        f"not, write the digest {now} into src/tritune/kernels/released.json: stored results stay "
        f"valid. If it has, write it as the only name, too: they are forgotten"
    )
