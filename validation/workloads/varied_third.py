"""Setups that people train every day, with the sizes that they use; some with batches of another length or size at each step.
To judge what popular programs and new sizes had mended. Used as varied.py is.

    python -m validation.workloads.varied_third OUT.jsonl [NAME ...]
"""

from __future__ import annotations

import itertools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads import varied
from validation.workloads.varied import Step, language, trained

varied.CASES.clear()
case = varied.case


def drawn(low: int, high: int, count: int = 64, seed: int = 5) -> itertools.cycle[int]:
    """Lengths between `low` and `high`, the same ones on every machine."""
    r = random.Random(seed)
    return itertools.cycle([r.randrange(low, high) for _ in range(count)])


@case
def gpt2_small() -> Step:
    """nanoGPT's sizes: 124M, 12 sequences of 1,024."""
    model, _ = language("gpt2", 12, 1024, bf16=False, vocab_size=50304, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    ids = torch.randint(0, 50000, (12, 1024))
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss, torch.bfloat16, clip=1.0)


@case
def qwen_half() -> Step:
    """0.5B with a vocabulary of 151,936."""
    sizes = {
        "hidden_size": 896,
        "num_hidden_layers": 12,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    }
    return trained(*language("qwen2", 4, 2048, intermediate_size=4864, tie_word_embeddings=True, **sizes), clip=1.0)


