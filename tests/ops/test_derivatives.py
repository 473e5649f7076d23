"""No op has a derivative: whoever asks for one is told so, in every way there is to ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import tritune
from tests.ops.every_op import CALLS, Call

OPERANDS = [
    pytest.param(call, name, id=f"{call.name}-{name}")
    for call in CALLS
    for name, tensor in call.tensors.items()
    if tensor.is_floating_point()
]
TANGENT, GRADIENT = "has a tangent", "requires a gradient"
batched = torch.vmap


def in_operand(call: Call, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The call as a function of one of its tensors, to one tensor."""
    return lambda tensor: call.run(**{name: tensor})[0]


def warm(call: Call) -> None:
    """Make it a call that is known, and goes the short way."""
    for _ in range(3):
        call.run()


@pytest.mark.parametrize(("call", "name"), OPERANDS)
def test_a_dual_tensor_is_refused(call: Call, name: str) -> None:
    warm(call)
    tensor = call.tensors[name].clone()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor, torch.ones_like(tensor))
        with pytest.raises(ValueError, match=TANGENT):
            call.run(**{name: dual})
        call.run()


@pytest.mark.parametrize(("call", "name"), OPERANDS)
def test_transforms_that_differentiate_are_refused(call: Call, name: str) -> None:
    """Under vmap, what differentiates is hidden from the function that is called."""
    warm(call)
    run, tensor = in_operand(call, name), call.tensors[name]
    with pytest.raises(ValueError, match=TANGENT):
        torch.func.jvp(run, (tensor.clone(),), (tensor,))
    with pytest.raises(ValueError, match=GRADIENT):
        torch.func.grad(lambda t: run(t).sum())(tensor.clone())
    with pytest.raises(ValueError, match=GRADIENT):
        run(tensor.clone().requires_grad_())
    if call.writes:
        return
    two = torch.stack([tensor, tensor])
    with pytest.raises(ValueError, match=TANGENT):
        torch.func.jvp(batched(run), (two,), (two,))
    with pytest.raises(ValueError, match=GRADIENT):
        torch.func.grad(lambda t: batched(run)(t).sum())(two)
    with pytest.raises(ValueError, match=GRADIENT):
        batched(run)(two.clone().requires_grad_())


@pytest.mark.parametrize(
    "transform",
    [torch.func.jacfwd, torch.func.hessian, torch.func.jacrev],
    ids=lambda t: t.__name__,
)
def test_jacobians_are_refused(transform: Callable[..., Any]) -> None:
    x, weight = torch.randn(2, 16), torch.randn(16)
    with pytest.raises(ValueError, match="inference op"):
        transform(lambda x: tritune.rms_norm(x, weight).sum())(x)


def test_linearize_is_refused() -> None:
    x, weight = torch.randn(2, 16), torch.randn(16)
    with pytest.raises(ValueError, match="inference op"):
        torch.func.linearize(lambda x: tritune.rms_norm(x, weight), x)


def test_what_a_transform_does_not_differentiate_is_computed() -> None:
    x, weight = torch.randn(2, 16), torch.randn(16)
    constant = tritune.rms_norm(x, weight)
    out, tangent = torch.func.jvp(lambda y: y * tritune.rms_norm(x, weight), (x,), (x,))
    torch.testing.assert_close(out, x * constant)
    torch.testing.assert_close(tangent, x * constant)
    detached = torch.func.jvp(lambda y: tritune.rms_norm(y.detach(), weight) * y, (x,), (x,))
    torch.testing.assert_close(detached[1], constant * x)


def test_inference_mode_has_no_tangents() -> None:
    x, weight = torch.randn(2, 16), torch.randn(16)
    with forward_ad.dual_level(), torch.inference_mode():
        out = tritune.rms_norm(forward_ad.make_dual(x, x), weight)
    torch.testing.assert_close(out, tritune.rms_norm(x, weight))


def test_compiled_code_refuses_a_tangent() -> None:
    x, weight = torch.randn(2, 16), torch.randn(16)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return tritune.rms_norm(x, weight)

    compiled = torch.compile(norm, backend="aot_eager")
    with forward_ad.dual_level(), pytest.raises(ValueError, match=TANGENT):
        compiled(forward_ad.make_dual(x, x))
    inside = torch.compile(lambda x: torch.func.jvp(norm, (x,), (x,))[1], backend="aot_eager")
    with pytest.raises(Exception, match=TANGENT):
        inside(x)
    with pytest.raises(ValueError, match=TANGENT):
        torch.func.jvp(compiled, (x,), (x,))
    # Dynamo gives the op up from here on, and `fullgraph` elsewhere in this process with it.
    torch._dynamo.reset()


def test_sdpa_leaves_tangents_to_torch() -> None:
    q = torch.randn(1, 2, 8, 16)
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, tangent = torch.func.jvp(lambda q: tritune.sdpa(q, q, q), (q,), (q,))
        _, expected = torch.func.jvp(lambda q: attend(q, q, q), (q,), (q,))
    torch.testing.assert_close(tangent, expected)
