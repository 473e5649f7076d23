"""Tensors that are not plain memory: each op is right for them, or says what it does not take."""

from __future__ import annotations

import pytest
import torch

import tritune
from tests.ops.every_op import CALLS, Call
from tritune.errors import TrituneError

EVERY = [pytest.param(call, id=call.name) for call in CALLS]
TENSORS = [
    pytest.param(call, name, id=f"{call.name}-{name}") for call in CALLS for name in call.tensors
]


@pytest.mark.parametrize("call", EVERY)
def test_meta_tensors_give_meta_tensors(call: Call) -> None:
    """With the shapes, strides and dtypes that the results would have."""
    results = call.run(**{name: tensor.to("meta") for name, tensor in call.tensors.items()})
    for result, real in zip(results, call.run(), strict=True):
        assert result.is_meta
        assert (result.shape, result.stride()) == (real.shape, real.stride())
        assert result.dtype == real.dtype


@pytest.mark.parametrize(("call", "name"), TENSORS)
def test_a_negative_view_counts_as_its_values(call: Call, name: str) -> None:
    tensor = call.tensors[name]
    if not tensor.is_floating_point():
        pytest.skip("integers have no such views")
    for _ in range(3):
        expected = call.run()
    # How the imaginary part of a conjugate is kept.
    view = torch.complex(tensor, -tensor).conj().imag
    assert view.is_neg()
    if name in call.writes:
        with pytest.raises(ValueError, match="cannot be written: it is a negative view"):
            call.run(**{name: view})
    else:
        torch.testing.assert_close(call.run(**{name: view}), expected)


@pytest.mark.parametrize(("call", "name"), TENSORS)
def test_tensors_without_dense_memory_are_refused(call: Call, name: str) -> None:
    with pytest.raises(ValueError, match="is sparse_coo, allowed: dense tensors") as caught:
        call.run(**{name: call.tensors[name].to_sparse()})
    assert isinstance(caught.value, TrituneError)


@pytest.mark.parametrize("call", EVERY)
def test_a_nested_tensor_is_refused_after_cached_calls(call: Call) -> None:
    for _ in range(3):
        call.run()
    name, tensor = next(iter(call.tensors.items()))
    with pytest.raises((ValueError, RuntimeError), match=r"a nested tensor|NestedTensor"):
        call.run(**{name: torch.nested.nested_tensor(list(tensor))})


@pytest.mark.parametrize(("call", "name"), TENSORS)
def test_vmap_over_each_argument_is_a_loop(call: Call, name: str) -> None:
    tensor = call.tensors[name]
    if call.writes:
        with pytest.raises(RuntimeError, match="Batching rule not implemented"):
            torch.vmap(lambda one: call.run(**{name: one}))(torch.stack([tensor, tensor]))
        return
    other = tensor.flip(0) / 2 if tensor.is_floating_point() else tensor
    batch = torch.stack([tensor, other])
    results = torch.vmap(lambda one: call.run(**{name: one}))(batch)
    loop = [torch.stack(each) for each in zip(*(call.run(**{name: o}) for o in batch), strict=True)]
    torch.testing.assert_close(results, loop)


def test_torch_hears_of_what_a_dispatched_op_writes() -> None:
    x, weight, out = torch.randn(2, 16), torch.randn(16), torch.empty(2, 16)
    tritune.rms_norm(x, weight, out=out)
    torch.ops.tritune.rms_norm_out.default(x, weight, 1e-6, out)
    assert out._version == 2
