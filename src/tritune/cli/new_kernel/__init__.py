"""KERNEL: a Triton kernel with its space, reference, tests and benchmark."""

from .op import KERNEL

__all__ = ["KERNEL"]
