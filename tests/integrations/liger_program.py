"""A program that knows nothing of tritune: it checks liger-kernel's kernels against torch.

Prints a JSON object: for each kernel that was asked for, how far it is from torch, forward and
backward, relative to the largest element; or the error.
"""

import json
import sys

import torch
import torch.nn.functional as F
from liger_kernel import ops

TOKENS, HIDDEN, WORDS = 24, 96, 500


def tensor(*shape):
    return torch.randn(*shape, requires_grad=True)


def rms_norm():
    x, w = tensor(TOKENS, HIDDEN), tensor(HIDDEN)
    yield ops.LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False), [x, w]
    yield F.rms_norm(x, (HIDDEN,), w, 1e-6), [x, w]


def fused_add_rms_norm():
    x, r, w = tensor(TOKENS, HIDDEN), tensor(TOKENS, HIDDEN), tensor(HIDDEN)
    yield ops.LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6)[0], [x, r, w]
    yield F.rms_norm(x + r, (HIDDEN,), w, 1e-6), [x, r, w]


def layer_norm():
    x, w, b = tensor(TOKENS, HIDDEN), tensor(HIDDEN), tensor(HIDDEN)
    yield ops.LigerLayerNormFunction.apply(x, w, b, 1e-6), [x, w, b]
    yield F.layer_norm(x, (HIDDEN,), w, b, 1e-6), [x, w, b]


def group_norm():
    x, w, b = tensor(4, 12, 40), tensor(12), tensor(12)
    yield ops.LigerGroupNormFunction.apply(x, w, b, 12, 4, 1e-6), [x, w, b]
    yield F.group_norm(x, 4, w, b, 1e-6), [x, w, b]


def swiglu():
    # The kernels write gradients over their inputs.
    a, b = tensor(TOKENS, HIDDEN), tensor(TOKENS, HIDDEN)
    yield ops.LigerSiLUMulFunction.apply(a.clone(), b.clone()), [a, b]
    yield F.silu(a) * b, [a, b]


def geglu():
    a, b = tensor(TOKENS, HIDDEN), tensor(TOKENS, HIDDEN)
    yield ops.LigerGELUMulFunction.apply(a.clone(), b.clone()), [a, b]
    yield F.gelu(a, approximate="tanh") * b, [a, b]


def relu_squared():
    x = tensor(TOKENS, HIDDEN)
    yield ops.LigerReLUSquaredFunction.apply(x), [x]
    yield F.relu(x) ** 2, [x]


def softmax():
    x = tensor(TOKENS, HIDDEN)
    yield ops.LigerSoftmaxFunction.apply(x), [x]
    yield F.softmax(x, -1), [x]


def rope():
    q, k = tensor(2, 4, 16, 32), tensor(2, 2, 16, 32)
    angles = torch.outer(torch.arange(16.0), 10000.0 ** -(torch.arange(16.0) / 16)).repeat(1, 2)
    cos, sin = angles.cos()[None], angles.sin()[None]

    def rotated(x):
        left, right = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-right, left], -1) * sin[:, None]

    ours = ops.LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin)
    yield torch.cat(ours, 1), [q, k]
    yield torch.cat([rotated(q), rotated(k)], 1), [q, k]


def cross_entropy():
    x, target = tensor(TOKENS, WORDS), torch.randint(0, WORDS, (TOKENS,))
    target[3] = -100
    more = (None, -100, 0.0, 0.1, "mean")
    yield ops.LigerCrossEntropyFunction.apply(x.clone(), target, *more)[0], [x]
    yield F.cross_entropy(x, target, label_smoothing=0.1), [x]


def fused_linear_cross_entropy():
    x, w = tensor(TOKENS, HIDDEN), tensor(WORDS, HIDDEN)
    target = torch.randint(0, WORDS, (TOKENS,))
    yield ops.LigerFusedLinearCrossEntropyFunction.apply(x, w, target)[0], [x, w]
    yield F.cross_entropy(x @ w.T, target), [x, w]


def kl_div():
    x, target = tensor(TOKENS, WORDS), torch.randn(TOKENS, WORDS).softmax(-1)
    yield ops.LigerKLDivLossFunction.apply(x.log_softmax(-1), target, "batchmean"), [x]
    yield F.kl_div(x.log_softmax(-1), target, reduction="batchmean"), [x]


def dyt():
    """Has `triton.autotune` with 18 configs; its backward pass asks for a GPU's properties."""
    x, alpha, gamma, beta = tensor(TOKENS, 2000), tensor(1), tensor(2000), tensor(2000)
    yield ops.LigerDyTFunction.apply(x, alpha, gamma, beta), []
    yield torch.tanh(alpha * x) * gamma + beta, []


CASES = (rms_norm, fused_add_rms_norm, layer_norm, group_norm, swiglu, geglu, relu_squared, softmax,
         rope, cross_entropy, fused_linear_cross_entropy, kl_div, dyt)  # fmt: skip


def distance(ours, theirs):
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).abs().max() / theirs.abs().max())


def check(case):
    torch.manual_seed(0)
    (ours, inputs), (theirs, _) = case()
    found = [distance(ours, theirs)]
    if inputs:
        weights = torch.randn_like(theirs)
        gradients = (torch.autograd.grad(each, inputs, weights) for each in (ours, theirs))
        found += [distance(one, other) for one, other in zip(*gradients, strict=True)]
    return max(found)


if __name__ == "__main__":
    results = {}
    for case in CASES:
        if not sys.argv[1:] or case.__name__ in sys.argv[1:]:
            try:
                results[case.__name__] = check(case)
            except Exception as error:
                results[case.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))
