"""Find out what is on this machine, without trusting any package to import."""

from __future__ import annotations

import importlib
import os
import platform
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from tritune._version import TRITON_SUPPORTED, __version__
from tritune.cli._examination import (
    BackendState,
    Cache,
    Device,
    Examination,
    Problems,
    SelfTest,
    Threads,
)
from tritune.cli._examine_optional import examine_optional
from tritune.integrations.dependencies import failed_import
from tritune.targets.host import cpu_model, physical_cores, usable_threads

_SELF_TEST_SECONDS = 120
_FIRST, _TOO_NEW = (f"{major}.{minor}" for major, minor in TRITON_SUPPORTED)
_INSTALL = {
    "numpy": "pip install numpy",
    "torch": "pip install torch",
    "llvmlite": "pip install llvmlite",
    "triton": f"pip install 'triton>={_FIRST},<{_TOO_NEW}'",
}

#: The packages that could be imported; None for the others.
Modules = dict[str, ModuleType | None]


def examine() -> Examination:
    """Look at everything once. Never raises: what fails becomes a problem in the result."""
    problems = Problems()
    with warnings.catch_warnings():
        # What packages warn of while they are examined is in the result, or is no concern here.
        warnings.simplefilter("ignore")
        modules = {name: _load(name, problems) for name in _INSTALL}
        _check_triton_version(modules["triton"], problems)
        backends = _backends(modules, problems)
        cpu = _cpu(problems if modules["llvmlite"] else Problems())
        cache = _triton_cache(problems)
        threads = _threads(problems)
        in_use = next((backend.name for backend in backends if backend.in_use), None)
        self_test = _self_test(in_use, problems) if in_use and modules["torch"] else None
        _check_interpreter(problems)
        return Examination(
            versions=_versions(modules),
            devices=(cpu, *_gpus(modules["torch"], problems)),
            backends=backends,
            threads=threads,
            caches=(cache,),
            self_test=self_test,
            optional=examine_optional(problems),
            problems=tuple(problems),
        )


def _load(name: str, problems: Problems) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            problems.error(f"{name} is not installed", _INSTALL[name])
            return None
        failed = failed_import(error, name)
        if failed.package != name:
            what = f"{name} cannot be imported, for {failed.package} fails: {failed.error}"
            problems.error(what, failed.remedy)
            return None
        remedy = f"reinstall it: {_INSTALL[name]} --force-reinstall"
        if name == "triton":
            remedy += "; if a plug-in is to blame, TRITON_BACKENDS_IN_TREE=1 leaves all of them out"
        problems.error(f"{name} cannot be imported: {_brief(error)}", remedy)
        return None


def _check_triton_version(triton: ModuleType | None, problems: Problems) -> None:
    if triton is None:
        return
    version = str(getattr(triton, "__version__", "unknown"))
    match = re.match(r"(\d+)\.(\d+)", version)
    first, too_new = TRITON_SUPPORTED
    if match is None or not first <= (int(match[1]), int(match[2])) < too_new:
        problems.error(
            f"triton {version} is outside the supported range, "
            f"{_FIRST} up to but not including {_TOO_NEW}",
            _INSTALL["triton"],
        )


def _check_interpreter(problems: Problems) -> None:
    if os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y"):
        problems.warning(
            "TRITON_INTERPRET is set: kernels run in Triton's interpreter, thousands of times "
            "slower than compiled",
            "unset TRITON_INTERPRET",
        )


def _versions(modules: Modules) -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "tritune": __version__,
    }
    for name in ("triton", "torch", "llvmlite", "numpy"):
        module = modules[name]
        versions[name] = str(getattr(module, "__version__", "unknown")) if module else None
    try:
        binding = importlib.import_module("llvmlite.binding")
        versions["llvm"] = ".".join(map(str, binding.llvm_version_info))
    except Exception:
        # The import of the CPU backend fails for the same reason, and is reported there.
        versions["llvm"] = None
    return versions


def _backends(modules: Modules, problems: Problems) -> tuple[BackendState, ...]:
    if modules["triton"] is None:
        return ()
    found: dict[str, Any] = importlib.import_module("triton.backends").backends
    inactive = {name: _inactive_reason(name, found[name], modules["torch"]) for name in found}
    if "cpu" not in found:
        remedy = "install tritune with pip, so that Triton finds its entry point"
        if os.environ.get("TRITON_BACKENDS_IN_TREE") == "1":
            remedy = "unset TRITON_BACKENDS_IN_TREE, which keeps plug-ins out"
        report = problems.error if all(inactive.values()) else problems.warning
        report("Triton does not know tritune's CPU backend", remedy)
    in_use = _chosen(inactive, problems)
    return tuple(
        BackendState(name, active=reason is None, in_use=name == in_use, reason=reason)
        for name, reason in inactive.items()
    )


def _inactive_reason(name: str, backend: Any, torch: ModuleType | None) -> str | None:
    """Return why a backend is inactive, None for an active one."""
    try:
        if backend.driver.is_active():
            return None
        if name == "cpu":
            driver = importlib.import_module("tritune.cpu.driver")
            reason = driver.unavailable_reason()
            return " ".join(str(reason).split()) if reason else "a GPU driver is active"
    except Exception as error:
        return f"its driver failed: {_brief(error)}"
    vendor = {"nvidia": "CUDA", "amd": "ROCm"}.get(name)
    if vendor is None:
        return "its driver says so"
    if torch is None:
        return "it needs torch"
    built = torch.version.cuda if name == "nvidia" else torch.version.hip
    return f"torch sees no {vendor} GPU" if built else f"torch is built without {vendor}"


