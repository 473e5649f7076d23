"""Kernels and arguments are the same in another process."""

import contextlib
import functools
import json
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.tuning.autotune import portable_module
from tritune.tuning.autotune.call_memory import CallMemory, TensorFiles, memory_table
from tritune.tuning.autotune.digest import code_digest
from tritune.tuning.autotune.pickling import TransferError, dumps, loads

SCALE = tl.constexpr(2.5)
WIDTH = 8
Pair = namedtuple("Pair", ("first", "second"))
offsets = torch.zeros(4)  # a global with the name of a kernel's local variable


@triton.constexpr_function
def half(n):
    return max(n // 2, WIDTH)


@triton.jit
def scaled(x):
    return x * SCALE


@triton.jit(noinline=True)
def scaled_twice(x):
    return scaled(scaled(x))


@triton.jit
def plain_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, offsets < n)
    tl.store(x_ptr + offsets, x, offsets < n)


@triton.jit(do_not_specialize=["n"])
def helped_kernel(x_ptr, n, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    x = portable_module.shifted(scaled_twice(x)) + half(BLOCK)
    tl.store(x_ptr + offsets, x, mask=offsets < n)


@triton.jit
def calling_kernel(x_ptr, function: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, function(tl.load(x_ptr + offsets)))


@triton.constexpr_function
def table_size(place):
    return portable_module.TABLE.sizes[place]


@triton.jit
def offset_kernel(x_ptr):
    tl.store(x_ptr, portable_module.OFFSET + table_size(1))


@triton.jit
def timed_kernel(x_ptr):
    tl.store(x_ptr, cuda.globaltimer())


def closure_kernel(bias, function):
    @triton.jit
    def kernel(x_ptr, BLOCK: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, BLOCK))
        tl.store(x_ptr + tl.arange(0, BLOCK), function(x) + bias)

    return kernel


def pickled(folder, **values):
    """Write values and the tensors in them to a folder."""
    tensors = TensorFiles()

    def persistent_id(value):
        return tensors.add(value) if isinstance(value, torch.Tensor) else None

    (folder / "values").write_bytes(dumps(values, persistent_id))
    tensors.write(folder)
    return folder


def unpickled(folder):
    return loads((folder / "values").read_bytes(), CallMemory(folder).tensor)


def in_another_process(folder, text):
    """Run a program that has the pickled values, with none of this test's modules."""
    program = textwrap.dedent(
        f"""
        import json, sys
        from pathlib import Path
        from tritune.tuning.autotune.call_memory import CallMemory
        from tritune.tuning.autotune.pickling import loads
        folder = Path({str(folder)!r})
        values = loads((folder / "values").read_bytes(), CallMemory(folder).tensor)
        assert not any(name.startswith("tests") for name in sys.modules)
        """
    ) + textwrap.dedent(text)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KERNELS = {
    "plain": plain_kernel,
    "helped": helped_kernel,
    "noinline": scaled_twice,
    "constexpr_function": half,
    "closure": closure_kernel(tl.constexpr(1.5), scaled),
    "other_closure": closure_kernel(tl.constexpr(-2), portable_module.shifted),
}


def test_the_copy_of_a_kernel_has_the_cache_key_of_the_original(tmp_path):
    keys = in_another_process(
        pickled(tmp_path, **KERNELS),
        "print(json.dumps({name: kernel.cache_key for name, kernel in values.items()}))",
    )
    assert keys == {name: kernel.cache_key for name, kernel in KERNELS.items()}
    assert len(set(keys.values())) == len(KERNELS)


@pytest.mark.parametrize("hashed_before", [False, True], ids=["kernel_first", "helper_first"])
def test_what_another_process_compiles_is_in_the_cache_of_this_one(
    tmp_path, fresh_triton_cache, hashed_before
):
    """Whatever this process did before: Triton 3.7 has two keys for one kernel."""
    kernel, helper = kernel_and_helper(2.5)
    if hashed_before:
        assert helper.cache_key
    (tmp_path / "call").mkdir()
    x = torch.arange(16.0)
    key = in_another_process(
        pickled(tmp_path / "call", kernel=kernel, x=x),
        """
        values["kernel"].warmup(values["x"], 16, grid=(1,))
        print(json.dumps(values["kernel"].cache_key))
        """,
    )
    assert key == kernel.cache_key
    before = files_in(fresh_triton_cache)
    kernel[(1,)](x, 16)
    torch.testing.assert_close(x, torch.arange(16.0) * 2.5)
    assert before and files_in(fresh_triton_cache) == before


