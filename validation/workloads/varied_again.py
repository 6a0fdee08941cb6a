"""More kinds of model, to judge what varied.py had mended: sequences and volumes, instance norm, resizing, CTC, dropout
in compiled models. Used as varied.py is.

    python -m validation.workloads.varied_again OUT.jsonl [NAME ...]
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads import varied
from validation.workloads.varied import Step, trained

varied.CASES.clear()
case = varied.case


@case
def bert_compiled() -> Step:
    """Dropout inside of compiled blocks, sequences of 512."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072)).train()
    head = nn.Linear(768, 30522)
    ids = torch.randint(5, 30000, (32, 512))
    fast = torch.compile(model)
    both = nn.ModuleList([model, head])
    return trained(both, lambda: F.cross_entropy(head(fast(input_ids=ids).last_hidden_state).flatten(0, 1).float(), ids.flatten()), torch.bfloat16)


@case
def vit_compiled() -> Step:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(224, 16, 8, 12, 768, 3072, dropout=0.1, attention_dropout=0.1)
    fast = torch.compile(model)
    images, labels = torch.randn(96, 3, 224, 224), torch.randint(0, 1000, (96,))
    return trained(model, lambda: F.cross_entropy(fast(images).float(), labels), torch.bfloat16)


@case
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


@case
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
    model = nn.ModuleList([front, join, nn.ModuleList(Block() for _ in range(8)), head])
    sound, words = torch.randn(16, 1, 1600, 80), torch.randint(1, 128, (16, 60))
    lengths = torch.full((16,), 399, dtype=torch.int32), torch.full((16,), 60, dtype=torch.int32)

    def loss() -> torch.Tensor:
        x = join(front(sound).transpose(1, 2).flatten(2))
        for part in model[2]:
            x = part(x)
        return F.ctc_loss(head(x).float().log_softmax(-1).transpose(0, 1), words, *lengths)

    return trained(model, loss, torch.bfloat16)


