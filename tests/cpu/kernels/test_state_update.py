"""One recurrence of a state-space model: states in slots, several tokens for each sequence."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, normal

#: The slot of sequences that only pad the batch: it reads as zeros and is not written.
PADDING = 0
SEQUENCES, TOKENS, DIM, SIZE, SLOTS = 3, 4, 72, 24, 8
ROWS, COLUMNS = 16, 32


@triton.jit
def state_update_kernel(
    state_ptr, slot_ptr, x_ptr, dt_ptr, decay_ptr, b_ptr, c_ptr, out_ptr,
    tokens, dim, size, decay_row_stride, decay_stride,
    PADDING: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    sequence = tl.program_id(1)
    slot = tl.load(slot_ptr + sequence)
    inside = (row < dim)[:, None] & (column < size)[None, :]
    states = state_ptr + slot * dim * size + row[:, None] * size + column[None, :]
    state = tl.load(states, mask=inside & (slot != PADDING), other=0.0)
    decays = decay_ptr + row[:, None] * decay_row_stride + column[None, :] * decay_stride
    decay = tl.load(decays, mask=inside, other=0.0)
    for token in range(sequence * tokens, (sequence + 1) * tokens):
        x = tl.load(x_ptr + token * dim + row, mask=row < dim, other=0.0)
        dt = tl.load(dt_ptr + token * dim + row, mask=row < dim, other=0.0)
        dt = tl.where(dt <= 20.0, tl.log(tl.exp(dt) + 1), dt)
        b = tl.load(b_ptr + token * size + column, mask=column < size, other=0.0)
        c = tl.load(c_ptr + token * size + column, mask=column < size, other=0.0)
        kept = tl.exp2(1.4426950408889634 * decay * dt[:, None])
        state = state * kept + dt[:, None] * b[None, :] * x[:, None]
        out = tl.sum(state * c[None, :], axis=1)
        tl.store(out_ptr + token * dim + row, out, mask=row < dim)
    tl.store(states, state, mask=inside & (slot != PADDING))


def reference(state, slots, x, dt, decay, b, c):
    """Return the states and the outputs, by definition, in the dtype of the inputs."""
    state, outputs = state.clone(), []
    for sequence, slot in enumerate(slots.tolist()):
        one = torch.zeros_like(state[0]) if slot == PADDING else state[slot]
        for t in range(TOKENS):
            step = torch.nn.functional.softplus(dt[sequence, t])[:, None]
            one = one * torch.exp(decay * step) + step * b[sequence, t] * x[sequence, t][:, None]
            outputs.append(one @ c[sequence, t])
        if slot != PADDING:
            state[slot] = one
    return state, torch.stack(outputs).view(x.shape)


def inputs(shared: bool) -> list[torch.Tensor]:
    """Return x, dt, decay, b and c; a shared decay is one number, with strides of zero."""
    x, dt = (normal(torch.float32, SEQUENCES, TOKENS, DIM, seed=s) for s in (1, 2))
    b, c = (normal(torch.float32, SEQUENCES, TOKENS, SIZE, seed=s) for s in (3, 4))
    decay = -normal(torch.float32, *((1, 1) if shared else (DIM, SIZE)), seed=5).abs()
    return [x, dt, decay.expand(DIM, SIZE), b, c]


def update(state, slots, values):
    """Return the states and the outputs of the kernel."""
    state, out = state.clone(), torch.zeros_like(values[0])
    state_update_kernel[(triton.cdiv(DIM, ROWS), SEQUENCES)](
        state, slots, *values, out, TOKENS, DIM, SIZE, *values[2].stride(),
        PADDING=PADDING, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return state, out


@pytest.mark.parametrize("slots", [[3, 1, 2], [5, PADDING, PADDING]])
@pytest.mark.parametrize("shared", [False, True])
def test_states_and_outputs_follow_the_recurrence(slots, shared):
    state, values = normal(torch.float32, SLOTS, DIM, SIZE), inputs(shared)
    slots = torch.tensor(slots)
    plain = reference(state, slots, *values)
    exact = reference(state.double(), slots, *(value.double() for value in values))
    for ours, torchs, wide in zip(update(state, slots, values), plain, exact, strict=True):
        assert_accurate(ours, torchs, wide)


def test_slots_of_padding_and_of_no_sequence_are_not_written():
    before = normal(torch.float32, SLOTS, DIM, SIZE)
    after, _ = update(before, torch.tensor([5, PADDING, 2]), inputs(shared=False))
    others = [slot for slot in range(SLOTS) if slot not in (5, 2)]
    assert torch.equal(after[others], before[others])