def files_in(folder):
    return {path for path in Path(folder).rglob("*") if path.is_file()}


def kernel_and_helper(scale):
    """Both new, so that nobody has asked for their keys yet."""
    constant = tl.constexpr(scale)

    @triton.jit
    def helper(x):
        return x * constant

    @triton.jit
    def kernel(x_ptr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), helper(tl.load(x_ptr + tl.arange(0, BLOCK))))

    return kernel, helper


def test_the_digest_does_not_depend_on_what_was_hashed_before():
    first, _ = kernel_and_helper(2.5)
    second, helper = kernel_and_helper(2.5)
    assert helper.cache_key and second.cache_key
    assert code_digest(first) == code_digest(second)


def test_the_digest_covers_the_constants_of_helper_functions():
    one, other = kernel_and_helper(2.5)[0], kernel_and_helper(3.5)[0]
    assert code_digest(one) != code_digest(other)


def test_the_copy_has_the_digest_of_the_original(tmp_path):
    copies = unpickled(pickled(tmp_path, **KERNELS))
    originals = {name: code_digest(kernel) for name, kernel in KERNELS.items()}
    assert {name: code_digest(kernel) for name, kernel in copies.items()} == originals
    assert len(set(originals.values())) == len(KERNELS)


def test_error_messages_and_debug_information_name_the_original_file(tmp_path):
    copy = unpickled(pickled(tmp_path, kernel=helped_kernel))["kernel"]
    assert copy.fn.__code__.co_filename == __file__
    assert copy.starting_line_number == helped_kernel.starting_line_number
    assert copy.raw_src == helped_kernel.raw_src
    assert repr(copy) == repr(helped_kernel)


def test_a_recursive_function_refers_to_its_own_copy(tmp_path):
    def countdown(n):
        return n if n == 0 else countdown(n - 1)

    copy = unpickled(pickled(tmp_path, function=countdown))["function"]
    assert copy(5) == 0
    assert copy.__closure__[0].cell_contents is copy


def test_lambdas_travel_with_what_they_refer_to(tmp_path):
    x = torch.zeros(100)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]), WIDTH)  # noqa: E731
    copy = unpickled(pickled(tmp_path, grid=grid))["grid"]
    assert copy({"BLOCK": 32}) == (4, 8)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1.5,
        float("inf"),
        "text",
        (1, (2, None)),
        [1, "a"],
        {"a": (1,), 2: None},
        Pair(1, (2,)),
        torch.bfloat16,
        torch.device("cpu"),
        tl.float8e4nv,
        torch.Size([2, 3]),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(tmp_path, value):
    copy = unpickled(pickled(tmp_path, value=value))["value"]
    assert copy == value
    assert type(copy) is type(value)


