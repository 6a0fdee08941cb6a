"""Models of linear attention with flash-linear-attention's Triton kernels: `gla`, `retnet`, `deltanet`, `rwkv`, `forgetting`."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.programs.steps import Step, decoder, fused_adamw, hidden, language, main


def gla() -> Step:
    """Gated linear attention of 6 layers: chunked kernels, the gated norm, the fused loss."""
    from fla.modules import FusedLinearCrossEntropyLoss, FusedRMSNormGated, RMSNorm
    from fla.ops import chunk_gla

    width, heads, words, batch, length = 2048, 8, 32000, 8, 2048

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2, self.n3 = RMSNorm(width), RMSNorm(width), FusedRMSNormGated(width // heads)
            self.qk, self.vg = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
            self.low, self.decay = nn.Linear(width, 16, bias=False), nn.Linear(16, width // 2)
            self.out = nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 8192, bias=False), nn.Linear(4096, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.n1(x)
            (q, k), (v, gate) = self.qk(h).chunk(2, -1), self.vg(h).chunk(2, -1)
            decay = F.logsigmoid(self.decay(self.low(h)).float()) / 16
            q, k, v, decay, gate = (t.reshape(batch, length, heads, -1) for t in (q, k, v, decay, gate))
            r = self.n3(chunk_gla(q, k, v, decay)[0], gate).reshape(batch, length, width)
            x = x + self.out(r)
            a, b = self.up(self.n2(x)).chunk(2, -1)
            return x + self.down(F.silu(a) * b)

    torch.set_default_device("cuda")
    model = decoder(Layer, 6, width, words)
    loss_of = FusedLinearCrossEntropyLoss()
    ids = torch.randint(0, words, (batch, length))

    optimizer, head = fused_adamw(model), model[1]

    def step() -> None:
        x = hidden(model, ids)
        loss_of(x.view(-1, width), ids.view(-1), head.weight, head.bias).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def retnet() -> Step:
    """A RetNet of 6 layers: retention, forward and backward."""
    from fla.ops import chunk_retention

    width, heads, words, batch, length = 2048, 16, 32000, 4, 2048

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2, self.n3 = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(width // heads)
            self.qkvg, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v, g = self.qkvg(self.n1(x)).chunk(4, -1)
            q, k, v = (t.reshape(batch, length, heads, -1) for t in (q, k, v))
            r = self.n3(chunk_retention(q, k, v)[0]).reshape(batch, length, width)
            x = x + self.out(r * F.silu(g))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    return language(Layer, 6, width, words, (batch, length))


def deltanet() -> Step:
    """Prefill of a gated DeltaNet of 8 layers, without gradients: the chunked delta rule."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    width, heads, words, batch, length = 2048, 16, 32000, 8, 4096

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2, self.n3 = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(width // heads)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.gates = nn.Linear(width, 2 * heads, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.n1(x)
            q, k, v = (t.reshape(batch, length, heads, -1) for t in self.qkv(h).chunk(3, -1))
            decay, beta = self.gates(h).chunk(2, -1)
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            o = chunk_gated_delta_rule(q, k, v, F.logsigmoid(decay.float()), beta.sigmoid())[0]
            x = x + self.out(self.n3(o).reshape(batch, length, width))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    torch.set_default_device("cuda")
    model = decoder(Layer, 8, width, words)
    ids, head = torch.randint(0, words, (batch, length)), model[1]

    @torch.no_grad()
    def step() -> None:
        head(hidden(model, ids)[:, -1]).argmax(-1)

    return step


def rwkv() -> Step:
    """An RWKV-7 of 6 layers: the generalised delta rule, forward and backward."""
    from fla.ops.rwkv7 import chunk_rwkv7

    width, heads, words, batch, length = 1536, 24, 32000, 4, 2048

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.rkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.low, self.high = nn.Linear(width, 128, bias=False), nn.Linear(128, 2 * width)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
            self.mix = nn.Parameter(torch.rand(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.one(x)
            h = h + (F.pad(h[:, :-1], (0, 0, 1, 0)) - h) * self.mix
            r, k, v = (t.reshape(batch, length, heads, -1) for t in self.rkv(h).chunk(3, -1))
            w, a = (t.reshape(batch, length, heads, -1) for t in self.high(torch.tanh(self.low(h))).chunk(2, -1))
            w, a = -0.606531 * torch.sigmoid(w.float()), torch.sigmoid(a)
            n = F.normalize(k, dim=-1)
            o, _ = chunk_rwkv7(r, w.to(r.dtype), k * a, v, -n, n * a)
            x = x + self.out(o.reshape(x.shape))
            return x + self.down(F.relu(self.up(self.two(x))).square())

    return language(Layer, 6, width, words, (batch, length))


def forgetting() -> Step:
    """A transformer of 6 layers with forgetting attention: parallel kernels, forward and backward."""
    from fla.ops import parallel_forgetting_attn

    width, heads, words, batch, length = 2048, 16, 32000, 2, 4096

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.forget = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, heads)
            self.out = nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.n1(x)
            q, k, v = (t.reshape(batch, length, heads, -1) for t in self.qkv(h).chunk(3, -1))
            a = parallel_forgetting_attn(q, k, v, F.logsigmoid(self.forget(h).float()))
            x = x + self.out(a.reshape(batch, length, width))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    return language(Layer, 6, width, words, (batch, length))


if __name__ == "__main__":
    main(gla, retnet, deltanet, rwkv, forgetting)
