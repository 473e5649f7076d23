"""Reading and writing memory at one point of a loop nest.

What the access becomes follows from the address lanes: one scalar access (uniform), one contiguous
vector (affine by the element's size), or one access per lane. A lane that is masked off never
touches its address: it is sent to a dummy slot instead, which needs no branch.
"""

from __future__ import annotations

from llvmlite import ir as ll

from tritune.cpu.lower.context import Buffer, Context, Point
from tritune.cpu.lower.emit.lanes import Lanes, to_vector, vector
from tritune.cpu.lower.llvm import (
    I32,
    constant,
    i64,
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
        other = Lanes(constant(scalar_type(elem), _zero(scalar_type(elem))))
    if address.uniform and (mask is None or mask.uniform):
        read = _load_one(ctx, address.x, mask, kind)
        if mask is None or other is None:
            return Lanes(_from_memory(ctx, read, elem))
        if other.uniform:
            return Lanes(b.select(mask.x, _from_memory(ctx, read, elem), other.x))
        read_all = e.splat(_from_memory(ctx, read, elem), lanes)
        return vector(b.select(e.splat(mask.x, lanes), read_all, to_vector(e, other, lanes)))
    wide = vector_of(kind, lanes)
    fallback = to_vector(e, other, lanes) if other is not None else None
    if isinstance(address.step, int) and address.step == size:
        if mask is None or mask.uniform:
            read = _load_one(ctx, address.x, mask, wide)
            read = _from_memory(ctx, read, elem)
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
        places = _places(ctx, address.x, address.step, lanes)
    else:
        addresses, active = _lane_addresses(ctx, address, mask, lanes)
        places = [e.extract(addresses, i) for i in range(lanes)]
    scalars = [b.load(e.address(place), typ=kind, align=size) for place in places]
    read = _from_memory(ctx, e.build_vector(scalars), elem)
    if active is not None:
        read = b.select(active, read, fallback)
    return vector(read)


#: Bytes of a vector that can be stored past the caches.
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
    if lanes == 1:
        _store_one(ctx, address.x, _to_memory(ctx, value.x, elem), mask, size)
        return
    if isinstance(address.step, int) and address.step == size:
        written = _to_memory(ctx, to_vector(e, value, lanes), elem)
        if nontemporal and mask is None:
            _store_nontemporal(ctx, address.x, written, size)
            return
        if mask is None or mask.uniform:
            _store_one(ctx, address.x, written, mask, size)
            return
        active = to_vector(e, mask, lanes)
        args = [written, e.address(address.x), ll.Constant(I32, size), active]
        e.intrinsic("masked.store", ll.VoidType(), args, [written.type, args[1].type])
        return
    written = to_vector(e, value, lanes)
    addresses, _ = _lane_addresses(ctx, address, mask, lanes)
    for i in range(lanes):
        scalar = _to_memory(ctx, e.extract(written, i), elem)
        b.store(scalar, e.address(e.extract(addresses, i)), align=size)


def load_buffer(ctx: Context, buffer: Buffer, point: Point, lanes: int) -> Lanes:
    e, b = ctx.e, ctx.b
    kind, size = memory_type(buffer.elem), memory_bytes(buffer.elem)
    place, stride = buffer_address(ctx, buffer, point)
    if stride == 0 or lanes == 1:
        return Lanes(_from_memory(ctx, b.load(place, typ=kind, align=size), buffer.elem))
    if stride == 1:
        return vector(
            _from_memory(ctx, b.load(place, typ=vector_of(kind, lanes), align=size), buffer.elem)
        )
    scalars = []
    for i in range(lanes):
        at = b.gep(place, [i64(i * stride)], inbounds=True, source_etype=kind)
        scalars.append(b.load(at, typ=kind, align=size))
    return vector(_from_memory(ctx, e.build_vector(scalars), buffer.elem))


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
    """The address of the point's first lane, and the stride between lanes in elements."""
    b = ctx.b
    offset: ll.Value = i64(0)
    fixed, lane_stride = 0, 0
    for index, stride in zip(point, buffer.strides, strict=True):
        if index.lane:
            lane_stride = stride
        if isinstance(index.at, ll.Constant):
            fixed += index.at.constant * stride
        else:
            scaled = b.mul(index.at, i64(stride), flags=("nsw",)) if stride != 1 else index.at
            offset = (
                scaled if isinstance(offset, ll.Constant) else b.add(offset, scaled, flags=("nsw",))
            )
    place = buffer.memory
    if not isinstance(offset, ll.Constant):
        place = b.gep(place, [offset], inbounds=True, source_etype=memory_type(buffer.elem))
    if fixed:
        place = b.gep(place, [i64(fixed)], inbounds=True, source_etype=memory_type(buffer.elem))
    return place, lane_stride


def _load_one(ctx: Context, address: ll.Value, mask: Lanes | None, kind: ll.Type) -> ll.Value:
    """One access, scalar or vector, under a mask that is the same for all of it."""
    if mask is not None:
        address = ctx.b.select(mask.x, address, ctx.dummy())
    return ctx.b.load(ctx.e.address(address), typ=kind, align=_align(kind))


def _store_one(
    ctx: Context, address: ll.Value, written: ll.Value, mask: Lanes | None, size: int
) -> None:
    if mask is not None:
        address = ctx.b.select(mask.x, address, ctx.dummy())
    ctx.b.store(written, ctx.e.address(address), align=size)


def _store_nontemporal(ctx: Context, address: ll.Value, written: ll.Value, size: int) -> None:
    """Store a vector without a place in the caches, for which its line would be read first.

    That takes a whole and aligned vector: a tensor's own memory has them, a view need not.
    """
    e, b = ctx.e, ctx.b
    whole = written.type.count * size
    if whole < _MIN_NONTEMPORAL_BYTES:
        _store_one(ctx, address, written, None, size)
        return
    ctx.kernel.uses_nontemporal = True
    aligned = b.icmp_unsigned("==", b.and_(address, i64(whole - 1)), i64(0))
    with b.if_else(aligned, likely=True) as (then, otherwise):
        with then:
            stored = b.store(written, e.address(address), align=whole)
            one = ctx.kernel.module.add_metadata([ll.Constant(I32, 1)])
            stored.set_metadata("nontemporal", one)
        with otherwise:
            b.store(written, e.address(address), align=size)


def _align(kind: ll.Type) -> int:
    element = kind.element if isinstance(kind, ll.VectorType) else kind
    return {ll.HalfType(): 2, ll.FloatType(): 4, ll.DoubleType(): 8}.get(
        element
    ) or element.width // 8


def _places(ctx: Context, first: ll.Value, step: ll.Value, lanes: int) -> list[ll.Value]:
    """Addresses a step apart, each made of the one before: from a vector of them, each would have
    to be moved to where addresses are taken from.
    """
    places = [first]
    while len(places) < lanes:
        places.append(ctx.b.add(places[-1], step))
    return places


def _lane_addresses(
    ctx: Context, address: Lanes, mask: Lanes | None, lanes: int
) -> tuple[ll.Value, ll.Value | None]:
    addresses = to_vector(ctx.e, address, lanes)
    if mask is None:
        return addresses, None
    active = to_vector(ctx.e, mask, lanes)
    return ctx.b.select(active, addresses, ctx.e.splat(ctx.dummy(), lanes)), active


def _zero(kind: ll.Type) -> int | float:
    return 0 if isinstance(kind, ll.IntType) else 0.0


def _from_memory(ctx: Context, x: ll.Value, elem: str) -> ll.Value:
    if elem != "i1":
        return x
    return ctx.b.icmp_unsigned("!=", x, constant(x.type, 0))


def _to_memory(ctx: Context, x: ll.Value, elem: str) -> ll.Value:
    if elem != "i1":
        return x
    lanes = x.type.count if isinstance(x.type, ll.VectorType) else 1
    return ctx.b.zext(x, vector_of(memory_type("i1"), lanes))
