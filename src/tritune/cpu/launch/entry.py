"""The entry point of a kernel's object code, which runs all programs of the grid on all threads.

`tritune_launch(args, gx, gy, gz, threads, status)` fills a record that the threads share, and each
thread takes programs from it until none are left. The threads are torch's own OpenMP pool.
"""

from __future__ import annotations

from llvmlite import ir

from tritune.cpu.launch.loader import ENTRY

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_PTR = ir.PointerType()
_VOID = ir.VoidType()

# args, status, gx, gy, gz, divisor, total. The divisor sets the size of a chunk: the programs that
# are left, divided by it.
_SHARED = ir.LiteralStructType([_PTR, _PTR, _I32, _I32, _I32, _I32, _I64])
_ARGS, _STATUS, _GX, _GY, _GZ, _DIVISOR, _TOTAL = range(7)
# The counter has a cache line to itself, so that taking a chunk does not slow the readers down.
_NEXT_OFFSET = 64
_SHARED_BYTES = 128


def emit_launch(module: ir.Module, program: ir.Function, nontemporal: bool = False) -> ir.Function:
    """Add `tritune_launch` to `module`; it calls `program` once for each point of the grid.

    `program` is `void (ptr args, i32 x, i32 y, i32 z, i32 gx, i32 gy, i32 gz, ptr status)`. With
    `nontemporal` stores it needs a fence, before which other threads need not see them.
    """
    if not program.linkage:
        program.linkage = "internal"
    worker = _emit_worker(module, program, nontemporal)
    launch = ir.Function(
        module, ir.FunctionType(_VOID, [_PTR, _I32, _I32, _I32, _I32, _PTR]), ENTRY
    )
    launch.attributes.add("nounwind")
    args, gx, gy, gz, threads, status = launch.args
    b = ir.IRBuilder(launch.append_basic_block("entry"))
    total = b.mul(b.mul(b.zext(gx, _I64), b.zext(gy, _I64)), b.zext(gz, _I64))
    with b.if_then(b.icmp_unsigned("==", total, _I64(0))):
        b.ret_void()
    shared = b.alloca(ir.ArrayType(ir.IntType(8), _SHARED_BYTES))
    shared.align = 64
    # llvmlite still gives it a typed pointer, which does not mix with the others.
    shared.type = _PTR
    alone = b.or_(b.icmp_signed("<=", threads, _I32(1)), b.icmp_unsigned("==", total, _I64(1)))
    # One thread takes everything at once. Several begin with large chunks, for locality, and end
    # with single programs, so that they finish together whatever each program costs.
    divisor = b.select(alone, _I32(1), b.mul(threads, _I32(4)))
    for index, value in enumerate((args, status, gx, gy, gz, divisor, total)):
        b.store(value, _field(b, shared, index))
    next_program = b.gep(shared, [_I64(_NEXT_OFFSET)], source_etype=ir.IntType(8))
    b.store(_I64(0), next_program, align=8)
    with b.if_else(alone) as (then, otherwise):
        with then:
            b.call(worker, [shared])
        with otherwise:
            parallel = ir.Function(
                module, ir.FunctionType(_VOID, [_PTR, _PTR, _I32, _I32]), "GOMP_parallel"
            )
            # Always the full team, as torch does, even for a smaller grid: libgomp ends the
            # threads that a smaller team leaves out, and makes them anew for the next full one.
            b.call(parallel, [worker, shared, threads, _I32(0)])
    b.ret_void()
    return launch


def _field(b: ir.IRBuilder, shared: ir.Value, index: int) -> ir.Value:
    return b.gep(shared, [_I32(0), _I32(index)], inbounds=True, source_etype=_SHARED)


def _emit_worker(module: ir.Module, program: ir.Function, nontemporal: bool) -> ir.Function:
    """Emit what each thread does: run the programs of one chunk after another, x fastest."""
    worker = ir.Function(module, ir.FunctionType(_VOID, [_PTR]), "tritune_worker")
    worker.linkage = "internal"
    worker.attributes.add("nounwind")
    (shared,) = worker.args
    entry, take, claim, chunk, loop, step, leave = (
        worker.append_basic_block(name)
        for name in ("entry", "take", "claim", "chunk", "loop", "step", "leave")
    )
    b = ir.IRBuilder(entry)
    args, status = (b.load(_field(b, shared, i), typ=_PTR) for i in (_ARGS, _STATUS))
    gx, gy, gz, divisor = (
        b.load(_field(b, shared, i), typ=_I32) for i in (_GX, _GY, _GZ, _DIVISOR)
    )
    total = b.load(_field(b, shared, _TOTAL), typ=_I64)
    next_program = b.gep(shared, [_I64(_NEXT_OFFSET)], source_etype=ir.IntType(8))
    gx64, gy64 = b.zext(gx, _I64), b.zext(gy, _I64)
    divisor64 = b.zext(divisor, _I64)
    first = b.load_atomic(next_program, "monotonic", 8, typ=_I64)
    b.branch(take)

    b.position_at_end(take)
    start = b.phi(_I64, "start")
    start.add_incoming(first, entry)
    b.cbranch(b.icmp_unsigned("<", start, total), claim, leave)

    b.position_at_end(claim)
    share = b.udiv(b.sub(total, start), divisor64)
    share = b.select(b.icmp_unsigned("==", share, _I64(0)), _I64(1), share)
    end = b.add(start, share)
    outcome = b.cmpxchg(next_program, start, end, "monotonic", "monotonic")
    # Another thread was faster: begin again from where it left the counter.
    start.add_incoming(b.extract_value(outcome, 0), claim)
    b.cbranch(b.extract_value(outcome, 1), chunk, take)

    b.position_at_end(chunk)
    x0 = b.trunc(b.urem(start, gx64), _I32)
    row = b.udiv(start, gx64)
    y0 = b.trunc(b.urem(row, gy64), _I32)
    z0 = b.trunc(b.udiv(row, gy64), _I32)
    b.branch(loop)

    b.position_at_end(loop)
    index, x, y, z = b.phi(_I64), b.phi(_I32), b.phi(_I32), b.phi(_I32)
    b.call(program, [args, x, y, z, gx, gy, gz, status])
    # A failed assertion anywhere ends the launch soon.
    failed = b.load_atomic(status, "monotonic", 4, typ=_I32)
    b.cbranch(b.icmp_unsigned("==", failed, _I32(0)), step, leave)

    b.position_at_end(step)
    one = _I32(1)
    x_next = b.add(x, one)
    x_wraps = b.icmp_unsigned("==", x_next, gx)
    y_next = b.select(x_wraps, b.add(y, one), y)
    y_wraps = b.icmp_unsigned("==", y_next, gy)
    z_next = b.select(y_wraps, b.add(z, one), z)
    following = b.add(index, _I64(1))
    for phi, initial, later in (
        (index, start, following),
        (x, x0, b.select(x_wraps, _I32(0), x_next)),
        (y, y0, b.select(y_wraps, _I32(0), y_next)),
        (z, z0, z_next),
    ):
        phi.add_incoming(initial, chunk)
        phi.add_incoming(later, step)
    again = worker.append_basic_block("again")
    b.cbranch(b.icmp_unsigned("<", following, end), loop, again)

    b.position_at_end(again)
    start.add_incoming(b.load_atomic(next_program, "monotonic", 8, typ=_I64), again)
    b.branch(take)

    b.position_at_end(leave)
    if nontemporal:
        b.fence("seq_cst")
    b.ret_void()
    return worker
