"""Stand-ins for ``causal_conv1d_cuda`` of causal-conv1d and ``selective_scan_cuda`` of mamba-ssm.

The Python half of causal-conv1d has operators around these functions; the scan's are operators here. All are priced by
the bytes of their tensors. Shapes and checks are those of causal_conv1d.cpp (1.7.0) and selective_scan.cpp (2.3.2).
"""

from __future__ import annotations

from typing import Any

from phantora.rank.standins.kernels import check, launch, operator

CHUNK = 2048  # steps of a scan that a block takes at a time
WIDTHS = (2, 3, 4)


def _convolution(x: Any, weight: Any) -> None:
    import torch

    known = (torch.float32, torch.float16, torch.bfloat16)
    check(x.dtype in known and weight.dtype in known, "input_type must be float, half or bfloat16")
    check(x.is_cuda and weight.is_cuda, "x must be on CUDA")
    check(weight.shape[1] in WIDTHS, "causal_conv1d only supports width between 2 and 4")


def causal_conv1d_fwd(
    x: Any, weight: Any, bias: Any, seq_idx: Any, initial_states: Any, out: Any, final_states: Any, silu: bool
) -> None:
    """`x` is (batch, channels, steps), `weight` (channels, width)."""
    _convolution(x, weight)
    check(tuple(weight.shape[:1]) == tuple(x.shape[1:2]), "weight must have shape (dim, width)")
    launch("causal_conv1d_fwd_kernel", x.shape[0] * x.shape[1])


def causal_conv1d_bwd(
    x: Any, weight: Any, bias: Any, dout: Any, seq_idx: Any, initial_states: Any, dfinal_states: Any, dx: Any,
    dweight: Any, dbias: Any, dinitial_states: Any, silu: bool,
) -> None:  # fmt: skip
    """Gradients go into `dx`, `dweight` and `dbias`."""
    _convolution(x, weight)
    launch("causal_conv1d_bwd_kernel", x.shape[0] * x.shape[1])


def causal_conv1d_update(
    x: Any, conv_state: Any, weight: Any, bias: Any, out: Any, silu: bool, lengths: Any, indices: Any
) -> None:
    """One step of a sequence."""
    _convolution(x, weight)
    launch("causal_conv1d_update_kernel", x.shape[0] * -(-x.shape[1] // 64), 64)


def _scan(u: Any, delta: Any, a: Any) -> tuple[int, int, int, int]:
    """Batch, channels, steps, states."""
    import torch

    check(u.dtype in (torch.float32, torch.float16, torch.bfloat16), "selective_scan: input type is not supported")
    check(u.is_cuda and delta.is_cuda and a.is_cuda, "u must be on CUDA")
    check(delta.shape == u.shape, "delta must have shape (batch_size, dim, seqlen)")
    batch, channels, steps = u.shape
    check(tuple(a.shape)[:1] == (channels,), "A must have shape (dim, dstate)")
    check(a.shape[1] <= 256, "selective_scan only supports state dimension <= 256")
    return batch, channels, steps, a.shape[1]


def scan_fwd(u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, delta_bias: Any, softplus: bool) -> list[Any]:
    """Returns the result, the states at the ends of chunks, and the gated result if there is a gate."""
    import torch

    batch, channels, steps, states = _scan(u, delta, a)
    out = torch.empty_like(delta)
    gated = [torch.empty_like(z)] if z is not None else []
    ends = torch.empty((batch, channels, -(-steps // CHUNK), 2 * states), dtype=a.dtype, device=u.device)
    made = [out, ends, *gated]
    given = [u, delta, a, b, c, d, z, delta_bias, softplus]
    name = "mamba_ssm::selective_scan_fwd"
    operator(name, given, lambda: launch("selective_scan_fwd_kernel", batch * channels))
    return made


def scan_bwd(
    u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, delta_bias: Any, dout: Any, ends: Any, out: Any,
    dz: Any, softplus: bool, again: bool,
) -> list[Any]:  # fmt: skip
    """Returns gradients in the order of the arguments, that of the gate, and the gated result if it is made again."""
    import torch

    batch, channels, _, _ = _scan(u, delta, a)

    def zeros(tensor: Any, kind: Any = None) -> Any:
        return None if tensor is None else torch.zeros_like(tensor, dtype=kind or tensor.dtype)

    wide = [torch.float32 if t.dim() > 2 else t.dtype for t in (b, c)]  # of inputs that change with the steps
    made = [torch.empty_like(u), torch.empty_like(delta), zeros(a), zeros(b, wide[0]), zeros(c, wide[1]), zeros(d)]
    made.append(zeros(delta_bias))
    if z is not None:
        made += [torch.empty_like(z) if dz is None else dz, *([torch.empty_like(out)] if again else [])]
    given = [u, delta, a, b, c, d, z, delta_bias, dout, softplus]
    name = "mamba_ssm::selective_scan_bwd"
    operator(name, given, lambda: launch("selective_scan_bwd_kernel", batch * channels))
    made[3], made[4] = made[3].to(b.dtype), made[4].to(c.dtype)
    return made
