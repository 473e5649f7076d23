"""Writes matrix products: the register-blocked micro-kernel and gemm GEMM."""
