"""Screening: compiling a whole space for a target that need not be here, and judging the binaries.

Nothing here runs a kernel: it knows ops, compilers and limits, but no device, no clock and no
winner. The result is a list of configs that are worth measuring, ranked by a model, and a pack that
carries their binaries to the device. `tritune.pack` is apart from this, because the machine with
the device reads packs and screens nothing.
"""
