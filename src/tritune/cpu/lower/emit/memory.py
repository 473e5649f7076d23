"""Reads and writes memory at one point of a loop nest.

The lanes of the address decide: one scalar access (uniform), one contiguous vector (affine by the
element's size), or one access per lane. A lane that is masked off never touches its address: it
accesses a dummy slot instead, which needs no branch.
"""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.context import ZERO, Buffer, Context, Point
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.llvm import (
    I8,
    I32,
    constant,
    i64,
    lanes_of,
    memory_bytes,
    memory_type,
    scalar_type,
    vector_of,
)


def load(
    ctx: Context, address: Lanes, mask: Lanes | None, other: Lanes | None, elem: str, lanes: int
) -> Lanes:
    e, b = ctx.e, ctx.b
    kind, size = memory_type(elem), memory_bytes(elem)
    if mask is None:
        other = None
    elif other is None:
        # Triton leaves these lanes undefined; every device gives 0, and kernels rely on it.
        zero = 0 if isinstance(kind, ll.IntType) else 0.0
        other = Lanes(constant(scalar_type(elem), zero))
    if address.uniform and (mask is None or mask.uniform):
        read = _from_memory(ctx, b.load(_safe(ctx, address, mask), typ=kind, align=size), elem)
        if mask is None or other is None:
            return Lanes(read)
        if other.uniform:
            return Lanes(b.select(mask.x, read, other.x))
        read = e.splat(read, lanes)
        return vector(b.select(e.splat(mask.x, lanes), read, to_vector(e, other, lanes)))
    wide = vector_of(kind, lanes)
    fallback = to_vector(e, other, lanes) if other is not None else None
    if isinstance(address.step, int) and address.step == size:
        if mask is None or mask.uniform:
            read = _from_memory(ctx, b.load(_safe(ctx, address, mask), typ=wide, align=size), elem)
            if mask is not None:
                read = b.select(e.splat(mask.x, lanes), read, fallback)
            return vector(read)
        passthrough = _to_memory(ctx, fallback, elem)
        active = to_vector(e, mask, lanes)
        args = [e.address(address.x), ll.Constant(I32, size), active, passthrough]
        read = e.intrinsic("masked.load", wide, args, [wide, args[0].type])
        return vector(_from_memory(ctx, read, elem))
    active = None
    if mask is None and isinstance(address.step, ll.Value):
        # From a vector of addresses, each would have to be extracted before its use.
        places = [address.x]
        while len(places) < lanes:
            places.append(b.add(places[-1], address.step))
    else:
        addresses, active = _lane_addresses(ctx, address, mask, lanes)
        places = [e.extract(addresses, i) for i in range(lanes)]
    scalars = [b.load(e.address(place), typ=kind, align=size) for place in places]
    read = _from_memory(ctx, e.build_vector(scalars), elem)
    return vector(read if active is None else b.select(active, read, fallback))


#: The smallest vector that a nontemporal store can write.
_MIN_NONTEMPORAL_BYTES = 16


def store(
    ctx: Context,
    address: Lanes,
    value: Lanes,
    mask: Lanes | None,
    elem: str,
    lanes: int,
    nontemporal: bool = False,
) -> None:
    """Write a value, or a vector of values; with a nontemporal store, if that is possible."""
    e, b = ctx.e, ctx.b
    size = memory_bytes(elem)
    contiguous = isinstance(address.step, int) and address.step == size
    written = value.x if lanes == 1 else to_vector(e, value, lanes)
    if lanes > 1 and not contiguous:
        addresses, _ = _lane_addresses(ctx, address, mask, lanes)
        for i in range(lanes):
            scalar = _to_memory(ctx, e.extract(written, i), elem)
            b.store(scalar, e.address(e.extract(addresses, i)), align=size)
        return
    written = _to_memory(ctx, written, elem)
    whole = lanes * size
    if nontemporal and mask is None and lanes > 1 and whole >= _MIN_NONTEMPORAL_BYTES:
        _store_nontemporal(ctx, address.x, written, whole, size)
    elif lanes == 1 or mask is None or mask.uniform:
        b.store(written, _safe(ctx, address, mask), align=size)
    else:
        active = to_vector(e, mask, lanes)
        args = [written, e.address(address.x), ll.Constant(I32, size), active]
        e.intrinsic("masked.store", ll.VoidType(), args, [written.type, args[1].type])


