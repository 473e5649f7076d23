"""The case of a call: what it compiles, what it runs, and what it notices."""

import json

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.tuning.autotune.call_case import open_case
from tritune.tuning.autotune.call_folder import Hooks, TunableCall, write_case
from tritune.tuning.autotune.launches import CallArguments, decorated_kernel, launch_arguments
from tritune.tuning.autotune.pickling import TransferError
from tritune.tuning.measure.verify import verify

SMALL, LARGE = Config.of(BLOCK=16), Config.of(BLOCK=64)


@triton.jit
def add_to(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x_ptr + offsets, inside) + tl.load(y_ptr + offsets, inside)
    tl.store(y_ptr + offsets, total, inside)


@triton.jit
def careless(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Right in blocks that divide n; otherwise it writes behind the end, or into its input."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, offsets < n) * 2)
    if BLOCK == 32:
        tl.store(x_ptr + offsets, 0.0)


@triton.jit
def copy_tile(source, target, BLOCK: tl.constexpr):
    target.store([0, 0], source.load([0, 0]))


def case_of(folder, kernel, args, kwargs=None, *, grid, configs=(SMALL, LARGE), **more):
    kernel, arguments = decorated_kernel(kernel), CallArguments(tuple(args), kwargs or {}, grid)
    launches = {each: launch_arguments(kernel, arguments, each.as_kwargs()) for each in configs}
    default = configs[0] if configs else SMALL
    device = torch.device("cpu")
    call = TunableCall(kernel, arguments, device, default, launches or None, **more)
    return write_case(str(folder), call).spec.open()


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def test_each_config_gets_the_grid_that_the_program_would_give_it(tmp_path):
    x = torch.randn(100)
    case = case_of(tmp_path, add_to, (x, torch.zeros(100), 100), grid=blocks(100))
    assert [case.compile(config)[0].grid for config in (SMALL, LARGE)] == [(7,), (2,)]


def test_candidates_run_on_memory_of_their_own(tmp_path):
    x, y = torch.randn(100), torch.randn(100)
    before = x.clone(), y.clone()
    case = case_of(tmp_path, add_to, (x, y), {"n": 100}, grid=blocks(100))
    for config in (SMALL, LARGE, SMALL):
        case.restore()
        output = case.run(config)[0]
        torch.testing.assert_close(output, x + y)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


def test_what_is_written_is_output_and_the_rest_is_read_only(tmp_path):
    x, y = torch.randn(100), torch.randn(100)
    case = case_of(tmp_path, add_to, (x, y, 100), grid=blocks(100))
    (read,) = case.read_only()
    torch.testing.assert_close(read, x)
    assert not torch.equal(case.run(SMALL)[0], y)


def test_a_config_that_writes_outside_of_its_output_is_refused(tmp_path):
    x, y = torch.randn(96), torch.zeros(96)
    case = case_of(
        tmp_path, careless, (x, y, 96), grid=blocks(96), configs=(SMALL, Config.of(BLOCK=64))
    )
    case.restore()
    sample = [output.clone() for output in case.run(SMALL)]
    assert verify(case, SMALL, None, sample) is None
    failure = verify(case, LARGE, None, sample)
    assert failure is not None and failure.reason == "wrong_result"
    assert verify(case, SMALL, None, sample) is None  # what was overwritten is put back


def test_a_config_that_writes_to_an_input_is_refused(tmp_path):
    configs = (SMALL, Config.of(BLOCK=32))
    args = (torch.randn(96), torch.zeros(96), 96)
    case = case_of(tmp_path, careless, args, grid=blocks(96), configs=configs)
    failure = verify(case, configs[1], None)
    assert failure is not None and "input" in failure.message


def test_a_default_that_does_not_work_leaves_it_to_another_to_show_what_is_written(tmp_path):
    broken = Config.of(BLOCK=3)  # not a power of two
    args = (torch.randn(64), torch.zeros(64), 64)
    case = case_of(tmp_path, add_to, args, grid=blocks(64), configs=(broken, LARGE))
    assert len(case.read_only()) == 1


def test_a_config_that_ended_a_process_is_not_tried_again_by_the_next(tmp_path):
    args = (torch.randn(64), torch.zeros(64), 64)
    case_of(tmp_path, add_to, args, grid=blocks(64))
    (tmp_path / "writes.json").write_text(json.dumps({"tried": 1}))
    assert len(open_case(str(tmp_path)).read_only()) == 1
    assert json.loads((tmp_path / "writes.json").read_text())["regions"] == [1]


def test_arguments_that_are_reset_hold_zeros_in_every_run(tmp_path):
    x, y = torch.randn(64), torch.full((64,), 7.0)
    case = case_of(tmp_path, add_to, (x, y, 64), grid=(1,), reset_to_zero=["y_ptr"])
    for config in (LARGE, LARGE):
        case.restore()
        torch.testing.assert_close(case.run(config)[0], x)
    assert torch.equal(y, torch.full((64,), 7.0))


def test_heuristics_have_their_say_for_each_config(tmp_path):
    heuristics = {"BLOCK": lambda args: args["WIDTH"] * 2}

    @triton.heuristics(heuristics)
    @triton.jit
    def kernel(x_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), WIDTH)

    configs = (Config.of(WIDTH=8), Config.of(WIDTH=16))
    case = case_of(tmp_path, kernel, (torch.zeros(32),), grid=(1,), configs=configs)
    for width in (8, 16):
        case.restore()
        assert case.run(Config.of(WIDTH=width))[0].tolist() == [width] * 2 * width + [0] * (
            32 - 2 * width
        )


