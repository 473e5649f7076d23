"""A module that a kernel uses by name, as `module.function`."""

import threading

import triton
import triton.language as tl

OFFSET = tl.constexpr(3)


LOCK = threading.Lock()


class Table:
    """Something that no other process could make again without this module."""

    sizes = (16, 32)

    def __eq__(self, other):
        return type(other) is Table


TABLE = Table()


@triton.constexpr_function
def size(place):
    return TABLE.sizes[place]


@triton.jit
def shifted(x):
    return x + OFFSET


@triton.jit
def with_table(x_ptr):
    tl.store(x_ptr, size(1))


@triton.constexpr_function
def locked_size(place):
    with LOCK:
        return TABLE.sizes[place]


@triton.jit
def with_lock(x_ptr):
    tl.store(x_ptr, locked_size(1))


def plain_function(x_ptr):
    tl.store(x_ptr, OFFSET)


wrapped_kernel = triton.jit(plain_function)
