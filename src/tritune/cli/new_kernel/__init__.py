"""KERNEL: a Triton kernel with what it takes to tune it, to trust it, and to ship it."""

from .op import KERNEL

__all__ = ["KERNEL"]
