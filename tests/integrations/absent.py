"""Stand-ins for packages that are not installed, so that what imports them can be imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: What vLLM's requirements name; those that are installed are used.
PACKAGES = frozenset(
    "regex cachetools psutil blake3 cpuinfo msgspec zmq pybase64 cbor2 openai fastapi uvicorn "
    "prometheus_client tiktoken partial_json_parser depyf watchfiles setproctitle gguf einops PIL "
    "sentencepiece mistral_common cv2 compressed_tensors numba diskcache lark outlines_core "
    "xgrammar llguidance lmformatenforcer opentelemetry requests aiohttp tqdm transformers "
    "huggingface_hub safetensors tokenizers cloudpickle jsonschema openai_harmony anthropic mcp "
    "ray scipy protobuf google ijson model_hosting_container_standards vllm_flash_attn "
    "python_multipart starlette pydantic_settings httpx jinja2 urllib3".split()
)


class _Anything(type):
    """A class whose attributes are such classes too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _made(f"{cls.__name__}.{name}")
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # A decorator leaves what it is given; anything else makes an object.
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__call__()

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _made(name: str) -> Any:
    def init_subclass(cls: type, **options: Any) -> None:
        pass

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    return _Anything(name, (), {"__init_subclass__": classmethod(init_subclass), "__call__": call})


class _Empty(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _made(name)
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, below = fullname.partition(".")
        # What an installed package lacks, it lacks.
        missing = isinstance(sys.modules.get(top), _Empty) if below else top in PACKAGES
        return ModuleSpec(fullname, self, is_package=True) if missing else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def replace_absent() -> None:
    """Let every package that is named above and not installed be imported, empty."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # the last to be asked
