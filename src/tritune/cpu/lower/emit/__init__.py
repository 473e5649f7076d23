"""Writes LLVM IR for everything but matrix products: control flow, loop nests, memory, elements."""
