"""The parser of Triton's IR: only this folder knows how it is printed and how versions differ.

`optimise` runs Triton's own passes over a fresh module; `parse` turns the printed result into the
backend's IR (`ir.py`). Only the text is read: Triton's Python bindings show neither all attributes
nor where a branch goes.

What cannot be read with certainty is refused, with the operation and its place in the user's
source. Wherever MLIR prints an operand's type, it is compared with the type its definition gave, so
that a format that has changed in a new Triton fails here instead of computing something else.

Attributes have one form for all versions of Triton:

- Names and values are MLIR's own, as Python values; a flag is `True`.
- `arith.constant`: `value`, a number of the type (`i1`: 0 or 1), or a flat list if not a splat.
- `arith.cmpi`, `arith.cmpf`: `predicate`.
- `tt.load`, `tt.store`: `cache`, `evict`, `is_volatile` if asked for.
- `tt.atomic_*`: `sem` and `scope`; `tt.atomic_rmw` also `op`.
- `tt.get_program_id`, `tt.get_num_programs`: `axis` as a number.
- `tt.dot`: `inputPrecision` and `maxNumImpreciseAcc` always; `tt.fp_to_fp`: `rounding` or None.
- `tt.clampf`: `propagateNan` as a bool; `tt.scan`: `reverse` always.
- `tt.print`: `prefix`; `tt.assert`: `message`; `tt.call`: `callee`.
- `scf.for`: `unsigned` if the bounds are compared so.

Every block of an `scf` region ends with its terminator, also where MLIR leaves it out.
"""

from tritune.cpu.ttir.parser import parse
from tritune.cpu.ttir.passes import optimise

__all__ = ["optimise", "parse"]