@case
def llama_1b() -> Step:
    sizes = {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    return trained(*language("llama", 2, 4096, checkpoint=True, intermediate_size=8192, **sizes), clip=1.0)


@case
def finetune_varying() -> Step:
    """Batches padded to their longest sequence."""
    sizes = {
        "hidden_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    model, _ = language("llama", 1, 8, intermediate_size=5632, attn_implementation="sdpa", **sizes)
    lengths = drawn(700, 2000)

    def loss() -> torch.Tensor:
        ids = torch.randint(5, 30000, (8, next(lengths)))
        return model(input_ids=ids, labels=ids).loss

    return trained(model, loss)


@case
def bert_varying() -> Step:
    """A classifier whose batches have any length; masks, float16."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig()).train()
    lengths = drawn(100, 480)

    def loss() -> torch.Tensor:
        length = next(lengths)
        ids = torch.randint(5, 30000, (64, length))
        mask = torch.arange(length) < torch.randint(length // 2, length + 1, (64, 1))
        return model(input_ids=ids, attention_mask=mask.long(), labels=torch.randint(0, 2, (64,))).loss

    return trained(model, loss, torch.float16, clip=1.0)


@case
def resnet_varying() -> Step:
    """Images of any size, as multi-scale training draws them."""
    from torchvision.models import resnet50

    model = resnet50().to(memory_format=torch.channels_last)
    sizes = drawn(6, 13)

    def loss() -> torch.Tensor:
        side = 32 * next(sizes)
        images = torch.randn(48, 3, side, side).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(images).float(), torch.randint(0, 1000, (48,)))

    return trained(model, loss, torch.bfloat16, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


@case
def diffusion_unet() -> Step:
    """A denoising U-Net: group norms, attention at two scales, transposed convolutions up."""

    class Block(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
            self.time = nn.Linear(512, b)
            self.second = nn.Sequential(nn.GroupNorm(32, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1))
            self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return self.skip(x) + self.second(self.first(x) + self.time(t)[:, :, None, None])

    class Attention(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.GroupNorm(32, c), nn.Linear(c, 3 * c), nn.Linear(c, c)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, c, h, w = x.shape
            q, k, v = (
                self.qkv(self.norm(x).flatten(2).transpose(1, 2)).view(b, h * w, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
            )
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
            return x + self.out(y).transpose(1, 2).view(b, c, h, w)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            c = (128, 256, 384, 512)
            self.begin = nn.Conv2d(4, c[0], 3, padding=1)
            self.down = nn.ModuleList(Block(c[max(0, i - 1)], c[i]) for i in range(4))
            self.shrink = nn.ModuleList(nn.Conv2d(n, n, 3, 2, 1) for n in c[:3])
            self.middle, self.attend = Block(c[3], c[3]), nn.ModuleList(Attention(n) for n in (c[2], c[3], c[3]))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(c[i + 1], c[i], 4, 2, 1) for i in range(3))
            self.up = nn.ModuleList(Block(2 * n, n) for n in c[:3])
            self.end = nn.Conv2d(c[0], 4, 3, padding=1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            x, kept = self.begin(x), []
            for i in range(4):
                x = self.down[i](x, t)
                if i >= 2:
                    x = self.attend[i - 2](x)
                if i < 3:
                    kept.append(x)
                    x = self.shrink[i](x)
            x = self.attend[2](self.middle(x, t))
            for i in (2, 1, 0):
                x = self.up[i](torch.cat([self.grow[i](x), kept[i]], 1), t)
            return self.end(x)

    model = UNet()
    x, t = torch.randn(32, 4, 64, 64), torch.randn(32, 512)
    return trained(model, lambda: F.mse_loss(model(x, t).float(), x), torch.bfloat16)


@case
def dcgan() -> Step:
    """Generator of transposed convolutions against a discriminator, 64 pixels, batch 512, TF32."""
    g = nn.Sequential(
        nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True),
        nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
        nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    d = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
        nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2, True),
        nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, True),
        nn.Conv2d(256, 512, 4, 2, 1, bias=False), nn.BatchNorm2d(512), nn.LeakyReLU(0.2, True),
        nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    )  # fmt: skip
    of_g, of_d = (torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)) for m in (g, d))
    real, noise = torch.randn(512, 3, 64, 64), torch.randn(512, 100, 1, 1)
    one, zero = torch.ones(512), torch.zeros(512)

    def step() -> None:
        of_d.zero_grad()
        fake = g(noise)
        loss = F.binary_cross_entropy_with_logits
        (loss(d(real), one) + loss(d(fake.detach()), zero)).backward()
        of_d.step()
        of_g.zero_grad()
        loss(d(fake), one).backward()
        of_g.step()

    return step


@case
def yolo_like() -> Step:
    """A detector's backbone and neck at 640 pixels: SiLU, concatenations, nearest upsampling, channels first, float16."""

    def conv(a: int, b: int, k: int = 3, s: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b), nn.SiLU(inplace=True))

    class Csp(nn.Module):
        def __init__(self, a: int, b: int, n: int) -> None:
            super().__init__()
            self.first, self.last = conv(a, b, 1), conv(b // 2 * (n + 2), b, 1)
            self.blocks = nn.ModuleList(nn.Sequential(conv(b // 2, b // 2), conv(b // 2, b // 2)) for _ in range(n))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = list(self.first(x).chunk(2, 1))
            for block in self.blocks:
                y.append(y[-1] + block(y[-1]))
            return self.last(torch.cat(y, 1))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            w = (48, 96, 192, 384, 576)
            self.stem = conv(3, w[0], 3, 2)
            self.stages = nn.ModuleList(
                nn.Sequential(conv(w[i], w[i + 1], 3, 2), Csp(w[i + 1], w[i + 1], n))
                for i, n in enumerate((2, 4, 4, 2))
            )
            self.neck = nn.ModuleList((Csp(w[4] + w[3], w[3], 2), Csp(w[3] + w[2], w[2], 2)))
            self.heads = nn.ModuleList(nn.Sequential(conv(n, 96), nn.Conv2d(96, 144, 1)) for n in w[2:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, kept = self.stem(x), []
            for stage in self.stages:
                x = stage(x)
                kept.append(x)
            middle = self.neck[0](torch.cat([F.interpolate(kept[3], scale_factor=2), kept[2]], 1))
            fine = self.neck[1](torch.cat([F.interpolate(middle, scale_factor=2), kept[1]], 1))
            return torch.cat(
                [head(y).flatten(2) for head, y in zip(self.heads, (fine, middle, kept[3]), strict=True)], 2
            )

    model = Net()
    images = torch.randn(16, 3, 640, 640)
    return trained(
        model,
        lambda: model(images).float().sigmoid().mean(),
        torch.float16,
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True),
    )


@case
def convnext_timm() -> Step:
    import timm

    model = timm.create_model("convnext_small").to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    return trained(model, lambda: F.cross_entropy(model(images).float(), torch.randint(0, 1000, (64,))), torch.bfloat16)


@case
def vit_small_timm() -> Step:
    import timm

    model = timm.create_model("vit_small_patch16_224", drop_path_rate=0.1)
    images = torch.randn(256, 3, 224, 224)
    return trained(
        model,
        lambda: F.cross_entropy(model(images).float(), torch.randint(0, 1000, (256,)), label_smoothing=0.1),
        torch.bfloat16,
    )


@case
def deeplab() -> Step:
    """Dilated convolutions, bilinear upsampling to 480 pixels."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    images, labels = torch.randn(12, 3, 480, 480), torch.randint(0, 21, (12, 480, 480))
    return trained(
        model,
        lambda: F.cross_entropy(model(images)["out"].float(), labels),
        torch.bfloat16,
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )


@case
def tabular_transformer() -> Step:
    """40 features as tokens of 192, batch 4,096."""
    layer = nn.TransformerEncoderLayer(192, 8, 256, 0.1, "gelu", batch_first=True, norm_first=True)
    body, head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(192, 2)
    both = nn.ModuleList([body, head])
    tokens = nn.Parameter(torch.randn(40, 192))
    both.register_parameter("tokens", tokens)
    x, y = torch.randn(4096, 40, 1), torch.randint(0, 2, (4096,))
    return trained(both, lambda: F.cross_entropy(head(body(x * tokens)[:, 0]).float(), y), torch.bfloat16)


@case
def forecaster() -> Step:
    """An LSTM over 168 hours beside 1-D convolutions, float32."""
    conv = nn.Sequential(nn.Conv1d(24, 96, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(96))
    rnn, head = nn.LSTM(96, 256, 2, batch_first=True), nn.Linear(256, 24)
    both = nn.ModuleList([conv, rnn, head])
    x, y = torch.randn(1024, 24, 168), torch.randn(1024, 24)
    return trained(both, lambda: F.mse_loss(head(rnn(conv(x).transpose(1, 2))[0][:, -1]), y))


if __name__ == "__main__":
    varied.main()
