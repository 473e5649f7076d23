"""Triton's own passes over a module, before it is parsed."""

from __future__ import annotations

from typing import Any


def optimise(mod: Any, options: Any) -> Any:
    """Run Triton's target-independent passes over `mod` in place, and return it."""
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(mod.context)
    manager.enable_debug()
    # In this order. A pass that a Triton lacks is for operations that it lacks too.
    for group, name in (
        (passes.common, "add_inliner"),
        (passes.ttir, "add_rewrite_tensor_pointer"),
        (passes.ttir, "add_rewrite_tensor_descriptor_to_pointer"),
        (passes.common, "add_canonicalizer"),
        (passes.ttir, "add_combine"),
        (passes.ttir, "add_reorder_broadcast"),
        (passes.common, "add_cse"),
        (passes.ttir, "add_triton_licm"),
        (passes.common, "add_symbol_dce"),
        (passes.ttir, "add_loop_unroll"),
    ):
        if hasattr(group, name):
            getattr(group, name)(manager)
    manager.run(mod, "make_ttir")
    return mod