@case
def cyclegan() -> Step:
    """ResNet generator with instance norms and reflections, at 256 pixels, float32 with TF32."""

    class Res(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            twice = [m for _ in range(2) for m in (nn.ReflectionPad2d(1), nn.Conv2d(256, 256, 3), nn.InstanceNorm2d(256), nn.ReLU(True))]
            self.body = nn.Sequential(*twice[:-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)

    parts: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, 64, 7), nn.InstanceNorm2d(64), nn.ReLU(True)]
    for i in (64, 128):
        parts += [nn.Conv2d(i, 2 * i, 3, 2, 1), nn.InstanceNorm2d(2 * i), nn.ReLU(True)]
    parts += [Res() for _ in range(9)]
    for i in (256, 128):
        parts += [nn.ConvTranspose2d(i, i // 2, 3, 2, 1, 1), nn.InstanceNorm2d(i // 2), nn.ReLU(True)]
    model = nn.Sequential(*parts, nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh())
    images, real = torch.rand(8, 3, 256, 256), torch.rand(8, 3, 256, 256)
    return trained(model, lambda: F.l1_loss(model(images), real), optimizer=torch.optim.Adam(model.parameters(), 2e-4))


@case
def unet_bilinear() -> Step:
    """2-D U-Net with bilinear resizing and batch norm, channels first, bfloat16."""

    def block(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(*(m for a in (i, o) for m in (nn.Conv2d(a, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))))

    widths = (64, 128, 256, 512)
    down = nn.ModuleList(block(i, o) for i, o in zip((3, *widths), widths, strict=False))
    up = nn.ModuleList(block(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True))
    model = nn.ModuleList([down, up, nn.Conv2d(64, 21, 1)])
    images, labels = torch.randn(16, 3, 256, 256), torch.randint(0, 21, (16, 256, 256))

    def loss() -> torch.Tensor:
        x, kept = images, []
        for part in down:
            x = part(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for part in up:
            x = part(torch.cat((F.interpolate(x, scale_factor=2, mode="bilinear"), kept.pop()), 1))
        return F.cross_entropy(model[2](x).float(), labels)

    return trained(model, loss, torch.bfloat16)


@case
def r2plus1d() -> Step:
    from torchvision.models.video import r2plus1d_18

    model = r2plus1d_18(num_classes=400)
    clips, labels = torch.randn(8, 3, 16, 112, 112), torch.randint(0, 400, (8,))
    return trained(model, lambda: F.cross_entropy(model(clips), labels), torch.bfloat16, torch.optim.SGD(model.parameters(), 0.01, 0.9))


@case
def video_swin() -> Step:
    from torchvision.models.video import swin3d_t

    model = swin3d_t(num_classes=400)
    clips, labels = torch.randn(4, 3, 16, 224, 224), torch.randint(0, 400, (4,))
    return trained(model, lambda: F.cross_entropy(model(clips), labels), torch.bfloat16)


@case
def voxels() -> Step:
    """A 3-D ResNet-like classifier of volumes, float32 with TF32, batch norm."""
    parts: list[nn.Module] = []
    for i, o in ((1, 32), (32, 64), (64, 128), (128, 256)):
        parts += [nn.Conv3d(i, o, 3, padding=1), nn.BatchNorm3d(o), nn.ReLU(True), nn.Conv3d(o, o, 3, padding=1), nn.BatchNorm3d(o), nn.ReLU(True), nn.MaxPool3d(2)]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 10))
    x, y = torch.randn(8, 1, 64, 64, 64), torch.randint(0, 10, (8,))
    return trained(model, lambda: F.cross_entropy(model(x), y))


@case
def feature_pyramid() -> Step:
    """ResNet-50 with a pyramid and a panoptic head, channels last, float16."""
    from torchvision.models import resnet50
    from torchvision.models._utils import IntermediateLayerGetter

    body = IntermediateLayerGetter(resnet50(), {f"layer{i}": str(i) for i in range(1, 5)})
    sides = nn.ModuleList(nn.Conv2d(c, 256, 1) for c in (256, 512, 1024, 2048))
    outs = nn.ModuleList(nn.Conv2d(256, 128, 3, padding=1) for _ in range(4))
    model = nn.ModuleList([body, sides, outs, nn.Conv2d(128, 54, 1)]).to(memory_format=torch.channels_last)
    images = torch.randn(16, 3, 384, 384).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 54, (16, 96, 96))

    def loss() -> torch.Tensor:
        levels = [side(x) for side, x in zip(sides, body(images).values(), strict=True)]
        for i in (2, 1, 0):
            levels[i] = levels[i] + F.interpolate(levels[i + 1], scale_factor=2.0)
        total = sum(F.interpolate(out(x), (96, 96), mode="bilinear") for out, x in zip(outs, levels, strict=True))
        return F.cross_entropy(model[3](total).float(), labels)

    return trained(model, loss, torch.float16, torch.optim.SGD(model.parameters(), 0.01, 0.9))


@case
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

    model = nn.ModuleList([nn.Linear(3, width), nn.ModuleList(Block() for _ in range(6)), nn.Linear(width, 40)])
    points, labels = torch.randn(32, 2048, 3), torch.randint(0, 40, (32,))

    def loss() -> torch.Tensor:
        x = model[0](points)
        for part in model[1]:
            x = part(x)
        near = torch.cdist(points, points[:, :512]).topk(16, largest=False).indices[:, :256]
        groups = x.gather(1, near.flatten(1)[..., None].expand(-1, -1, width)).view(32, 256, 16, width)
        return F.cross_entropy(model[2](groups.amax(2).mean(1)).float(), labels)

    return trained(model, loss, torch.bfloat16)


@case
def gpt2_dropout_compiled() -> Step:
    """GPT-2 small of transformers as it is, compiled, dropout 0.1."""
    model, _ = varied.language("gpt2", 1, 8, bf16=False, n_layer=6)
    ids = torch.randint(5, 30000, (24, 1024))
    fast = torch.compile(model)
    return trained(model, lambda: F.cross_entropy(fast(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()), torch.bfloat16, clip=1.0)


if __name__ == "__main__":
    varied.main()