def load_buffer(ctx: Context, buffer: Buffer, point: Point, lanes: int) -> Lanes:
    e, b = ctx.e, ctx.b
    kind, size = memory_type(buffer.elem), memory_bytes(buffer.elem)
    place, stride = buffer_address(ctx, buffer, point)
    if stride == 0 or lanes == 1:
        return Lanes(_from_memory(ctx, b.load(place, typ=kind, align=size), buffer.elem))
    if stride == 1:
        read = b.load(place, typ=vector_of(kind, lanes), align=size)
    else:
        scalars = []
        for i in range(lanes):
            at = b.gep(place, [i64(i * stride)], inbounds=True, source_etype=kind)
            scalars.append(b.load(at, typ=kind, align=size))
        read = e.build_vector(scalars)
    return vector(_from_memory(ctx, read, buffer.elem))


def load_first(ctx: Context, buffer: Buffer) -> ll.Value:
    """Return the only element of a buffer."""
    return load_buffer(ctx, buffer, (ZERO,), 1).x


def store_buffer(ctx: Context, buffer: Buffer, point: Point, value: Lanes, lanes: int) -> None:
    e, b = ctx.e, ctx.b
    kind, size = memory_type(buffer.elem), memory_bytes(buffer.elem)
    place, stride = buffer_address(ctx, buffer, point)
    if lanes == 1:
        b.store(_to_memory(ctx, value.x, buffer.elem), place, align=size)
        return
    written = _to_memory(ctx, to_vector(e, value, lanes), buffer.elem)
    if stride == 1:
        b.store(written, place, align=size)
        return
    for i in range(lanes):
        at = b.gep(place, [i64(i * stride)], inbounds=True, source_etype=kind)
        b.store(e.extract(written, i), at, align=size)


def buffer_address(ctx: Context, buffer: Buffer, point: Point) -> tuple[ll.Value, int]:
    """Return the address of the point's first lane, and the stride between lanes in elements."""
    b, kind = ctx.b, memory_type(buffer.elem)
    offset: ll.Value | None = None
    fixed, lane_stride = 0, 0
    for index, stride in zip(point, buffer.strides, strict=True):
        if index.lane:
            lane_stride = stride
        if isinstance(index.at, ll.Constant):
            fixed += index.at.constant * stride
            continue
        scaled = b.mul(index.at, i64(stride), flags=("nsw",)) if stride != 1 else index.at
        offset = scaled if offset is None else b.add(offset, scaled, flags=("nsw",))
    place = buffer.memory
    if offset is not None:
        place = b.gep(place, [offset], inbounds=True, source_etype=kind)
    if fixed:
        place = b.gep(place, [i64(fixed)], inbounds=True, source_etype=kind)
    return place, lane_stride


def _safe(ctx: Context, address: Lanes, mask: Lanes | None) -> ll.Value:
    """Return the address of one access under a uniform mask: a dummy slot where it is false."""
    place = address.x if mask is None else ctx.b.select(mask.x, address.x, ctx.dummy())
    return ctx.e.address(place)


def _store_nontemporal(
    ctx: Context, address: ll.Value, written: ll.Value, whole: int, size: int
) -> None:
    """Store a vector without reading its cache line first, if the address is aligned to it.

    A tensor's own memory is aligned, a view's need not be.
    """
    e, b = ctx.e, ctx.b
    ctx.kernel.uses_nontemporal = True
    aligned = b.icmp_unsigned("==", b.and_(address, i64(whole - 1)), i64(0))
    with b.if_else(aligned, likely=True) as (then, otherwise):
        with then:
            stored = b.store(written, e.address(address), align=whole)
            one = ctx.kernel.module.add_metadata([ll.Constant(I32, 1)])
            stored.set_metadata("nontemporal", one)
        with otherwise:
            b.store(written, e.address(address), align=size)


def _lane_addresses(
    ctx: Context, address: Lanes, mask: Lanes | None, lanes: int
) -> tuple[ll.Value, ll.Value | None]:
    addresses = to_vector(ctx.e, address, lanes)
    if mask is None:
        return addresses, None
    active = to_vector(ctx.e, mask, lanes)
    return ctx.b.select(active, addresses, ctx.e.splat(ctx.dummy(), lanes)), active


def _from_memory(ctx: Context, x: ll.Value, elem: str) -> ll.Value:
    return ctx.b.icmp_unsigned("!=", x, constant(x.type, 0)) if elem == "i1" else x


def _to_memory(ctx: Context, x: ll.Value, elem: str) -> ll.Value:
    return ctx.b.zext(x, vector_of(I8, lanes_of(x.type))) if elem == "i1" else x
