"""Makes the corpus anew: `python -m tests.golden.record`.

Of tritune's kernels, what the CPU backend is given for the problems of the benchmarks and for some
configs; of the tests of kernels and of the language, what their launches compile. Needed when there
is a kernel that the corpus lacks; every hash is to be written anew then.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden import corpus

#: The fewest lines of what is recorded of the language's tests: the largest of each kernel's.
LANGUAGE_LINES = 40
#: Kernels with more lines are recorded once for each dtype: lowering one takes seconds.
LARGE_LINES = 600
#: Fields of problems that no benchmark has, by op.
MORE_PROBLEMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("attention", {"queries": 256, "dtype": "float32", "mask": "boolean"}),
    ("attention", {"queries": 256, "dtype": "bfloat16", "mask": "additive", "head_size": 80}),
    ("attention", {"queries": 512, "softcap": True, "alibi": True}),
    ("attention_varlen", {"dtype": "float32"}),
    ("attention_varlen", {"dtype": "bfloat16"}),
    ("linear", {"rows": 64, "dtype": "float32", "inner_contiguous": False}),
    ("linear_quantized", {"rows": 1, "dtype": "float32", "bits": 8}),
    ("linear_quantized", {"rows": 256, "dtype": "float32", "bits": 4}),
    ("linear_quantized", {"rows": 64, "dtype": "bfloat16", "bits": 8}),
)
#: Configs of a problem: the default, and some from the space.
SAMPLED = 2
PROBLEMS_WITH_SAMPLES = 4


def kernels() -> Iterator[corpus.Entry]:
    """Record tritune's kernels."""
    from tritune.screening.capture import absent_device, launches_of
    from tritune.targets.target import Target
    from tritune.workloads.catalog import workload_named
    from tritune.workloads.problems.suites import suite

    chosen = suite("all")
    chosen += [(op, workload_named(op).problem(**fields)) for op, fields in MORE_PROBLEMS]
    sampled = collections.Counter[str]()
    for op, problem in reversed(chosen):
        workload = workload_named(op)
        inputs = workload.empty_inputs(problem)
        target = Target("cpu", "x86-64-v4")
        configs = {"default": workload.kernel.default(problem, target.family, target.arch)}
        if sampled[op] < PROBLEMS_WITH_SAMPLES:
            sampled[op] += 1
            space = workload.kernel.space.on(target.family, target.arch, problem.fields())
            found = space.sample(SAMPLED, random.Random(str(problem)))
            configs |= {f"sample{number}": config for number, config in enumerate(found)}
        for what, config in configs.items():
            with absent_device(target):
                for source in launches_of(workload, inputs, config):
                    name = f"{op}/{source.ast.name}.{what}.{getattr(problem, 'dtype', '')}"
                    yield corpus.Entry(name, _ttir(source), _options(source.options))


def _ttir(source: Any) -> str:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    target = GPUTarget("cpu", "x86-64-v4", 1)
    backend, context, stages = make_backend(target), ir.context(), {}
    ir.load_dialects(context)
    backend.add_stages(stages, source.options, source.ast.language)
    codegen = backend.get_codegen_implementation(source.options)
    modules = backend.get_module_map()
    module = source.ast.make_ir(target, source.options, codegen, modules, context)
    return corpus.without_locations(str(stages["ttir"](module, {})))


def _options(options: Any) -> dict[str, Any]:
    return dataclasses.asdict(options.code())


def tests() -> Iterator[corpus.Entry]:
    """Record what the tests of kernels and of the language compile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recorded")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.golden.record"]
        subprocess.run(
            [*command, "tests/cpu/kernels", "tests/cpu/language"],
            env={**os.environ, "TRITUNE_RECORD_CORPUS": str(path)},
            check=True,
        )
        yield from _of_tests(path)


def _of_tests(path: Path) -> Iterator[corpus.Entry]:
    largest: dict[tuple[str, ...], tuple[int, corpus.Entry]] = {}
    for line in path.read_text().splitlines():
        recorded = json.loads(line)
        ttir = corpus.without_locations(recorded["ttir"])
        file, test = re.findall(r"tests/cpu/(\S+?)\.py::(\w+)", recorded["test"])[0]
        kernel = re.findall(r"tt\.func public @(\w+)", ttir)[0]
        entry = corpus.Entry(f"{file}.{kernel}", ttir, recorded["options"])
        size = ttir.count("\n")
        if file.startswith("kernels/"):
            yield entry
        elif size >= LANGUAGE_LINES and size > largest.get((file, test, kernel), (0, entry))[0]:
            largest[file, test, kernel] = size, entry
    yield from (entry for _, entry in largest.values())


def pytest_configure(config: Any) -> None:
    """As a plugin of pytest, write every TTIR that is lowered into the file."""
    from tritune.cpu import compiler

    lowered, path = compiler._lowered, os.environ["TRITUNE_RECORD_CORPUS"]

    def record(text: str, options: Any, cpu: Any) -> Any:
        test, options_ = os.environ.get("PYTEST_CURRENT_TEST", ""), dataclasses.asdict(options)
        with open(path, "a") as file:
            print(json.dumps({"test": test, "ttir": text, "options": options_}), file=file)
        return lowered(text, options, cpu)

    compiler._lowered = record


def numbered(entries: Iterator[corpus.Entry]) -> Iterator[corpus.Entry]:
    """Leave out what was there already, and number entries of the same name."""
    seen: set[str] = set()
    counts = collections.Counter[str]()
    for entry in entries:
        code = re.sub(r"@\w+", "@", entry.ttir) + repr(entry.options)
        large = entry.ttir.count("\n") > LARGE_LINES
        if code not in seen and not (large and counts[entry.name]):
            seen.add(code)
            counts[entry.name] += 1
            yield dataclasses.replace(entry, name=f"{entry.name}.{counts[entry.name]}")


if __name__ == "__main__":
    found = [*kernels(), *(tests() if len(sys.argv) < 2 else _of_tests(Path(sys.argv[1])))]
    corpus.write(sorted(numbered(iter(found)), key=lambda entry: entry.name))
