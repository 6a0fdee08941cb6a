"""Kinds of model that no earlier set has: mobile and windowed vision, detection, recommendation, graphs, speech synthesis, latent
diffusion, preferences, Fourier operators, Gaussian processes. Tensors are put on the GPU by name, as most people do: there is no default
device. Used as varied.py is; needs diffusers as well.

    python -m validation.workloads.varied_fourth OUT.jsonl [NAME ...]
"""

from __future__ import annotations

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads import varied
from validation.workloads.varied import Step, trained

varied.CASES.clear()
case = varied.case
GPU = torch.device("cuda")


def images(batch: int, side: int, last: bool = True) -> torch.Tensor:
    x = torch.randn(batch, 3, side, side, device=GPU)
    return x.contiguous(memory_format=torch.channels_last) if last else x


def classes(batch: int, count: int = 1000) -> torch.Tensor:
    return torch.randint(0, count, (batch,), device=GPU)


def classifier(model: nn.Module, batch: int, side: int, last: bool = True) -> Step:
    model = model.to(GPU).train()
    model = model.to(memory_format=torch.channels_last) if last else model
    x, y = images(batch, side, last), classes(batch)
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return trained(model, lambda: F.cross_entropy(model(x).float(), y, label_smoothing=0.1), torch.bfloat16, sgd)


@case
def mobilenet() -> Step:
    from torchvision.models import mobilenet_v3_large

    return classifier(mobilenet_v3_large(), 512, 224)


@case
def efficientnet_v2() -> Step:
    from torchvision.models import efficientnet_v2_s

    return classifier(efficientnet_v2_s(), 128, 300)


@case
def swin_v2() -> Step:
    from torchvision.models import swin_v2_s

    return classifier(swin_v2_s(), 96, 256, last=False)


@case
def masked_autoencoder() -> Step:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    model = ViTMAEForPreTraining(ViTMAEConfig()).to(GPU).train()
    x = images(192, 224, last=False)
    return trained(model, lambda: model(x).loss, torch.bfloat16)


@case
def sam_encoder() -> Step:
    """Segment Anything's image encoder, 1,024 pixels: windows, relative positions."""
    from transformers import SamVisionConfig, SamVisionModel

    model = SamVisionModel(SamVisionConfig()).to(GPU).train()
    x = images(4, 1024, last=False)
    return trained(model, lambda: model(x)[0].float().square().mean(), torch.bfloat16)


@case
def panoptic_fpn() -> Step:
    """A feature pyramid on ResNet-50 with dense heads at four scales, 800 pixels."""
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    body = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=5).to(GPU).train()
    head = nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU(True),
                         nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU(True),
                         nn.Conv2d(256, 80, 3, padding=1)).to(GPU)  # fmt: skip
    both = nn.ModuleList([body, head])
    x = images(8, 800, last=False)

    def loss() -> torch.Tensor:
        total = torch.zeros((), device=GPU)
        for scale in body(x).values():
            out = head(scale).float()
            total = total + F.binary_cross_entropy_with_logits(out, torch.zeros_like(out))
        return total

    return trained(both, loss, torch.bfloat16, torch.optim.SGD(both.parameters(), 0.01, momentum=0.9))


@case
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


@case
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


@case
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
            for up, blocks in zip(self.up, self.blocks, strict=True):
                x = up(F.leaky_relu(x, 0.1))
                x = sum(block(x) for block in blocks) / 3
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


@case
def latent_diffusion() -> Step:
    """The U-Net of Stable Diffusion 1.5, 64 x 64 latents, batch 8."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(cross_attention_dim=768, attention_head_dim=8).to(GPU).train()
    x, t = torch.randn(8, 4, 64, 64, device=GPU), torch.randint(0, 1000, (8,), device=GPU)
    text = torch.randn(8, 77, 768, device=GPU)
    return trained(model, lambda: F.mse_loss(model(x, t, text).sample.float(), x), torch.bfloat16, clip=1.0)


@case
def image_autoencoder() -> Step:
    """Stable Diffusion's autoencoder, 256 pixels, batch 8."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    ).to(GPU).train()  # fmt: skip
    x = images(8, 256, last=False)
    return trained(model, lambda: F.mse_loss(model(x, sample_posterior=True).sample.float(), x), torch.bfloat16)


@case
def preferences() -> Step:
    """Direct preference optimisation: a policy and a reference of 0.6B, 8 pairs of 1,024 tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", use_cache=False, hidden_size=1536, num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=4,
        intermediate_size=4096, vocab_size=32000,
    )  # fmt: skip
    policy, reference = (AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(GPU) for _ in "ab")
    ids = torch.randint(5, 30000, (16, 1024), device=GPU)
    mask = torch.arange(1024, device=GPU) >= 256

    def log_probability(model: nn.Module) -> torch.Tensor:
        logits = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
        return (logits.gather(2, ids[:, 1:, None]).squeeze(2) * mask[1:]).sum(1)

    def loss() -> torch.Tensor:
        with torch.no_grad():
            old = log_probability(reference)
        gain = (log_probability(policy) - old).view(2, 8)
        return -F.logsigmoid(0.1 * (gain[0] - gain[1])).mean()

    return trained(policy, loss, clip=1.0)


@case
def llama_compiled() -> Step:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", use_cache=False, hidden_size=2048, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8,
        intermediate_size=5632, vocab_size=32000,
    )  # fmt: skip
    model = torch.compile(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(GPU).train())
    ids = torch.randint(5, 30000, (8, 2048), device=GPU)
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss)


@case
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


@case
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


if __name__ == "__main__":
    varied.main(default_device=False)
