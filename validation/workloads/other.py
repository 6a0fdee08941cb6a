"""Speech, point clouds, sequences, tables, recommendation, graphs, physics."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.registry import GPU, Step, case, classes, trained


@case()
def whisper() -> Step:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )
    model = WhisperForConditionalGeneration(config).train()
    sound, labels = torch.randn(16, 80, 3000), torch.randint(5, 30000, (16, 200))
    return trained(model, lambda: model(input_features=sound, labels=labels).loss, torch.bfloat16)


@case()
def wav2vec2_ctc() -> Step:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0, ctc_loss_reduction="mean", vocab_size=32)
    model = Wav2Vec2ForCTC(config).train()
    sound, labels = torch.randn(8, 160000), torch.randint(1, 32, (8, 80))
    return trained(model, lambda: model(input_values=sound, labels=labels).loss, torch.bfloat16)


@case()
def speech_lstm() -> Step:
    """DeepSpeech 2's kind: convolutions over spectrograms, bidirectional LSTMs, CTC, clipping."""
    front = nn.Sequential(nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, True),
                          nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, True))
    rnn, head = nn.LSTM(32 * 41, 1024, 4, bidirectional=True), nn.Linear(2048, 29)
    model = nn.ModuleList([front, rnn, head])
    sound, words = torch.randn(32, 1, 161, 800), torch.randint(1, 29, (32, 100))
    lengths = torch.full((32,), 400, dtype=torch.int32), torch.full((32,), 100, dtype=torch.int32)

    def loss() -> torch.Tensor:
        x = front(sound)
        x = head(rnn(x.flatten(1, 2).permute(2, 0, 1))[0]).float().log_softmax(-1)
        return F.ctc_loss(x, words, *lengths, zero_infinity=True)

    return trained(model, loss, torch.float16, torch.optim.SGD(model.parameters(), 1e-4, 0.9), clip=400.0)


@case()
def point_cloud() -> Step:
    """DGCNN: nearest neighbours by cdist and topk, gathered edges, 1x1 convolutions, maxima."""

    def layer(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))

    layers = nn.ModuleList([layer(3, 64), layer(64, 64), layer(64, 128), layer(128, 256)])
    tail = nn.Sequential(nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))
    model = nn.ModuleList([layers, tail, nn.Linear(1024, 40)])
    points, labels = torch.randn(32, 3, 1024), torch.randint(0, 40, (32,))

    def edges(x: torch.Tensor) -> torch.Tensor:
        b, c, n = x.shape
        flat = x.transpose(1, 2)
        near = torch.cdist(flat, flat).topk(20, largest=False).indices
        y = flat.gather(1, near.flatten(1)[..., None].expand(-1, -1, c)).view(b, n, 20, c)
        here = flat[:, :, None, :].expand(-1, -1, 20, -1)
        return torch.cat((y - here, here), -1).permute(0, 3, 1, 2).contiguous()

    def loss() -> torch.Tensor:
        x, kept = points, []
        for part in layers:
            x = part(edges(x)).amax(-1)
            kept.append(x)
        return F.cross_entropy(model[2](tail(torch.cat(kept, 1)).amax(-1)), labels, label_smoothing=0.2)

    return trained(model, loss, optimizer=torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4))


@case()
def tcn() -> Step:
    """Dilated causal convolutions over sequences, float32 with TF32."""

    class Block(nn.Module):
        def __init__(self, dilation: int) -> None:
            super().__init__()
            self.pad = 2 * dilation
            self.a, self.b = (nn.Conv1d(256, 256, 3, dilation=dilation) for _ in range(2))
            self.drop = nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.drop(F.relu(self.a(F.pad(x, (self.pad, 0)))))
            return x + self.drop(F.relu(self.b(F.pad(y, (self.pad, 0)))))

    model = nn.Sequential(nn.Conv1d(64, 256, 1), *(Block(2**i) for i in range(6)), nn.Conv1d(256, 10, 1))
    x, y = torch.randn(32, 64, 4096), torch.randint(0, 10, (32, 4096))
    return trained(model, lambda: F.cross_entropy(model(x), y))


@case()
def speech_conformer() -> Step:
    """Subsampling, conformer blocks (depthwise 1-D convolutions, batch norm, GLU), CTC; bfloat16."""
    width = 384

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
            self.f1, self.f2 = (nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)) for _ in range(2))
            self.att = nn.MultiheadAttention(width, 6, dropout=0.1, batch_first=True)
            self.up, self.depth, self.bn, self.down = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 31, padding=15, groups=width), nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 0.5 * self.f1(self.n[0](x))
            h = self.n[1](x)
            x = x + self.att(h, h, h, need_weights=False)[0]
            h = F.glu(self.up(self.n[2](x).transpose(1, 2)), 1)
            x = x + self.down(F.silu(self.bn(self.depth(h)))).transpose(1, 2)
            return self.n[4](x + 0.5 * self.f2(self.n[3](x)))

    front = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())
    join, head = nn.Linear(width * 19, width), nn.Linear(width, 128)
    blocks = nn.ModuleList(Block() for _ in range(8))
    model = nn.ModuleList([front, join, blocks, head])
    sound, words = torch.randn(16, 1, 1600, 80), torch.randint(1, 128, (16, 60))
    lengths = torch.full((16,), 399, dtype=torch.int32), torch.full((16,), 60, dtype=torch.int32)

    def loss() -> torch.Tensor:
        x = join(front(sound).transpose(1, 2).flatten(2))
        for part in blocks:
            x = part(x)
        return F.ctc_loss(head(x).float().log_softmax(-1).transpose(0, 1), words, *lengths)

    return trained(model, loss, torch.bfloat16)


