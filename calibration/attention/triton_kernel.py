# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton kernels of the GPU path; `triton_launch` launches them.

Shapes and dtypes: q and out [N, heads, head_dim]; k, v [N, kv_heads, head_dim]; caches [blocks,
block_size, kv_heads, head_dim]; all of one of bfloat16, float16, float32, the last two dimensions
contiguous; head_dim a power of two from 16, any block size. Scores, softmax and sums are float32
(float32 inputs are multiplied in full float32, not tf32); weights are rounded to the input's type
before they meet V. Only slots below a sequence's context are read.

One program of

- `write_kernel` has one row: reads a row of k, v and its slot, writes that slot of both caches;
- `decode_kernel` has a KV head and a piece of a context: reads q of the head's group and the
  piece's K and V, once; writes a partial result and its log-sum-exp, or the output itself where
  the piece is the whole context;
- `reduce_kernel` has a head and a sequence: reads its partial results, writes its output row;
- `prefill_kernel` has a KV head and a tile of query tokens: reads q of the tile, K and V up to
  the tile's last position, writes the tile's rows of the output.

The query heads of one KV head are rows of one tile (GQA): K and V are read once for all of them,
and `tl.dot` gets its 16 rows. A tile of keys looks up its block per token, so it is full even at
block size 8, and each token's head_dim is one contiguous run of 16-byte loads.