def test_of_too_many_configs_the_worker_works_out_the_grid_itself(tmp_path):
    x, y = torch.randn(100), torch.zeros(100)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    case = case_of(tmp_path, add_to, (x, y, 100), grid=grid, configs=())
    (launch,) = case.compile(Config.of(BLOCK=32, num_warps=2))
    assert launch.grid == (4,)


def test_a_hook_of_a_config_sets_the_tile_of_a_descriptor(tmp_path):
    tiles = {Config.of(BLOCK=8): 8, Config.of(BLOCK=16): 16}

    def hook(args):
        for name in ("source", "target"):
            args[name].block_shape = [args["BLOCK"], args["BLOCK"]]

    source, target = torch.randn(16, 16), torch.zeros(16, 16)
    args = [TensorDescriptor.from_tensor(each, [4, 4]) for each in (source, target)]
    hooks = Hooks(of_config=dict.fromkeys(tiles, hook))
    case = case_of(tmp_path, copy_tile, args, grid=(1,), configs=tuple(tiles), hooks=hooks)
    for config, tile in tiles.items():
        case.compile(config)
        case.restore()
        expected = torch.zeros(16, 16)
        expected[:tile, :tile] = source[:tile, :tile]
        torch.testing.assert_close(case.run(config)[0], expected)
    assert args[0].block_shape == [4, 4]


def test_a_reference_decides_what_is_right(tmp_path):
    x, y = torch.randn(64), torch.randn(64)
    right = case_of(tmp_path, add_to, (x, y, 64), grid=(1,), expected={"y_ptr": x + y})
    assert verify(right, LARGE, right.expected()) is None
    failure = verify(right, SMALL, right.expected())  # one block of four
    assert failure is not None and failure.reason == "wrong_result"


def test_a_reference_with_too_few_results_is_an_error(tmp_path):
    x, y = torch.randn(64), torch.randn(64)
    case = case_of(tmp_path, add_to, (x, y, 64), grid=(1,), expected=[x, y])
    with pytest.raises(TrituneError, match=r"returns 2 tensors for 1 .*return a dict"):
        case.expected()


def test_only_triton_functions_can_be_sent():
    with pytest.raises(TransferError, match=r"no triton\.jit function"):
        decorated_kernel(len)


def test_a_config_may_bring_a_number_that_the_compiler_does_not_see(tmp_path):
    configs = (Config.of(BLOCK=64, n=10), Config.of(BLOCK=64, n=20))
    args = (torch.randn(64), torch.zeros(64))
    case = case_of(tmp_path, add_to, args, grid=(1,), configs=configs)
    one, other = (case.compile(config)[0] for config in configs)
    assert one.compiled.hash == other.compiled.hash
    assert (one.scalars, other.scalars) == ((10,), (20,))


def test_the_grid_sees_the_arguments_as_triton_shows_them():
    seen = {}

    def grid(meta):
        seen.update(meta)
        return (1,)

    arguments = CallArguments((1, 2), {"n": 3}, grid)
    launch_arguments(decorated_kernel(add_to), arguments, {"BLOCK": 16, "num_warps": 2})
    assert seen == {"x_ptr": 1, "y_ptr": 2, "n": 3, "BLOCK": 16}


@triton.jit
def atomic_sum(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + offsets, offsets < n, 0.0)))


@triton.jit
def copy_part(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, offsets < n), offsets < n)


@pytest.mark.parametrize(
    ("kernel", "out"),
    [(atomic_sum, torch.zeros(1)), (copy_part, torch.full((2 << 16,), float("nan")))],
    ids=["sums by atomics", "leaves NaN that was there"],
)
def test_what_the_default_config_may_do_others_may_too(tmp_path, kernel, out):
    count = 1 << 16
    configs = [Config.of(BLOCK=64), Config.of(BLOCK=128)]
    args = (torch.rand(count), out, count)
    case = case_of(tmp_path, kernel, args, grid=blocks(count), configs=configs)
    case.restore()
    sample = [each.clone() for each in case.run(configs[0])]
    assert [verify(case, config, None, sample) for config in configs] == [None, None]


@triton.jit
def add_pair(pair, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(pair[0] + at) + tl.load(pair[1] + at))


def test_arguments_may_hold_tensors_inside(tmp_path):
    """Descriptors, reinterpreted tensors and tuples; none is read to compile."""
    (tmp_path / "tiles").mkdir()
    source, target = torch.randn(4, 16), torch.zeros(4, 16)
    tiles = [TensorDescriptor.from_tensor(each, [4, 16]) for each in (source, target)]
    case = case_of(tmp_path / "tiles", copy_tile, tiles, grid=(1,), configs=(SMALL,))
    case.compile(SMALL)
    case.restore()
    torch.testing.assert_close(case.run(SMALL)[0], source)
    x, out = torch.arange(16.0), torch.zeros(16)
    bits = triton.reinterpret(out.view(torch.int32), tl.float32)
    case = case_of(tmp_path, add_pair, ((x, x), bits), grid=(1,), configs=(SMALL,))
    case.compile(SMALL)
    case.restore()
    torch.testing.assert_close(case.run(SMALL)[0].view(torch.float32), 2 * x)