@case()
def set_transformer() -> Step:
    """Points that attend to points, narrow layer norms, gathers of neighbours."""
    width = 128

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2, self.qkv, self.out = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.n1(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.mlp(self.n2(x))

    blocks = nn.ModuleList(Block() for _ in range(6))
    model = nn.ModuleList([nn.Linear(3, width), blocks, nn.Linear(width, 40)])
    points, labels = torch.randn(32, 2048, 3), torch.randint(0, 40, (32,))

    def loss() -> torch.Tensor:
        x = model[0](points)
        for part in blocks:
            x = part(x)
        near = torch.cdist(points, points[:, :512]).topk(16, largest=False).indices[:, :256]
        groups = x.gather(1, near.flatten(1)[..., None].expand(-1, -1, width)).view(32, 256, 16, width)
        return F.cross_entropy(model[2](groups.amax(2).mean(1)).float(), labels)

    return trained(model, loss, torch.bfloat16)


@case()
def tabular_transformer() -> Step:
    """40 features as tokens of 192, batch 4,096."""
    layer = nn.TransformerEncoderLayer(192, 8, 256, 0.1, "gelu", batch_first=True, norm_first=True)
    body, head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(192, 2)
    both = nn.ModuleList([body, head])
    tokens = nn.Parameter(torch.randn(40, 192))
    both.register_parameter("tokens", tokens)
    x, y = torch.randn(4096, 40, 1), torch.randint(0, 2, (4096,))
    return trained(both, lambda: F.cross_entropy(head(body(x * tokens)[:, 0]).float(), y), torch.bfloat16)


@case()
def forecaster() -> Step:
    """An LSTM over 168 hours next to 1-D convolutions, float32."""
    conv = nn.Sequential(nn.Conv1d(24, 96, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(96))
    rnn, head = nn.LSTM(96, 256, 2, batch_first=True), nn.Linear(256, 24)
    both = nn.ModuleList([conv, rnn, head])
    x, y = torch.randn(1024, 24, 168), torch.randn(1024, 24)
    return trained(both, lambda: F.mse_loss(head(rnn(conv(x).transpose(1, 2))[0][:, -1]), y))


@case(default_device=False)
def recommender() -> Step:
    """26 bags of embeddings of 400,000 x 64, pairwise products, two towers; batch 16,384, float32 with TF32, Adagrad."""
    rows, width, batch = 400_000, 64, 16_384
    bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(26)).to(GPU)
    below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)).to(GPU)
    above = nn.Sequential(nn.Linear(351 + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)).to(GPU)
    whole = nn.ModuleList([bags, below, above])
    dense, y = torch.randn(batch, 13, device=GPU), torch.rand(batch, device=GPU).round()
    ids = torch.randint(0, rows, (26, batch * 3), device=GPU)
    offsets = torch.arange(0, batch * 3, 3, device=GPU)
    i, j = torch.tril_indices(27, 27, -1, device=GPU)

    def loss() -> torch.Tensor:
        first = below(dense)
        looked = [bag(ids[n], offsets) for n, bag in enumerate(bags)]
        z = torch.stack([first, *looked], 1)
        pairs = torch.bmm(z, z.transpose(1, 2))[:, i, j]
        return F.binary_cross_entropy_with_logits(above(torch.cat([first, pairs], 1)).squeeze(1), y)

    return trained(whole, loss, None, torch.optim.SGD(whole.parameters(), 0.01))


@case(default_device=False)
def graph_convolutions() -> Step:
    """Three layers of 256 over 169,343 nodes and 2.3 million edges, the whole graph at once, float32 with TF32."""
    nodes, edges = 169_343, 2_332_486
    a, b = (torch.randint(0, nodes, (edges,), device=GPU) for _ in "ab")
    x, y = torch.randn(nodes, 128, device=GPU), classes(nodes, 40)
    layers = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in ((128, 256), (256, 256), (256, 40))).to(GPU)
    norms = nn.ModuleList(nn.BatchNorm1d(256) for _ in range(2)).to(GPU)
    weight = torch.rand(edges, 1, device=GPU)

    def loss() -> torch.Tensor:
        h = x
        for n, layer in enumerate(layers):
            h = layer(h)
            h = torch.zeros_like(h).index_add_(0, b, h.index_select(0, a) * weight)
            if n < 2:
                h = F.dropout(F.relu(norms[n](h)), 0.5)
        return F.cross_entropy(h, y)

    return trained(nn.ModuleList([layers, norms]), loss)


