"""Screening: a whole space compiled for a target that need not be here, and judged by what the
binaries need.

A room of its own beside `tuning/`, for nothing here runs a kernel: it knows ops, compilers and
limits, but no device, no clock and no winner. What comes out of it is a list of configs that are
worth measuring, and a pack that carries their binaries to where the device is (see `tritune.pack`,
apart from this because the machine with the device reads packs and screens nothing).
"""
