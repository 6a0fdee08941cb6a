"""Image and video models: classification, detection, segmentation, contrastive pairs."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.registry import GPU, Step, case, classifier, drawn, images, trained


@case()
def clip() -> Step:
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).train()
    ids, images = torch.randint(5, 40000, (256, 77)), torch.randn(256, 3, 224, 224)
    ids[:, -1] = 49407
    return trained(model, lambda: model(input_ids=ids, pixel_values=images, return_loss=True).loss, torch.bfloat16)


@case()
def segformer() -> Step:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=150)
    model = SegformerForSemanticSegmentation(config).train()
    images, labels = torch.randn(16, 3, 512, 512), torch.randint(0, 150, (16, 512, 512))
    return trained(model, lambda: model(pixel_values=images, labels=labels).loss, torch.bfloat16)


@case()
def videomae() -> Step:
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    model = VideoMAEForVideoClassification(VideoMAEConfig(num_labels=400, num_hidden_layers=8)).train()
    clips, labels = torch.randn(16, 16, 3, 224, 224), torch.randint(0, 400, (16,))
    return trained(model, lambda: model(pixel_values=clips, labels=labels).loss, torch.bfloat16)


@case()
def video_resnet() -> Step:
    from torchvision.models.video import r3d_18

    model = r3d_18(num_classes=400).to(memory_format=torch.channels_last_3d)
    clips, labels = torch.randn(16, 3, 16, 112, 112).contiguous(memory_format=torch.channels_last_3d), torch.randint(0, 400, (16,))
    return trained(model, lambda: F.cross_entropy(model(clips), labels), torch.float16, torch.optim.SGD(model.parameters(), 0.01, 0.9, nesterov=True))


@case()
def vit_compiled() -> Step:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(224, 16, 8, 12, 768, 3072, dropout=0.1, attention_dropout=0.1)
    fast = torch.compile(model)
    images, labels = torch.randn(96, 3, 224, 224), torch.randint(0, 1000, (96,))
    return trained(model, lambda: F.cross_entropy(fast(images).float(), labels), torch.bfloat16)


@case()
def r2plus1d() -> Step:
    from torchvision.models.video import r2plus1d_18

    model = r2plus1d_18(num_classes=400)
    clips, labels = torch.randn(8, 3, 16, 112, 112), torch.randint(0, 400, (8,))
    return trained(model, lambda: F.cross_entropy(model(clips), labels), torch.bfloat16, torch.optim.SGD(model.parameters(), 0.01, 0.9))


@case()
def video_swin() -> Step:
    from torchvision.models.video import swin3d_t

    model = swin3d_t(num_classes=400)
    clips, labels = torch.randn(4, 3, 16, 224, 224), torch.randint(0, 400, (4,))
    return trained(model, lambda: F.cross_entropy(model(clips), labels), torch.bfloat16)


@case()
def feature_pyramid() -> Step:
    """ResNet-50 with a pyramid and a panoptic head, channels last, float16."""
    from torchvision.models import resnet50
    from torchvision.models._utils import IntermediateLayerGetter

    body = IntermediateLayerGetter(resnet50(), {f"layer{i}": str(i) for i in range(1, 5)})
    sides = nn.ModuleList(nn.Conv2d(c, 256, 1) for c in (256, 512, 1024, 2048))
    outs = nn.ModuleList(nn.Conv2d(256, 128, 3, padding=1) for _ in range(4))
    model = nn.ModuleList([body, sides, outs, nn.Conv2d(128, 54, 1)])
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(16, 3, 384, 384).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 54, (16, 96, 96))

    def loss() -> torch.Tensor:
        levels = [side(x) for side, x in zip(sides, body(images).values(), strict=True)]
        for i in (2, 1, 0):
            levels[i] = levels[i] + F.interpolate(levels[i + 1], scale_factor=2.0)
        total = sum(F.interpolate(out(x), (96, 96), mode="bilinear") for out, x in zip(outs, levels, strict=True))
        return F.cross_entropy(model[3](total).float(), labels)

    return trained(model, loss, torch.float16, torch.optim.SGD(model.parameters(), 0.01, 0.9))


@case()
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


@case()
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


@case()
def convnext_timm() -> Step:
    import timm

    model = timm.create_model("convnext_small").to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    return trained(model, lambda: F.cross_entropy(model(images).float(), torch.randint(0, 1000, (64,))), torch.bfloat16)


@case()
def vit_small_timm() -> Step:
    import timm

    model = timm.create_model("vit_small_patch16_224", drop_path_rate=0.1)
    images = torch.randn(256, 3, 224, 224)
    return trained(
        model,
        lambda: F.cross_entropy(model(images).float(), torch.randint(0, 1000, (256,)), label_smoothing=0.1),
        torch.bfloat16,
    )


@case()
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


@case(default_device=False)
def mobilenet() -> Step:
    from torchvision.models import mobilenet_v3_large

    return classifier(mobilenet_v3_large(), 512, 224)


@case(default_device=False)
def efficientnet_v2() -> Step:
    from torchvision.models import efficientnet_v2_s

    return classifier(efficientnet_v2_s(), 128, 300)


@case(default_device=False)
def swin_v2() -> Step:
    from torchvision.models import swin_v2_s

    return classifier(swin_v2_s(), 96, 256, last=False)


@case(default_device=False)
def sam_encoder() -> Step:
    """Segment Anything's image encoder, 1,024 pixels: windows, relative positions."""
    from transformers import SamVisionConfig, SamVisionModel

    model = SamVisionModel(SamVisionConfig()).to(GPU).train()
    x = images(4, 1024, last=False)
    return trained(model, lambda: model(x)[0].float().square().mean(), torch.bfloat16)


@case(default_device=False)
def panoptic_fpn() -> Step:
    """A feature pyramid on ResNet-50 with dense heads at four scales, 800 pixels."""
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    body = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=5).to(GPU).train()
    head = nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU(True),
                         nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU(True),
                         nn.Conv2d(256, 80, 3, padding=1)).to(GPU)
    both = nn.ModuleList([body, head])
    x = images(8, 800, last=False)

    def loss() -> torch.Tensor:
        total = torch.zeros((), device=GPU)
        for scale in body(x).values():
            out = head(scale).float()
            total = total + F.binary_cross_entropy_with_logits(out, torch.zeros_like(out))
        return total

    return trained(both, loss, torch.bfloat16, torch.optim.SGD(both.parameters(), 0.01, momentum=0.9))
