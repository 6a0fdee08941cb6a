"""Triton kernels of our own, as programs write them, for ``triton_kernels.py``: each does one thing that prices must see."""

from __future__ import annotations

import triton
import triton.language as tl

# ---------------------------------------------------------------------- marks in a profile


@triton.jit
def mark_flush(x):
    tl.store(x, 0)


@triton.jit
def mark_cold(x):
    tl.store(x, 1)


@triton.jit
def mark_warm(x):
    tl.store(x, 2)


# ---------------------------------------------------------------------- rows


@triton.jit
def softmax_rows(y, x, step, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * step + at, mask=at < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * step + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def softmax_passes(y, x, step, n, BLOCK: tl.constexpr):
    """Rows that no block holds: a running maximum and sum, then a second pass."""
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * step + at, mask=at < n, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, v)
        total = total * tl.exp(top - new) + tl.exp(v - new)
        top = new
    peak = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(top - peak), axis=0)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * step + at, mask=at < n, other=0.0).to(tl.float32)
        tl.store(y + row * step + at, tl.exp(v - peak) * scale, mask=at < n)


@triton.jit
def layer_norm(y, x, w, b, mean_out, rstd_out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / n
    d = tl.where(at < n, v - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / n + eps)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    scale = tl.load(w + at, mask=at < n, other=0.0).to(tl.float32)
    shift = tl.load(b + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row * n + at, d * rstd * scale + shift, mask=at < n)


@triton.jit
def rms_norm(y, x, w, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, axis=0) / n + eps)
    tl.store(y + row * n + at, v * r * tl.load(w + at, mask=at < n, other=0.0).to(tl.float32), mask=at < n)


