"""Finding out what is on this machine, without trusting any package to import."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import warnings
from types import ModuleType
from typing import Any, Literal

from tritune._version import TRITON_SUPPORTED, __version__
from tritune.cli._examination import (
    BackendState,
    Device,
    Examination,
    Problem,
    SelfTest,
    Threads,
)
from tritune.cli._examine_optional import examine_optional
from tritune.cli._machine import physical_cores, triton_cache, usable_threads
from tritune.integrations.blame import blame
from tritune.targets.host import cpu_model

_SELF_TEST_SECONDS = 120
_INSTALL = {
    "triton": f"pip install 'triton>={TRITON_SUPPORTED[0][0]}.{TRITON_SUPPORTED[0][1]},"
    f"<{TRITON_SUPPORTED[1][0]}.{TRITON_SUPPORTED[1][1]}'",
    "torch": "pip install torch",
    "llvmlite": "pip install llvmlite",
    "numpy": "pip install numpy",
}


def examine() -> Examination:
    """Look at everything once. Never raises: what fails becomes a problem in the result."""
    with warnings.catch_warnings():
        # What packages warn of while they are examined is in the result, or is no concern here.
        warnings.simplefilter("ignore")
        return _examine()


def _examine() -> Examination:
    problems: list[Problem] = []
    modules = {name: _load(name, problems) for name in ("numpy", "torch", "llvmlite", "triton")}
    _check_triton_version(modules["triton"], problems)
    backends = _backends(modules, problems)
    cpu = _cpu(problems if modules["llvmlite"] else [])
    caches = (triton_cache(problems),)
    threads = _threads(problems)
    in_use = next((backend.name for backend in backends if backend.in_use), None)
    self_test = _self_test(in_use, problems) if in_use and modules["torch"] else None
    if os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y"):
        problems.append(
            Problem(
                "warning",
                "TRITON_INTERPRET is set: kernels run in Triton's interpreter, thousands of times "
                "slower than compiled",
                "unset TRITON_INTERPRET",
            )
        )
    return Examination(
        versions=_versions(modules),
        devices=(cpu, *_gpus(modules["torch"], problems)),
        backends=backends,
        threads=threads,
        caches=caches,
        self_test=self_test,
        optional=examine_optional(problems),
        problems=tuple(problems),
    )


def _load(name: str, problems: list[Problem]) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            problems.append(Problem("error", f"{name} is not installed", _INSTALL[name]))
            return None
        blamed = blame(error, name)
        if blamed.package != name:
            what = f"{name} cannot be imported, for {blamed.package} fails: {blamed.error}"
            problems.append(Problem("error", what, blamed.remedy))
            return None
        remedy = f"reinstall it: {_INSTALL[name]} --force-reinstall"
        if name == "triton":
            remedy += "; if a plug-in is to blame, TRITON_BACKENDS_IN_TREE=1 leaves all of them out"
        problems.append(Problem("error", f"{name} cannot be imported: {brief(error)}", remedy))
        return None


def _check_triton_version(triton: ModuleType | None, problems: list[Problem]) -> None:
    if triton is None:
        return
    version = str(getattr(triton, "__version__", "unknown"))
    match = re.match(r"(\d+)\.(\d+)", version)
    first, too_new = TRITON_SUPPORTED
    if match is None or not first <= (int(match[1]), int(match[2])) < too_new:
        problems.append(
            Problem(
                "error",
                f"triton {version} is outside the supported range, "
                f"{first[0]}.{first[1]} up to but not including {too_new[0]}.{too_new[1]}",
                _INSTALL["triton"],
            )
        )


def _versions(modules: dict[str, ModuleType | None]) -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "tritune": __version__,
    }
    for name in ("triton", "torch", "llvmlite", "numpy"):
        module = modules[name]
        versions[name] = str(getattr(module, "__version__", "unknown")) if module else None
    versions["llvm"] = None
    if modules["llvmlite"]:
        try:
            binding = importlib.import_module("llvmlite.binding")
            versions["llvm"] = ".".join(map(str, binding.llvm_version_info))
        except Exception:
            # The import of the CPU backend fails for the same reason, and is reported there.
            versions["llvm"] = None
    return versions


def _backends(
    modules: dict[str, ModuleType | None], problems: list[Problem]
) -> tuple[BackendState, ...]:
    if modules["triton"] is None:
        return ()
    found: dict[str, Any] = importlib.import_module("triton.backends").backends
    inactive = {name: _inactive_reason(name, found[name], modules["torch"]) for name in found}
    active = [name for name in found if inactive[name] is None]
    if "cpu" not in found:
        remedy = "install tritune with pip, so that Triton finds its entry point"
        if os.environ.get("TRITON_BACKENDS_IN_TREE") == "1":
            remedy = "unset TRITON_BACKENDS_IN_TREE, which keeps plug-ins out"
        severity: Literal["error", "warning"] = "warning" if active else "error"
        problems.append(Problem(severity, "Triton does not know tritune's CPU backend", remedy))
    in_use = _chosen(list(found), active, inactive, problems)
    return tuple(
        BackendState(name, active=name in active, in_use=name == in_use, reason=inactive[name])
        for name in found
    )


def _inactive_reason(name: str, backend: Any, torch: ModuleType | None) -> str | None:
    """Why a backend is inactive, or None for an active one."""
    try:
        if backend.driver.is_active():
            return None
        if name == "cpu":
            driver = importlib.import_module("tritune.cpu.driver")
            reason = driver.unavailable_reason()
            return " ".join(str(reason).split()) if reason else "a GPU driver is active"
    except Exception as error:
        return f"its driver failed: {brief(error)}"
    vendor = {"nvidia": "CUDA", "amd": "ROCm"}.get(name)
    if vendor is None:
        return "its driver says so"
    if torch is None:
        return "it needs torch"
    built = torch.version.cuda if name == "nvidia" else torch.version.hip
    return f"torch sees no {vendor} GPU" if built else f"torch is built without {vendor}"


def _chosen(
    known: list[str],
    active: list[str],
    inactive: dict[str, str | None],
    problems: list[Problem],
) -> str | None:
    """The backend that Triton would take, by its own rule."""
    asked = os.environ.get("TRITON_DEFAULT_BACKEND")
    if asked and asked not in known:
        problems.append(
            Problem(
                "error",
                f"TRITON_DEFAULT_BACKEND names an unknown backend, {asked!r}",
                f"set it to one of {', '.join(known) or 'none'}, or unset it",
            )
        )
    elif asked and asked not in active:
        problems.append(
            Problem(
                "error",
                f"TRITON_DEFAULT_BACKEND asks for {asked!r}, which is inactive: {inactive[asked]}",
                "mend that, or unset TRITON_DEFAULT_BACKEND",
            )
        )
    elif asked:
        return asked
    elif len(active) == 1:
        return active[0]
    elif active:
        problems.append(
            Problem(
                "error",
                f"several backends are active ({', '.join(active)}): Triton refuses to choose",
                f"choose one with TRITON_DEFAULT_BACKEND, for example {active[0]}",
            )
        )
    elif "cpu" in known:
        reasons = "; ".join(f"{name}: {inactive[name]}" for name in known)
        problems.append(
            Problem(
                "error", "no backend is active, so no kernel can run", f"mend one of: {reasons}"
            )
        )
    return None


def _cpu(problems: list[Problem]) -> Device:
    name = cpu_model()
    threads = os.cpu_count() or 1
    cores = physical_cores() or threads
    usable = usable_threads()
    try:
        host = importlib.import_module("tritune.cpu.features").host()
        enabled = tuple(
            feature[1:] for feature in host.features.split(",") if feature.startswith("+")
        )
        return Device(
            kind="cpu",
            name=name or host.name,
            target=f"cpu:{host.name}",
            cores=cores,
            threads=threads,
            usable_threads=usable,
            triple=host.triple,
            llvm_cpu=host.name,
            vector_bits=host.vector_bits,
            features=enabled,
        )
    except Exception as error:
        problems.append(
            Problem(
                "error",
                f"the CPU's features cannot be read: {brief(error)}",
                f"reinstall llvmlite: {_INSTALL['llvmlite']} --force-reinstall",
            )
        )
        return Device(
            kind="cpu",
            name=name or platform.machine(),
            cores=cores,
            threads=threads,
            usable_threads=usable,
        )


def _gpus(torch: ModuleType | None, problems: list[Problem]) -> tuple[Device, ...]:
    if torch is None:
        return ()
    try:
        if not torch.cuda.is_available():
            return ()
        kind = "hip" if torch.version.hip else "cuda"
        found = []
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            arch = (
                facts.gcnArchName.split(":")[0] if kind == "hip" else f"{facts.major}{facts.minor}"
            )
            found.append(
                Device(kind, facts.name, target=f"{kind}:{arch}", memory_bytes=facts.total_memory)
            )
        return tuple(found)
    except Exception as error:
        problems.append(
            Problem(
                "warning",
                f"torch cannot list its GPUs: {brief(error)}",
                "check the GPU's driver, with nvidia-smi or rocm-smi",
            )
        )
        return ()


def _threads(problems: list[Problem]) -> Threads | None:
    setting = os.environ.get("TRITUNE_NUM_THREADS")
    try:
        count = int(importlib.import_module("tritune.cpu.launch.threads").count())
    except Exception as error:
        problems.append(
            Problem(
                "error",
                f"the number of threads is unknown: {brief(error)}",
                "set TRITUNE_NUM_THREADS to a whole number of at least 1"
                if setting
                else "mend the problems above; the number normally comes from torch",
            )
        )
        return None
    if count > 1 and not _shares_torch_threads():
        problems.append(
            Problem(
                "warning",
                "torch has no OpenMP library that kernels could share: they run on one thread",
                "install torch from PyPI or pytorch.org, whose wheels for Linux carry libgomp",
            )
        )
    return Threads(count, "TRITUNE_NUM_THREADS" if setting else "torch")


def _shares_torch_threads() -> bool:
    try:
        return importlib.import_module("tritune.cpu.launch.loader")._gomp_parallel() is not None
    except Exception:
        return True  # torch or the backend is broken, which is reported where it was loaded


def _self_test(backend: str, problems: list[Problem]) -> SelfTest:
    error: str | None = None
    try:
        run = subprocess.run(
            [sys.executable, "-m", "tritune.cli._self_test"],
            capture_output=True,
            text=True,
            timeout=_SELF_TEST_SECONDS,
        )
        if run.returncode < 0:
            error = f"its process died of signal {-run.returncode}"
        elif run.returncode > 0:
            lines = run.stderr.strip().splitlines()
            error = lines[-1] if lines else f"exit status {run.returncode}"
    except subprocess.TimeoutExpired:
        error = f"no answer after {_SELF_TEST_SECONDS} s"
    except OSError as failure:
        error = brief(failure)
    if error:
        problems.append(
            Problem(
                "error",
                f"a small kernel fails on backend {backend!r}: {error}",
                f"see all of it with: {sys.executable} -m tritune.cli._self_test",
            )
        )
    return SelfTest(backend, passed=error is None, error=error)


def brief(error: BaseException) -> str:
    """The first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
