"""Triton's compiler, one stage at a time: what configs have in common is compiled once.

Triton compiles a config from its source to its binary, whatever it compiled before. But configs
that differ in launch options only share what the front end makes of the source, and those that
differ only in how many registers a thread may have share everything up to the assembler (NVIDIA) or
up to the machine's code generator (AMD), where nothing but a number in the text differs. Where what
differs (a load that comes earlier in the source) is gone when the assembler's turn comes, its
result is shared too. The stages are the backend's own, so the code is the same bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars, ir
from triton.compiler.compiler import make_backend
from triton.runtime.cache import get_cache_key

from tritune.screening.capture import CapturedLaunch, triton_target
from tritune.targets.target import Target

#: Called after each stage with its name, its result and the metadata so far; raises to give up.
Inspector = Callable[[str, Any, Mapping[str, Any]], None]

#: Options that no front end looks at. Where a kernel does, they are among its constants too.
_LAUNCH_OPTIONS = frozenset(
    "num_warps num_stages maxnreg waves_per_eu matrix_instr_nonkdim kpack schedule_hint "
    "micro_m micro_n unroll prefetch_bytes".split()
)
_KEPT_MODULES, _KEPT_TEXTS, _KEPT_ASSEMBLED = 8, 4, 16
#: Where Triton cuts the names of files.
_FILE_NAME = 150


@dataclass(frozen=True)
class _LateOption:
    """An option that is a number in a stage's text and decides nothing before that."""

    name: str
    stage: str
    pattern: re.Pattern[str]
    written: str


_LATE = {
    "cuda": _LateOption("maxnreg", "ptx", re.compile(r"(\.maxnreg )\d+"), r"\g<1>{0}"),
    "hip": _LateOption(
        "waves_per_eu",
        "llir",
        re.compile(r'("amdgpu-waves-per-eu"=")\d+, ?\d+(")'),
        r"\g<1>{0}, {0}\g<2>",
    ),
}


#: What an assembler's text has for debuggers: lines of source, labels for them, and comments.
FOR_DEBUGGERS = {
    "cubin": re.compile(
        r"^\s*\.(?:loc|file)\s.*$|^\$L__(?:tmp|func)\w+:\s*$|//.*$|^\s*\.section\s+\.debug_\w+\s*"
        r"\{[^}]*\}",
        re.MULTILINE,
    )
}


@dataclass(frozen=True)
class Compiled:
    """A kernel as Triton would have compiled it, without the texts that nobody asked for."""

    #: The name of Triton's cache entry for it.
    key: str
    #: What Triton calls the files of that entry.
    name: str
    metadata: Any
    kernel: bytes
    asm: Mapping[str, Any]
    extension: str

    def metadata_text(self) -> str:
        """Return the metadata as Triton writes it into its cache."""
        return json.dumps(vars(self.metadata), default=vars)


