"""What is known about a function before code is written: uses, strides, affine ranges."""