@triton.jit
def rms_norm_grad(dx, dw, dy, x, w, rows, n, eps, BLOCK: tl.constexpr):
    """Each program walks over a share of the rows and keeps its part of the weight's gradient."""
    me = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    weight = tl.load(w + at, mask=at < n, other=0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    for row in range(me, rows, tl.num_programs(0)):
        v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        g = tl.load(dy + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        r = tl.rsqrt(tl.sum(v * v, axis=0) / n + eps)
        normal = v * r
        part += g * normal
        wg = g * weight
        tl.store(dx + row * n + at, (wg - normal * (tl.sum(wg * normal, axis=0) / n)) * r, mask=at < n)
    tl.store(dw + me * n + at, part, mask=at < n)


@triton.jit
def cross_entropy(loss, x, target, n, BLOCK: tl.constexpr):
    """Loss of a row, and its gradient in place of the logits."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(target + row)
    top = -float("inf")
    total = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(v, axis=0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(v - new), axis=0)
        top = new
    picked = tl.load(x + row * n + label).to(tl.float32)
    tl.store(loss + row, tl.log(total) + top - picked)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
        p = tl.exp(v - top) / total
        tl.store(x + row * n + at, tl.where(at == label, p - 1.0, p), mask=at < n)


@triton.jit
def quantize_blocks(q, scale, x, BLOCK: tl.constexpr):
    """float8 in blocks of 128 with a scale each."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at).to(tl.float32)
    s = tl.maximum(tl.max(tl.abs(v), axis=0) / 448.0, 1e-12)
    tl.store(q + at, (v / s).to(tl.float8e4nv))
    tl.store(scale + tl.program_id(0), s)


@triton.jit
def scan_rows(y, x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row * n + at, tl.cumsum(v, axis=0), mask=at < n)


@triton.jit
def sum_columns(y, x, rows, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        total += tl.load(x + r[:, None] * n + at[None, :], mask=(r[:, None] < rows) & (at[None, :] < n), other=0.0)
    tl.store(y + at, tl.sum(total, axis=0), mask=at < n)


# ---------------------------------------------------------------------- elements


@triton.jit
def add(z, x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def swiglu(y, gate, up, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, g * tl.sigmoid(g) * u, mask=inside)


@triton.jit
def dropout(y, x, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(tl.rand(seed, at) > p, v / (1 - p), 0.0), mask=at < n)


@triton.jit
def rope(x, cos, sin, heads, HALF: tl.constexpr, SEQUENCE: tl.constexpr):
    """Rotates [token, head, 2 * HALF] in place."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, HALF)
    c = tl.load(cos + token % SEQUENCE * HALF + at)
    s = tl.load(sin + token % SEQUENCE * HALF + at)
    for head in range(heads):
        base = x + (token * heads + head) * 2 * HALF
        a = tl.load(base + at).to(tl.float32)
        b = tl.load(base + HALF + at).to(tl.float32)
        tl.store(base + at, a * c - b * s)
        tl.store(base + HALF + at, b * c + a * s)


@triton.jit
def adam(w, m, v, g, n, rate, beta1, beta2, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    grad = tl.load(g + at, mask=inside).to(tl.float32)
    first = tl.load(m + at, mask=inside) * beta1 + grad * (1 - beta1)
    second = tl.load(v + at, mask=inside) * beta2 + grad * grad * (1 - beta2)
    tl.store(m + at, first, mask=inside)
    tl.store(v + at, second, mask=inside)
    weight = tl.load(w + at, mask=inside)
    tl.store(w + at, weight - rate * first / (tl.sqrt(second) + eps), mask=inside)


@triton.jit
def iterate(y, x, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Arithmetic without traffic: two multiply-adds a step."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.load(x + at, mask=at < n, other=0.0)
    a = c
    for _ in range(STEPS):
        a = a * a + c
        a = a * c + 0.5
    tl.store(y + at, a, mask=at < n)


@triton.jit
def iterate_exp(y, x, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.load(x + at, mask=at < n, other=0.0)
    a = c
    for _ in range(STEPS):
        a = tl.exp(a * c)
    tl.store(y + at, a, mask=at < n)


@triton.jit
def transpose(y, x, rows, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    v = tl.load(x + r[:, None] * columns + c[None, :], mask=inside)
    tl.store(y + c[None, :] * rows + r[:, None], v, mask=inside)


@triton.jit
def embed(y, table, index, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(index + token).to(tl.int64)
    at = tl.arange(0, BLOCK)
    tl.store(y + token * width + at, tl.load(table + row * width + at, mask=at < width), mask=at < width)


@triton.jit
def scatter_add(table, x, index, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(index + token).to(tl.int64)
    at = tl.arange(0, BLOCK)
    tl.atomic_add(table + row * width + at, tl.load(x + token * width + at, mask=at < width), mask=at < width)


@triton.jit
def convolve_short(y, x, w, length, width, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Causal depthwise convolution over [token, channel], as in state-space models."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(TAPS):
        here = token - (TAPS - 1) + tap
        v = tl.load(x + here * width + at, mask=inside & (token % length + tap >= TAPS - 1), other=0.0).to(tl.float32)
        total += v * tl.load(w + at * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + token * width + at, total * tl.sigmoid(total), mask=inside)


@triton.jit
def spread(y, x, to_row, to_column, from_row, from_column, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    """Copies rows whose elements lie apart: where they come from, or where they go."""
    at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for i in range(ROUNDS):
        row = tl.program_id(0).to(tl.int64) * ROUNDS + i
        v = tl.load(x + row * from_row + at * from_column)
        tl.store(y + row * to_row + at * to_column, v)


# ---------------------------------------------------------------------- products


@triton.jit
def _tile(me, rows, columns, GROUP: tl.constexpr):
    """Tiles in groups of GROUP rows, so that operands stay in L2."""
    group = me // (GROUP * columns)
    first = group * GROUP
    size = min(rows - first, GROUP)
    return first + me % (GROUP * columns) % size, me % (GROUP * columns) // size


@triton.jit
def matmul(
    c, a, b, m, n, k, sam, sak, sbk, sbn, scm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
):
    row, column = _tile(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    i = row * BM + tl.arange(0, BM)
    j = column * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    pa = a + (i % m)[:, None] * sam + at[None, :] * sak
    pb = b + at[:, None] * sbk + (j % n)[None, :] * sbn
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(k, BK)):
        if EVEN:
            x, y = tl.load(pa), tl.load(pb)
        else:
            x = tl.load(pa, mask=at[None, :] < k - step * BK, other=0.0)
            y = tl.load(pb, mask=at[:, None] < k - step * BK, other=0.0)
        total = tl.dot(x, y, total)
        pa += BK * sak
        pb += BK * sbk
    tl.store(c + i[:, None] * scm + j[None, :], total.to(c.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def matmul_fed(
    c, a, b, rows, columns, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SCALED: tl.constexpr, MASKED: tl.constexpr,
    EXCHANGED: tl.constexpr,
):
    """A product whose first operand is computed: cast, `SCALED` by an exponential of its place, `MASKED` by its place;
    `EXCHANGED`: it lies in memory column by column."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    at = tl.arange(0, BK)
    pa = a + i[:, None] + at[None, :] * m if EXCHANGED else a + i[:, None] * k + at[None, :]
    pb = b + at[:, None] * n + j[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    high = tl.load(rows + i)
    for start in range(0, k, BK):
        x, y = tl.load(pa).to(tl.float32), tl.load(pb)
        if SCALED:
            low = tl.load(columns + start + at)
            x *= tl.exp(tl.minimum(high[:, None] - low[None, :], 0.0))
        if MASKED:
            x = tl.where(i[:, None] >= start + at[None, :], x, 0.0)
        total += tl.dot(x.to(y.dtype), y)
        pa += BK * m if EXCHANGED else BK
        pb += BK * n
    tl.store(c + i[:, None] * n + j[None, :], total.to(c.dtype.element_ty))


@triton.jit
def matmul_then(c, a, b, rows, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SCANNED: tl.constexpr):
    """Products of one row of tiles, each followed by elements, a reduction and (`SCANNED`) a running sum."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    at = tl.arange(0, BK)
    x = tl.load(a + i[:, None] * k + at[None, :])
    high = tl.load(rows + i)
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, n, BN):
        j = start + tl.arange(0, BN)
        y = tl.load(b + j[None, :] * k + at[:, None])
        found = tl.dot(x, y)
        found *= tl.exp(tl.minimum(high[:, None] - tl.load(rows + j)[None, :], 0.0))
        found = tl.where(i[:, None] >= j[None, :], found, 0.0)
        if SCANNED:
            found = tl.cumsum(found, axis=1)
        total += tl.sum(found, axis=1)
    tl.store(c + i, total)


@triton.jit
def matmul_persistent(
    c, a, b, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        row, column = _tile(tile, rows, columns, GROUP)
        i = row * BM + tl.arange(0, BM)
        j = column * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(k, BK)):
            at = step * BK + tl.arange(0, BK)
            x = tl.load(a + i[:, None] * k + at[None, :])
            y = tl.load(b + at[:, None] * n + j[None, :])
            total = tl.dot(x, y, total)
        tl.store(c + i[:, None] * n + j[None, :], total.to(c.dtype.element_ty))


@triton.jit
def matmul_descriptors(c, a, b, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """Operands through the copy engine (TMA): descriptors made by the host."""
    row, column = _tile(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(k, BK)):
        x = a.load([row * BM, step * BK])
        y = b.load([column * BN, step * BK])
        total = tl.dot(x, y.T, total)
    c.store([row * BM, column * BN], total.to(tl.bfloat16))


@triton.jit
def matmul_split(
    c, a, b, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):
    """The inner dimension is cut among programs, which add up by atomics."""
    columns = tl.cdiv(n, BN)
    i = tl.program_id(0) // columns * BM + tl.arange(0, BM)
    j = tl.program_id(0) % columns * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.program_id(1), tl.cdiv(k, BK), SPLIT):
        at = step * BK + tl.arange(0, BK)
        total = tl.dot(tl.load(a + i[:, None] * k + at[None, :]), tl.load(b + at[:, None] * n + j[None, :]), total)
    tl.atomic_add(c + i[:, None] * n + j[None, :], total)


@triton.jit
def matmul_int4(c, a, b, scale, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Weights of four bits, two a byte along n, with a scale per column."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        at = start + tl.arange(0, BK)
        packed = tl.load(b + at[:, None] * (n // 2) + (j // 2)[None, :])
        w = ((packed >> ((j % 2) * 4)[None, :]) & 15).to(tl.bfloat16) - 8.0
        total = tl.dot(tl.load(a + i[:, None] * k + at[None, :]), w.to(tl.bfloat16), total)
    total *= tl.load(scale + j)[None, :]
    tl.store(c + i[:, None] * n + j[None, :], total.to(tl.bfloat16), mask=i[:, None] < m)


@triton.jit
def matmul_groups(c, a, b, offsets, groups, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Rows of a mixture of experts, sorted by expert: a few programs walk over all experts' tiles."""
    columns = tl.cdiv(n, BN)
    tile = tl.program_id(0)
    done = 0
    for group in range(groups):
        start = tl.load(offsets + group)
        end = tl.load(offsets + group + 1)
        count = tl.cdiv(end - start, BM) * columns
        while tile < done + count:
            local = tile - done
            i = start + local // columns * BM + tl.arange(0, BM)
            j = local % columns * BN + tl.arange(0, BN)
            total = tl.zeros((BM, BN), tl.float32)
            for step in range(0, k, BK):
                at = step + tl.arange(0, BK)
                x = tl.load(a + i[:, None] * k + at[None, :], mask=i[:, None] < end, other=0.0)
                y = tl.load(b + group.to(tl.int64) * n * k + j[None, :] * k + at[:, None])  # type: ignore[attr-defined]
                total = tl.dot(x, y, total)
            tl.store(c + i[:, None] * n + j[None, :], total.to(tl.bfloat16), mask=i[:, None] < end)
            tile += tl.num_programs(0)
        done += count


# ---------------------------------------------------------------------- attention


@triton.jit
def attention(
    o, q, k, v, scale, length, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):
    """[batch * head, token, HEAD]; softmax on the way."""
    base = tl.program_id(1).to(tl.int64) * length * HEAD
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, HEAD)
    x = tl.load(q + base + i[:, None] * HEAD + d[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    result = tl.zeros((BM, HEAD), tl.float32)
    end = min((tl.program_id(0) + 1) * BM, length) if CAUSAL else length
    for start in range(0, end, BN):
        j = start + tl.arange(0, BN)
        y = tl.load(k + base + j[None, :] * HEAD + d[:, None])
        s = tl.dot(x, y) * scale
        if CAUSAL:
            s = tl.where(i[:, None] >= j[None, :], s, -1.0e30)
        new = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        keep = tl.exp2(top - new)
        total = total * keep + tl.sum(p, axis=1)
        z = tl.load(v + base + j[:, None] * HEAD + d[None, :])
        result = tl.dot(p.to(z.dtype), z, result * keep[:, None])
        top = new
    tl.store(o + base + i[:, None] * HEAD + d[None, :], (result / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def attention_grad_kv(
    dk, dv, q, k, v, do, lse, delta, scale, length, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):
    """Gradients of keys and values of one block of keys, causal."""
    base = tl.program_id(1).to(tl.int64) * length * HEAD
    line = tl.program_id(1).to(tl.int64) * length
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, HEAD)
    key = tl.load(k + base + j[:, None] * HEAD + d[None, :])
    value = tl.load(v + base + j[:, None] * HEAD + d[None, :])
    gk = tl.zeros((BN, HEAD), tl.float32)
    gv = tl.zeros((BN, HEAD), tl.float32)
    for start in range(tl.program_id(0) * BN, length, BM):
        i = start + tl.arange(0, BM)
        x = tl.load(q + base + i[:, None] * HEAD + d[None, :])
        g = tl.load(do + base + i[:, None] * HEAD + d[None, :])
        p = tl.exp2(tl.dot(key, tl.trans(x)) * scale - tl.load(lse + line + i)[None, :])
        p = tl.where(i[None, :] >= j[:, None], p, 0.0)
        gv = tl.dot(p.to(g.dtype), g, gv)
        dp = tl.dot(value, tl.trans(g))
        ds = p * (dp - tl.load(delta + line + i)[None, :])
        gk = tl.dot(ds.to(x.dtype), x, gk)
    tl.store(dk + base + j[:, None] * HEAD + d[None, :], gk.to(dk.dtype.element_ty))
    tl.store(dv + base + j[:, None] * HEAD + d[None, :], gv.to(dv.dtype.element_ty))


@triton.jit
def attention_decode(o, q, k, v, lengths, scale, longest, HEAD: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr):
    """One new token against a cache [batch, kv head, token, HEAD]; GROUP query heads share a key head."""
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    d = tl.arange(0, HEAD)
    at = ((batch * heads + head) * GROUP + tl.arange(0, GROUP))[:, None] * HEAD + d[None, :]
    x = tl.load(q + at).to(tl.float32)
    top = tl.full((GROUP,), -float("inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    result = tl.zeros((GROUP, HEAD), tl.float32)
    base = (batch * heads + head) * longest * HEAD
    length = tl.load(lengths + batch)
    for start in range(0, length, BN):
        j = start + tl.arange(0, BN)
        y = tl.load(k + base + j[:, None] * HEAD + d[None, :], mask=j[:, None] < length, other=0.0).to(tl.float32)
        s = tl.sum(x[:, None, :] * y[None, :, :], axis=2) * scale
        s = tl.where(j[None, :] < length, s, -1.0e30)
        new = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        keep = tl.exp2(top - new)
        z = tl.load(v + base + j[:, None] * HEAD + d[None, :], mask=j[:, None] < length, other=0.0).to(tl.float32)
        result = result * keep[:, None] + tl.sum(p[:, :, None] * z[None, :, :], axis=1)
        total = total * keep + tl.sum(p, axis=1)
        top = new
    tl.store(o + at, (result / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def float8_blocks(c, a, b, sa, sb, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """DeepSeek's product: a scale per 1 x 128 of a and per 128 x 128 of b; b is n x k."""
    row, column = tl.program_id(0), tl.program_id(1)
    rows, columns, inner = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    groups = tl.cdiv(k, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(groups):
        x = tl.load(a + rows[:, None] * k + step * BK + inner[None, :])
        y = tl.load(b + columns[None, :] * k + step * BK + inner[:, None])
        of_x = tl.load(sa + rows * groups + step)
        of_y = tl.load(sb + (columns // BK) * groups + step)
        total += tl.dot(x, y) * of_x[:, None] * of_y[None, :]
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def linear_chunks(o, q, k, v, length, HEAD: tl.constexpr, CHUNK: tl.constexpr):
    """Causal linear attention of a head, chunk after chunk, with its state in registers."""
    at = tl.program_id(0).to(tl.int64) * length * HEAD
    rows, columns = tl.arange(0, CHUNK), tl.arange(0, HEAD)
    state = tl.zeros((HEAD, HEAD), dtype=tl.float32)
    for begin in range(0, length, CHUNK):
        place = at + (begin + rows)[:, None] * HEAD + columns[None, :]
        x, y, z = tl.load(q + place), tl.load(k + place), tl.load(v + place)
        scores = tl.where(rows[:, None] >= rows[None, :], tl.dot(x, tl.trans(y)), 0.0)
        found = tl.dot(scores.to(z.dtype), z) + tl.dot(x, state.to(x.dtype))
        state += tl.dot(tl.trans(y), z)
        tl.store(o + place, found.to(o.dtype.element_ty))


@triton.jit
def scan_gates(o, x, g, length, width, BLOCK: tl.constexpr):
    """A recurrence with gates, one step after the other (minimal Mamba)."""
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * length * width
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(length):
        place = at + step * width + channels
        state = tl.load(g + place).to(tl.float32) * state + tl.load(x + place).to(tl.float32)
        tl.store(o + place, state.to(o.dtype.element_ty))
