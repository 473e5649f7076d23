"""Stored results are keyed by the digest of a kernel's code, so digests must never change."""

import torch
import triton
import triton.language as tl

from tests.tuning.autotune import portable_module
from tritune.tuning.autotune.decorator import autotune
from tritune.tuning.autotune.digest import code_digest

SCALE = tl.constexpr(2.5)
WIDTH, FLAG, NAME, IGNORED = 8, True, "gelu", [1, 2]


@triton.constexpr_function
def half(n):
    return max(n // 2, WIDTH)


@triton.jit(noinline=True)
def scaled(x):
    return x * SCALE


@triton.jit
def recursive(x, n: tl.constexpr):
    if n == 0:
        return x
    return recursive(scaled(x), n - 1)


@triton.jit(do_not_specialize=["n"])
def everything(x_ptr, n, BLOCK: tl.constexpr = 64):
    SCALE = tl.program_id(0) * BLOCK  # a local with the name of a global constant
    offsets = SCALE + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    x = portable_module.shifted(recursive(x, 2)) + half(BLOCK) + portable_module.OFFSET
    if FLAG and NAME == "gelu" and len(IGNORED) == 2:
        x = tl.math.exp(x)
    tl.store(x_ptr + offsets, x, mask=offsets < n)


def closure_kernel(bias, function):
    @triton.jit
    def kernel(x_ptr, BLOCK: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, BLOCK))
        tl.store(x_ptr + tl.arange(0, BLOCK), function(x) + bias)

    return kernel


def test_digests_are_those_under_which_results_are_stored():
    kernels = {
        "helper": scaled,
        "constexpr_function": half,
        "recursive": recursive,
        "everything": everything,
        "closure": closure_kernel(tl.constexpr(1.5), scaled),
        "other_closure": closure_kernel(-2, portable_module.shifted),
        "of a module": portable_module.with_table,
    }
    assert {name: code_digest(kernel) for name, kernel in kernels.items()} == DIGESTS


def test_the_task_of_a_call_has_the_words_under_which_results_are_stored():
    configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
    kernel = autotune(configs, key=["n", "BLOCK"])(everything)
    task = kernel.task(torch.zeros(4), n=4, grid=(1,))
    assert task.kernel == f"{__name__}.everything"
    assert task.problem == '{"n":4,"x_ptr.dtype":"float32"}'


DIGESTS = {
    "helper": "f38ad4635765053f5620bc09aaba67f3017bd6c66d5e2be0e09e38c05a9f8ebf",
    "constexpr_function": "2a64c79fc9f0aadd0314099c60c9875c0637d84227fdf4fef4020a3043d74599",
    "recursive": "5b1061c5c6d920b4a853426e1f482b87a69eb921d1f99a66c1229262e3109a8d",
    "everything": "ae9c6519f75cfa9802d6252e71adc4b70127b0593665b3400bc5653f31b94492",
    "closure": "b53b507dd23e906f49509c474b071dbd885154a87b13106368b80959ee1e9438",
    "other_closure": "29c20f235225f453b17349273284b0233cd2d818168c4a240129f5e78d9e515f",
    "of a module": "c0dcd0820ab428e65c1c6f66c0ff50815188bfd3034773097c0400abeaaaf85d",
}
