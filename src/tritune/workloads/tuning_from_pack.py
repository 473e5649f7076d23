"""Tune from a pack: only its problems and configs, with its binaries in Triton's cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from triton import knobs

from tritune.kernels.kernel import Problem
from tritune.pack.check_usable import sections_for
from tritune.pack.contents import Section
from tritune.pack.entries import PackError
from tritune.pack.file import Pack
from tritune.space import Listed
from tritune.targets.device import target_of
from tritune.targets.target import Target
from tritune.tuning.job import Job
from tritune.tuning.search import Prior
from tritune.workloads.catalog import WORKLOADS

#: The weight of the pack's estimates beside measurements for near problems.
_SIMILARITY = 0.5


def unpack(
    path: str | Path, device: torch.device, ops: Collection[str] = ()
) -> dict[tuple[str, Problem], Section]:
    """Check a pack, install its binaries in Triton's cache, and return its sections.

    Triton then finds the binaries in any process as if it had compiled them here.
    """
    kernels = {name: workload.kernel for name, workload in WORKLOADS.items()}
    target = target_of(device)
    with Pack(path) as pack:
        sections = sections_for(pack, target, kernels, ops)
        found = {(each.op, _problem(each, target, pack)): each for each in sections}
        keys = dict.fromkeys(key for section in sections for key in section.kernel_keys())
        pack.install(list(keys), Path(knobs.cache.dir))
    return found


def packed_job(job: Job, section: Section) -> Job:
    """Return the job restricted to the configs of a section, in the order of their estimates.

    The default config is in every pack, unless it could not be compiled.
    """
    configs = [build.config for build in section.builds]
    default = job.default if job.default in configs else configs[0]
    guesses = {
        build.config: build.estimate_ms for build in section.builds if build.estimate_ms is not None
    }
    prior = [*job.prior, Prior(guesses, _SIMILARITY)] if guesses else job.prior
    return replace(job, points=Listed(configs), default=default, prior=prior)


def _problem(section: Section, target: Target, pack: Pack) -> Problem:
    """Return the problem of a section; raise PackError where it or its configs are not the op's."""
    workload = WORKLOADS[section.op]
    problem = workload.exactly(section.problem)
    if not section.builds:
        raise PackError(f"{pack.path} has no config for {section.op} on {target}: nothing was left")
    default = workload.kernel.default(problem, target.family, target.arch)
    points = workload.kernel.space.on(target.family, target.arch, section.problem)
    for build in section.builds:
        if build.config != default and build.config not in points:
            raise PackError(
                f"{pack.path} has a config that {section.op} does not have: {build.config}"
            )
    return problem
