"""Packs: files that carry compiled configs from where they were screened to where the device is.

A pack is data from outside. Whatever is read from one is checked before it is used: its size, the
names in it, the digest of every member, and that kernel, compiler and target are those of this
machine. Nothing in it is executed but the binaries, on the device, as Triton's own cache would have
them.
"""