def _chosen(inactive: dict[str, str | None], problems: Problems) -> str | None:
    """Return the backend that Triton chooses; `inactive` has all it knows, as `_inactive_reason`
    describes them.
    """
    active = [name for name, reason in inactive.items() if reason is None]
    asked = os.environ.get("TRITON_DEFAULT_BACKEND")
    if asked and asked not in inactive:
        problems.error(
            f"TRITON_DEFAULT_BACKEND names an unknown backend, {asked!r}",
            f"set it to one of {', '.join(inactive) or 'none'}, or unset it",
        )
    elif asked and asked not in active:
        problems.error(
            f"TRITON_DEFAULT_BACKEND asks for {asked!r}, which is inactive: {inactive[asked]}",
            "mend that, or unset TRITON_DEFAULT_BACKEND",
        )
    elif asked:
        return asked
    elif len(active) == 1:
        return active[0]
    elif active:
        problems.error(
            f"several backends are active ({', '.join(active)}): Triton refuses to choose",
            f"choose one with TRITON_DEFAULT_BACKEND, for example {active[0]}",
        )
    elif "cpu" in inactive:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in inactive.items())
        problems.error("no backend is active, so no kernel can run", f"mend one of: {reasons}")
    return None


def _cpu(problems: Problems) -> Device:
    name = cpu_model()
    threads = os.cpu_count() or 1
    counts = (physical_cores() or threads, threads, usable_threads())
    try:
        host = importlib.import_module("tritune.cpu.features").host()
    except Exception as error:
        problems.error(
            f"the CPU's features cannot be read: {_brief(error)}",
            f"reinstall llvmlite: {_INSTALL['llvmlite']} --force-reinstall",
        )
        return Device("cpu", name or platform.machine(), None, *counts)
    enabled = (feature[1:] for feature in host.features.split(",") if feature.startswith("+"))
    return Device(
        "cpu",
        name or host.name,
        f"cpu:{host.name}",
        *counts,
        triple=host.triple,
        llvm_cpu=host.name,
        vector_bits=host.vector_bits,
        features=tuple(enabled),
    )


def _gpus(torch: ModuleType | None, problems: Problems) -> tuple[Device, ...]:
    try:
        if torch is None or not torch.cuda.is_available():
            return ()
        kind = "hip" if torch.version.hip else "cuda"
        found = []
        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            arch = f"{facts.major}{facts.minor}"
            if kind == "hip":
                arch = facts.gcnArchName.split(":")[0]
            memory = facts.total_memory
            found.append(Device(kind, facts.name, f"{kind}:{arch}", memory_bytes=memory))
        return tuple(found)
    except Exception as error:
        problems.warning(
            f"torch cannot list its GPUs: {_brief(error)}",
            "check the GPU's driver, with nvidia-smi or rocm-smi",
        )
        return ()


def _threads(problems: Problems) -> Threads | None:
    setting = os.environ.get("TRITUNE_NUM_THREADS")
    try:
        count = int(importlib.import_module("tritune.cpu.launch.threads").count())
    except Exception as error:
        remedy = "mend the problems above; the number normally comes from torch"
        if setting:
            remedy = "set TRITUNE_NUM_THREADS to a whole number of at least 1"
        problems.error(f"the number of threads is unknown: {_brief(error)}", remedy)
        return None
    if count > 1 and not _shares_torch_threads():
        problems.warning(
            "torch has no OpenMP library that kernels could share: they run on one thread",
            "install torch from PyPI or pytorch.org, whose wheels for Linux carry libgomp",
        )
    return Threads(count, "TRITUNE_NUM_THREADS" if setting else "torch")


def _shares_torch_threads() -> bool:
    try:
        return importlib.import_module("tritune.cpu.launch.loader")._gomp_parallel() is not None
    except Exception:
        return True  # torch or the backend is broken, which is reported where it was loaded


def _triton_cache(problems: Problems) -> Cache:
    """Describe the folder of Triton's cache. Found by Triton's rule, but without Triton."""
    path, source = os.environ.get("TRITON_CACHE_DIR"), "TRITON_CACHE_DIR"
    if not path:
        home = os.environ.get("TRITON_HOME")
        source = "TRITON_HOME" if home else "the default"
        path = os.path.join(home or os.path.expanduser("~/"), ".triton", "cache")
    folder = Path(path)
    # A folder that is missing is created in the first of its parents that exists.
    existing = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if not writable:
        problems.error(
            f"Triton's cache folder cannot be written: {folder}",
            "make it writable, or point TRITON_CACHE_DIR to a folder that is",
        )
    return Cache("triton", str(folder), source, folder.is_dir(), writable, _size(folder))


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; 0 if there is none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # another process has cleaned up
    return total


def _self_test(backend: str, problems: Problems) -> SelfTest:
    command = [sys.executable, "-m", "tritune.cli._self_test"]
    error = None
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_SELF_TEST_SECONDS)
        if run.returncode < 0:
            error = f"its process died of signal {-run.returncode}"
        elif run.returncode > 0:
            error = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        error = f"no answer after {_SELF_TEST_SECONDS} s"
    except OSError as failure:
        error = _brief(failure)
    if error:
        problems.error(
            f"a small kernel fails on backend {backend!r}: {error}",
            f"see all of it with: {' '.join(command)}",
        )
    return SelfTest(backend, passed=error is None, error=error)


def _brief(error: BaseException) -> str:
    """Return the first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