Decode moves memory: `bytes_moved(batch, …)`, at 4·group FLOPs per key element read, and partial
results of 8·group·(head_dim + 1) bytes, written and read, per 2·tokens·head_dim·itemsize of a
piece. Prefill computes: `flops(batch, …)` and the masked part of its diagonal tiles; each tile of
queries reads its keys anew, mostly from L2. A row written moves `write_bytes`: its K and V twice
and its slot.
"""

import triton
import triton.language as tl

# They vary from step to step: a compilation for each kind of value would land in a timed step.
UNSPECIALIZED = ["sequences", "table_stride"]


@triton.jit
def write_kernel(
    k, v, k_cache, v_cache, slots, k_stride, v_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        x = tl.arange(0, BLOCK)
        inside = x < WIDTH
        key = tl.load(k + row * k_stride + x, mask=inside)
        value = tl.load(v + row * v_stride + x, mask=inside)
        tl.store(k_cache + slot * WIDTH + x, key, mask=inside)
        tl.store(v_cache + slot * WIDTH + x, value, mask=inside)


@triton.jit
def _attend_tile(
    q, acc, top, total, k_cache, v_cache, table, start, last, position, scale_log2,
    KEYS: tl.constexpr, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One tile of keys into the running softmax (in powers of two): acc, top, total."""
    n = start + tl.arange(0, KEYS)
    d = tl.arange(0, HEAD_DIM)
    # Past the last position the last one is read again: finite, and masked below.
    at = tl.minimum(n, last) if MASKED else n
    block = tl.load(table + at // BLOCK_SIZE).to(tl.int64)
    slot = (block * BLOCK_SIZE + at % BLOCK_SIZE) * TOKEN_STRIDE
    k = tl.load(k_cache + slot[None, :] + d[:, None])
    v = tl.load(v_cache + slot[:, None] + d[None, :])
    if WIDEN:
        q = q.to(tl.float32)
        k = k.to(tl.float32)
    scores = tl.dot(q, k, input_precision=PRECISION) * scale_log2
    if MASKED:
        scores = tl.where(n[None, :] <= position[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_top[:, None])
    faded = tl.exp2(top - new_top)
    total = total * faded + tl.sum(weights, axis=1)
    weights = weights.to(v.dtype)
    if WIDEN:
        weights = weights.to(tl.float32)
        v = v.to(tl.float32)
    acc = tl.dot(weights, v, acc * faded[:, None], input_precision=PRECISION)
    return acc, new_top, total


@triton.jit(do_not_specialize=UNSPECIALIZED)
def decode_kernel(
    out, partial, lse, q, k_cache, v_cache, block_tables, cu_seqlens, contexts,
    piece_owner, piece_offset, scale_log2, piece, sequences, table_stride, q_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)  # the fastest axis: neighbours read the same tokens' other heads
    item = tl.program_id(1)
    s = tl.load(piece_owner + item)
    if s >= sequences:
        return
    first = tl.load(piece_offset + s)
    pieces = tl.load(piece_offset + s + 1) - first
    context = tl.load(contexts + s)
    row = tl.load(cu_seqlens + s).to(tl.int64)
    tokens = tl.load(piece)
    start = (item - first) * tokens
    end = tl.minimum(start + tokens, context)
    m = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    real = (m < GROUP)[:, None]
    at = (head * GROUP + m)[:, None] * HEAD_DIM + d[None, :]
    query = tl.load(q + row * q_stride + at, mask=real, other=0.0)
    acc = tl.zeros([ROWS, HEAD_DIM], dtype=tl.float32)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    position = tl.zeros([ROWS], dtype=tl.int32) + (end - 1)
    table = block_tables + s.to(tl.int64) * table_stride
    k_head = k_cache + head * HEAD_DIM
    v_head = v_cache + head * HEAD_DIM
    for n in range(start, end, KEYS):
        acc, top, total = _attend_tile(
            query, acc, top, total, k_head, v_head, table, n, end - 1, position, scale_log2,
            KEYS, True, BLOCK_SIZE, KV_HEADS * HEAD_DIM, HEAD_DIM, PRECISION, WIDEN,
        )  # fmt: skip
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]  # a padding row comes out zero
    if pieces == 1:
        width = KV_HEADS * GROUP * HEAD_DIM
        tl.store(out + row * width + at, acc.to(out.dtype.element_ty), mask=real)
    else:
        heads = item.to(tl.int64) * (KV_HEADS * GROUP)
        tl.store(partial + heads * HEAD_DIM + at, acc, mask=real)
        tl.store(lse + heads + head * GROUP + m, top + tl.log2(total), mask=m < GROUP)


@triton.jit
def reduce_kernel(
    out, partial, lse, cu_seqlens, piece_offset,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    s = tl.program_id(1)
    row = tl.load(cu_seqlens + s).to(tl.int64)
    rows = tl.load(cu_seqlens + s + 1) - row
    first = tl.load(piece_offset + s)
    end = tl.load(piece_offset + s + 1)
    if rows != 1 or end - first == 1:  # not a decode, or written whole
        return
    d = tl.arange(0, HEAD_DIM)
    acc = tl.zeros([HEAD_DIM], dtype=tl.float32)
    top = -float("inf")
    total = 0.0
    for start in range(first, end, PIECES):
        i = start + tl.arange(0, PIECES)
        inside = i < end
        at = i.to(tl.int64) * HEADS + head
        part = tl.load(partial + at[:, None] * HEAD_DIM + d[None, :], inside[:, None], other=0.0)
        weight = tl.load(lse + at, mask=inside, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(weight, axis=0))
        weight = tl.exp2(weight - new_top)
        faded = tl.exp2(top - new_top)
        acc = acc * faded + tl.sum(part * weight[:, None], axis=0)
        total = total * faded + tl.sum(weight, axis=0)
        top = new_top
    tl.store(out + (row * HEADS + head) * HEAD_DIM + d, (acc / total).to(out.dtype.element_ty))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def prefill_kernel(
    out, q, k_cache, v_cache, block_tables, cu_seqlens, contexts,
    tile_owner, tile_offset, scale_log2, sequences, table_stride, q_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    # A sequence's last tiles attend to the most: they go first, so that none is left for last.
    item = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    s = tl.load(tile_owner + item)
    if s >= sequences:
        return
    TOKENS: tl.constexpr = ROWS // GROUP
    start = (item - tl.load(tile_offset + s)) * TOKENS
    row = tl.load(cu_seqlens + s)
    rows = tl.load(cu_seqlens + s + 1) - row
    context = tl.load(contexts + s)
    cached = context - rows
    m = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM)
    token = start + m // GROUP
    real = ((token < rows) & (m < TOKENS * GROUP))[:, None]
    at = (head * GROUP + m % GROUP)[:, None] * HEAD_DIM + d[None, :]
    packed = (row + token).to(tl.int64)[:, None]
    query = tl.load(q + packed * q_stride + at, mask=real, other=0.0)
    acc = tl.zeros([ROWS, HEAD_DIM], dtype=tl.float32)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    position = cached + token
    table = block_tables + s.to(tl.int64) * table_stride
    k_head = k_cache + head * HEAD_DIM
    v_head = v_cache + head * HEAD_DIM
    end = tl.minimum(cached + start + TOKENS, context)
    unmasked = (cached + start + 1) // KEYS * KEYS  # tiles that every row sees in full
    for n in range(0, unmasked, KEYS):
        acc, top, total = _attend_tile(
            query, acc, top, total, k_head, v_head, table, n, 0, position, scale_log2,
            KEYS, False, BLOCK_SIZE, KV_HEADS * HEAD_DIM, HEAD_DIM, PRECISION, WIDEN,
        )  # fmt: skip
    for n in range(unmasked, end, KEYS):
        acc, top, total = _attend_tile(
            query, acc, top, total, k_head, v_head, table, n, context - 1, position, scale_log2,
            KEYS, True, BLOCK_SIZE, KV_HEADS * HEAD_DIM, HEAD_DIM, PRECISION, WIDEN,
        )  # fmt: skip
    acc = acc / total[:, None]
    width = KV_HEADS * GROUP * HEAD_DIM
    tl.store(out + packed * width + at, acc.to(out.dtype.element_ty), mask=real)