@case(default_device=False)
def vocoder() -> Step:
    """HiFi-GAN's generator against its discriminators of periods, 8,192 samples, batch 64, float32 with TF32."""
    from torch.nn.utils.parametrizations import weight_norm

    class Residual(nn.Module):
        def __init__(self, c: int, k: int) -> None:
            super().__init__()
            self.wide = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, dilation=d, padding=(k - 1) * d // 2)) for d in (1, 3, 5))
            self.plain = nn.ModuleList(weight_norm(nn.Conv1d(c, c, k, padding=k // 2)) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for a, b in zip(self.wide, self.plain, strict=True):
                x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
            return x

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begin, c = weight_norm(nn.Conv1d(80, 512, 7, padding=3)), 512
            self.up, self.blocks = nn.ModuleList(), nn.ModuleList()
            for rate, k in ((8, 16), (8, 16), (2, 4), (2, 4)):
                self.up.append(weight_norm(nn.ConvTranspose1d(c, c // 2, k, rate, (k - rate) // 2)))
                c //= 2
                self.blocks.append(nn.ModuleList(Residual(c, n) for n in (3, 7, 11)))
            self.end = weight_norm(nn.Conv1d(c, 1, 7, padding=3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.begin(x)
            for up, blocks in zip(self.up, cast("Iterable[nn.ModuleList]", self.blocks), strict=True):
                x = up(F.leaky_relu(x, 0.1))
                x = torch.as_tensor(sum(block(x) for block in blocks)) / 3
            return torch.tanh(self.end(F.leaky_relu(x)))

    class Period(nn.Module):
        def __init__(self, period: int) -> None:
            super().__init__()
            widths = (1, 32, 128, 512, 1024)
            self.period = period
            self.layers = nn.ModuleList(
                weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0))) for i, o in itertools.pairwise(widths)
            )
            self.end = weight_norm(nn.Conv2d(1024, 1, (3, 1), 1, (1, 0)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect")
            x = x.view(x.shape[0], 1, -1, self.period)
            for layer in self.layers:
                x = F.leaky_relu(layer(x), 0.1)
            return self.end(x)

    g, d = Generator().to(GPU), nn.ModuleList(Period(p) for p in (2, 3, 5, 7, 11)).to(GPU)
    mel, real = torch.randn(64, 80, 32, device=GPU), torch.randn(64, 1, 8192, device=GPU)
    of_g, of_d = (torch.optim.AdamW(m.parameters(), 2e-4, betas=(0.8, 0.99)) for m in (g, d))

    def step() -> None:
        fake = g(mel)
        of_d.zero_grad()
        sum(((1 - part(real)) ** 2).mean() + (part(fake.detach()) ** 2).mean() for part in d).backward()
        of_d.step()
        of_g.zero_grad()
        (sum(((1 - part(fake)) ** 2).mean() for part in d) + F.l1_loss(fake, real)).backward()
        of_g.step()

    return step


@case(default_device=False)
def fourier_operator() -> Step:
    """Four Fourier layers of 64 channels and 24 modes on 128 x 128 points, batch 32, float32."""

    class Layer(nn.Module):
        def __init__(self, width: int, modes: int) -> None:
            super().__init__()
            self.modes = modes
            self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, dtype=torch.cfloat) / width)
            self.local = nn.Conv2d(width, width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            m, spectrum = self.modes, torch.fft.rfft2(x)
            out = torch.zeros_like(spectrum)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight[0])
            out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.weight[1])
            return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))

    model = nn.Sequential(nn.Conv2d(3, 64, 1), *(Layer(64, 24) for _ in range(4)), nn.Conv2d(64, 1, 1)).to(GPU)
    x, y = torch.randn(32, 3, 128, 128, device=GPU), torch.randn(32, 1, 128, 128, device=GPU)
    return trained(model, lambda: F.mse_loss(model(x), y), None, torch.optim.Adam(model.parameters(), 1e-3))


@case(default_device=False)
def gaussian_process() -> Step:
    """The exact marginal likelihood of 6,000 points by Cholesky, float32."""
    x, y = torch.randn(6000, 8, device=GPU), torch.randn(6000, 1, device=GPU)
    scale, noise = (nn.Parameter(torch.ones(n, device=GPU)) for n in (8, 1))
    both = nn.ParameterList([scale, noise])

    def loss() -> torch.Tensor:
        z = x / scale
        k = torch.exp(-0.5 * torch.cdist(z, z).square()) + (noise.square() + 0.1) * torch.eye(6000, device=GPU)
        factor = torch.linalg.cholesky(k)
        fit = torch.cholesky_solve(y, factor)
        return (y * fit).sum() / 2 + factor.diagonal().log().sum()

    return trained(both, loss, None, torch.optim.Adam(both.parameters(), 1e-2))