class StagedCompiler:
    """Compiles for one target. Configs with something in common are best compiled in a row."""

    def __init__(self, target: Target) -> None:
        self._target = triton_target(target)
        self._backend = make_backend(self._target)
        self._late = _LATE.get(target.family)
        self._modules: OrderedDict[Any, str] = OrderedDict()
        self._texts: OrderedDict[Any, tuple[str, dict[str, Any]]] = OrderedDict()
        self._assembled: OrderedDict[Any, tuple[bytes, dict[str, Any]]] = OrderedDict()
        self._done: OrderedDict[str, Compiled] = OrderedDict()
        #: Why configs failed before their late option played a part.
        self._failures: OrderedDict[Any, Exception] = OrderedDict()
        #: How often each stage was run; the front end is "ast".
        self.stages_run: dict[str, int] = {}

    def compile(self, source: CapturedLaunch, inspect: Inspector = lambda *_: None) -> Compiled:
        """Return the binary of one launch, and what Triton's launcher has to know of it."""
        environment = get_cache_invalidating_env_vars()
        text = get_cache_key(source.ast, self._backend, source.options, env_vars=environment)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._done:
            if self._late is not None:
                known = self._failures.get((self._text_key(source), inspect))
                if known is not None:
                    raise known
            compiled = self._compile(source, key, environment, inspect)
            _remember(self._done, key, compiled, _KEPT_TEXTS)
        return self._done[key]

    def _compile(
        self, source: CapturedLaunch, key: str, environment: Mapping[str, str], inspect: Inspector
    ) -> Compiled:
        options = source.options
        metadata: dict[str, Any] = {
            "hash": key,
            "target": self._target,
            **vars(options),
            **environment,
            "triton_version": triton.__version__,
        }
        stages: dict[str, Any] = {}
        self._backend.add_stages(stages, options, source.ast.language)
        asm: dict[str, Any] = {}

        def run(name: str, product: Any) -> Any:
            product = self._shared_stage(name, stages[name], product, source, metadata)
            inspect(name, product, metadata)
            if isinstance(product, str | bytes):
                asm[name] = product
            return product

        names = list(stages)
        late = names.index(self._late.stage) + 1 if self._late is not None else 0
        product: Any = self._from_another(source, metadata)
        if product is not None:
            inspect(names[late - 1], product, metadata)
        else:
            try:
                product = self._early(source, names[:late], run, metadata)
            except Exception as error:
                if late:
                    failed = self._text_key(source), inspect
                    _remember(self._failures, failed, error, _KEPT_TEXTS)
                raise
        for name in names[late:]:
            product = run(name, product)
        name = source.ast.name[:_FILE_NAME]
        return Compiled(key, name, SimpleNamespace(**metadata), product, asm, names[-1])

    def _early(
        self,
        source: CapturedLaunch,
        names: Sequence[str],
        run: Callable[[str, Any], Any],
        metadata: dict[str, Any],
    ) -> Any:
        """Run the front end, and the stages in which the late option decides nothing."""
        initial = dict(metadata)
        product = self._parsed(source)
        for name in names:
            product = run(name, product)
        if names:
            text = product, _changes(initial, metadata)
            _remember(self._texts, self._text_key(source), text, _KEPT_TEXTS)
        return product

    def _shared_stage(
        self, name: str, stage: Any, product: Any, source: CapturedLaunch, metadata: dict[str, Any]
    ) -> Any:
        """Run a stage, unless it is an assembler that was given the same code before."""
        pattern = FOR_DEBUGGERS.get(name)
        if pattern is None:
            self._count(name)
            return stage(product, metadata)
        code = hashlib.sha256(pattern.sub("", product).encode()).hexdigest()
        key = name, code, self._front_options(source)
        if key not in self._assembled:
            initial = dict(metadata)
            result = stage(product, metadata)
            self._count(name)
            made = result, _changes(initial, metadata)
            _remember(self._assembled, key, made, _KEPT_ASSEMBLED)
        result, changes = self._assembled[key]
        metadata.update(changes)
        return result

    def _from_another(self, source: CapturedLaunch, metadata: dict[str, Any]) -> str | None:
        """Return a late stage's text, made from that of another late option, or None."""
        late = self._late
        value = None if late is None else getattr(source.options, late.name, None)
        # Where nothing is asked for, Triton 3.9 writes nothing, and 3.7 a zero.
        if late is None or not value:
            return None
        known = self._texts.get(self._text_key(source))
        if known is None:
            return None
        text, changes = late.pattern.subn(late.written.format(value), known[0])
        if changes != 1:
            return None
        metadata.update(known[1])
        return text

    def _text_key(self, source: CapturedLaunch) -> tuple[str, str]:
        assert self._late is not None
        options = {k: v for k, v in vars(source.options).items() if k != self._late.name}
        absent = getattr(source.options, self._late.name, None) is None
        return source.ast.hash(), repr((sorted(options.items(), key=lambda o: o[0]), absent))

    def _parsed(self, source: CapturedLaunch) -> Any:
        """Return the source's IR, as a module that passes may change."""
        key = source.ast.hash(), self._front_options(source)
        context = ir.context()
        ir.load_dialects(context)
        self._backend.load_dialects(context)
        if key in self._modules:
            return _read_module(self._modules[key], context)
        module = source.ast.make_ir(
            self._target,
            source.options,
            self._backend.get_codegen_implementation(source.options),
            self._backend.get_module_map(),
            context,
        )
        self._count("ast")
        # As text: passes change a module, and there is no copying one.
        _remember(self._modules, key, str(module), _KEPT_MODULES)
        return module

    def _front_options(self, source: CapturedLaunch) -> str:
        """Return the options that the front end looks at."""
        options = {k: v for k, v in vars(source.options).items() if k not in _LAUNCH_OPTIONS}
        return repr(sorted(options.items(), key=lambda o: o[0]))

    def _count(self, stage: str) -> None:
        self.stages_run[stage] = self.stages_run.get(stage, 0) + 1


def _read_module(text: str, context: Any) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    return module


def _changes(initial: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a stage added to the metadata."""
    return {k: v for k, v in metadata.items() if k not in initial or v != initial[k]}


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)