def test_tensors_keep_their_values_strides_and_alignment(tmp_path):
    base = torch.randn(6, 35)
    tensors = {
        "whole": base,
        "transposed": base.t(),
        "aligned": base.flatten()[4:],
        "unaligned": base.flatten()[1:],
        "broadcast": torch.ones(1).expand(5),
        "half": torch.randn(3).half(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    for name, copy in unpickled(pickled(tmp_path, **tensors)).items():
        original = tensors[name]
        torch.testing.assert_close(copy, original.detach(), rtol=0, atol=0)
        assert copy.stride() == original.stride()
        assert copy.data_ptr() % 64 == original.data_ptr() % 64 or not original.numel()
        assert copy.data_ptr() != original.data_ptr() or not original.numel()


def test_tensors_that_share_memory_share_it_again(tmp_path):
    array = torch.arange(32).numpy()
    tensors = {
        "x": torch.from_numpy(array),
        "part": torch.from_numpy(array[8:]),  # a storage of its own, in the memory of the other
        "view": torch.from_numpy(array).view(4, 8)[1],
        "other": torch.arange(32),
    }
    copies = unpickled(pickled(tmp_path, **tensors))
    copies["x"][8] = -1
    assert copies["part"][0] == copies["view"][0] == -1
    assert copies["other"][8] == 8
    assert array[8] == 8


def test_a_tensor_is_stored_once_however_often_it_is_referred_to(tmp_path, monkeypatch):
    x = torch.arange(8)
    copied = []
    copy = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *args: copied.append(args) or copy(*args))
    pickled(tmp_path, x=x, again=[x, x], view=x[2:])
    assert len(copied) == 1
    table = memory_table(tmp_path)
    assert [len(table["regions"]), len(table["tensors"])] == [1, 2]


def test_memory_can_be_restored(tmp_path):
    x = torch.arange(4.0)
    memory = CallMemory(pickled(tmp_path, x=x, y=torch.zeros(3)))
    copy, _ = memory.tensor(0), memory.tensor(1)
    copy += 1
    assert memory.changed() == {0} == {memory.region_of(copy)}
    memory.restore([0])
    assert not memory.changed()
    assert torch.equal(copy, x)


def test_descriptors_travel_with_their_tensor(tmp_path):
    x = torch.randn(32, 64)
    copies = unpickled(pickled(tmp_path, x=x, d=TensorDescriptor.from_tensor(x, [8, 16])))
    assert copies["d"].base.data_ptr() == copies["x"].data_ptr()
    assert copies["d"].block_shape == [8, 16]
    assert copies["d"].strides == (64, 1)


def test_placeholders_compile_the_same_code_as_tensors(tmp_path):
    base = torch.zeros(64)
    pickled(tmp_path, aligned=base, unaligned=base[1:], kernel=plain_kernel)
    without = loads((tmp_path / "values").read_bytes(), CallMemory(tmp_path).placeholder)
    real = unpickled(tmp_path)
    hashes = {}
    for name in ("aligned", "unaligned"):
        hashes[name] = without["kernel"].warmup(without[name], 17, 16, grid=(1,)).hash
        assert real["kernel"].warmup(real[name], 17, 16, grid=(1,)).hash == hashes[name]
    assert hashes["aligned"] != hashes["unaligned"]


def test_a_kernel_that_is_an_argument_travels_too(tmp_path):
    result = in_another_process(
        pickled(tmp_path, kernel=calling_kernel, function=scaled, x=torch.ones(16)),
        """
        values["kernel"][(1,)](values["x"], values["function"], 16)
        print(json.dumps(values["x"].tolist()))
        """,
    )
    assert result == [2.5] * 16


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def inner():
        return lock

    def hook(args):
        return inner()

    for value in (hook, functools.partial(hook, 1), {"a": (1, hook)}):
        with pytest.raises(TransferError, match=r"^lock, which inner uses, .*_thread.lock"):
            dumps(value, lambda each: None)
    with pytest.raises(TransferError, match=r"^a _thread.lock of the call cannot be sent"):
        dumps({"a": (1, lock)}, lambda each: None)


def test_what_cannot_be_sent_is_named_beside_a_variable_without_a_value():
    lock = threading.Lock()

    def hook(args):
        return lock, later

    with pytest.raises(TransferError, match=r"^a _thread.lock of the call cannot be sent"):
        dumps(hook, lambda each: None)
    later = None
    with pytest.raises(TransferError, match=r"^lock, which hook uses, cannot be sent"):
        dumps(hook, lambda each: None)


def test_objects_of_classes_that_no_module_has_travel(tmp_path):
    class Strange:
        def __init__(self, width):
            self.width = width

    strange = Strange(8)
    copy = unpickled(pickled(tmp_path, grid=lambda meta: (strange.width,)))["grid"]
    assert copy({}) == (8,)


def test_what_cannot_be_sent_is_imported_where_that_is_possible(tmp_path):
    kernels = unpickled(pickled(tmp_path, whole=portable_module.with_lock))
    assert kernels["whole"] is portable_module.with_lock
    kernels = unpickled(pickled(tmp_path, whole=portable_module.with_table))
    assert kernels["whole"] is not portable_module.with_table


def test_kernels_that_keep_the_python_function_they_wrap_travel(tmp_path):
    """Its name, which can be imported, is that of the Python function."""
    kernel = portable_module.wrapped_kernel
    copy = unpickled(pickled(tmp_path, kernel=kernel))["kernel"]
    assert copy is not kernel
    assert copy.cache_key == kernel.cache_key
    assert code_digest(copy) == code_digest(kernel)


@pytest.mark.parametrize("first", ["kernel", "function"])
def test_a_kernel_and_a_function_may_read_different_parts_of_a_module(tmp_path, first):
    values = {"kernel": offset_kernel, "function": table_size}
    order = sorted(values, key=lambda name: name != first)
    copies = unpickled(pickled(tmp_path, **{name: values[name] for name in order}))
    assert copies["function"](1) == 32
    assert copies["kernel"].cache_key == offset_kernel.cache_key
    assert code_digest(copies["kernel"]) == code_digest(offset_kernel)


def test_modules_of_triton_that_no_import_finds_travel_in_part(tmp_path):
    """Triton makes those of its backends itself."""
    found = in_another_process(
        pickled(tmp_path, kernel=timed_kernel),
        """
        from tritune.tuning.autotune.digest import code_digest
        kernel = values["kernel"]
        assert callable(kernel.fn.__globals__["cuda"].globaltimer)
        print(json.dumps([kernel.cache_key, code_digest(kernel)]))
        """,
    )
    assert found == [timed_kernel.cache_key, code_digest(timed_kernel)]


def test_functions_of_a_module_that_only_this_process_has_travel(tmp_path):
    """Such as one that was made from a file that is on no path."""
    (tmp_path / "hidden.py").write_text("SIZE = 3\ndef grid(meta):\n    return (SIZE,)\n")
    program = f"""
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("hidden", {str(tmp_path / "hidden.py")!r})
        hidden = sys.modules["hidden"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hidden)
        from pathlib import Path
        from tritune.tuning.autotune.call_memory import TensorFiles
        from tritune.tuning.autotune.pickling import dumps
        data = dumps({{"grid": hidden.grid}}, lambda value: None)
        Path({str(tmp_path / "values")!r}).write_bytes(data)
        TensorFiles().write(Path({str(tmp_path)!r}))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    assert in_another_process(tmp_path, "print(json.dumps(values['grid']({})))") == [3]


def test_threads_that_pickle_functions_of_such_a_module_take_turns(monkeypatch):
    hidden = ModuleType("hidden")
    exec("def grid(meta):\n    return (3,)\n", vars(hidden))
    monkeypatch.setitem(sys.modules, "hidden", hidden)
    meeting, register = threading.Barrier(2), cloudpickle.register_pickle_by_value
    met = []

    def register_together(module):
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(meeting.wait(0.2))
        register(module)

    monkeypatch.setattr(cloudpickle, "register_pickle_by_value", register_together)
    with ThreadPoolExecutor(2) as threads:
        pickles = [threads.submit(dumps, hidden.grid, lambda each: None) for _ in range(2)]
    for each in pickles:
        assert loads(each.result(), lambda number: None)({}) == (3,)
    assert not met
    assert "hidden" not in cloudpickle.list_registry_pickle_by_value()


def test_a_notebook_is_no_obstacle(tmp_path):
    """Cells share one namespace, but each is a file of its own, and none is on the disk."""
    program = textwrap.dedent(
        f"""
        import linecache, sys
        cells = [
            "import triton, triton.language as tl",
            "@triton.jit\\ndef helper(x):\\n    return x + LIMIT",
            "LIMIT = tl.constexpr(7)",
            "@triton.jit\\ndef kernel(x_ptr):\\n    tl.store(x_ptr, helper(tl.load(x_ptr)))",
        ]
        for number, cell in enumerate(cells):
            name = f"<cell {{number}}>"
            linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
            exec(compile(cell, name, "exec"))
        from pathlib import Path
        from tritune.tuning.autotune.call_memory import TensorFiles
        from tritune.tuning.autotune.pickling import dumps
        data = dumps({{"kernel": kernel}}, lambda value: None)
        Path({str(tmp_path / "values")!r}).write_bytes(data)
        TensorFiles().write(Path({str(tmp_path)!r}))
        print(kernel.cache_key)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    key = in_another_process(tmp_path, "print(json.dumps(values['kernel'].cache_key))")
    assert key == done.stdout.strip()
