"""One training step each of many image models, so that `phantora trace --missing` lists their operators for `phantora profile`.

    phantora trace --missing FILE.jsonl --cluster 1x1xH100 -m validation.probes.image_operators [grouped]

`grouped`: those with convolutions in groups, at several batches. Of the others none of them is one of the first cases of image_models.py, which judges what the tables make of models that they never saw. Needs torchvision; models
of timm are left out where it is not installed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision.models as zoo

ZOO = (
    "resnet18", "resnet34", "resnet101", "resnext101_32x8d", "wide_resnet101_2", "densenet169", "densenet201", "efficientnet_b1", "efficientnet_b2",
    "efficientnet_b4", "efficientnet_v2_m", "regnet_y_1_6gf", "regnet_y_3_2gf", "regnet_y_16gf", "regnet_x_8gf", "regnet_x_1_6gf", "mobilenet_v3_small",
    "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "mnasnet0_75", "mnasnet1_3", "vgg16_bn", "googlenet", "squeezenet1_1", "vit_l_32", "vit_h_14", "swin_s",
    "swin_b", "swin_v2_s", "convnext_large",
)
GROUPED = (
    *(f"regnet_{form}_{size}" for form in "xy" for size in ("400mf", "800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")),
    "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d",
)
TIMM = (
    "resnetv2_50", "convnextv2_tiny", "mixer_b16_224", "deit_small_patch16_224", "beit_base_patch16_224", "levit_256", "poolformer_s24", "seresnet50",
    "ecaresnet50t", "hrnet_w18", "dla60", "pvt_v2_b2", "twins_pcpvt_small", "mobilevit_s", "ghostnet_100", "repvgg_b0", "gcresnet50t", "nfnet_f0",
    "vit_small_patch14_dinov2.lvd142m", "efficientformer_l1", "coat_lite_small", "xcit_small_12_p16_224",
)
SMALL = ("vit_h_14", "regnet_y_16gf", "efficientnet_v2_m", "convnext_large", "nfnet_f0")


def models() -> Iterator[tuple[str, nn.Module]]:
    """Names and models, on the GPU."""
    for name in ZOO:
        options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        yield name, getattr(zoo, name)(weights=None, **options)
    try:
        import timm
    except ImportError:
        print("timm is not installed: its models are left out", file=sys.stderr)
        return
    for name in TIMM:
        yield name, timm.create_model(name, pretrained=False)


def step(model: nn.Module, batch: int, size: int, last: bool, amp: bool) -> None:
    """Forward, backward, SGD."""
    form = torch.channels_last if last else torch.contiguous_format
    model = model.to(memory_format=form)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=form)
    y = torch.randint(1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        out = model(x)
        loss = F.cross_entropy((out[0] if isinstance(out, tuple) else out).float(), y)
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()


def grouped() -> None:
    """A step of each model whose convolutions have groups, at several batches and in both layouts."""
    for name in GROUPED:
        for batch, last in ((32, True), (64, True), (128, True), (256, True), (64, False)):
            if batch == 256 and name.endswith(("16gf", "32gf", "64x4d", "32x8d")):
                continue  # no room
            with torch.device("cuda"):
                step(getattr(zoo, name)(weights=None), batch, 224, last, amp=True)
            print(f"{name}: batch {batch}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if sys.argv[1:] == ["grouped"]:
        grouped()
        return
    with torch.device("cuda"):
        for turn, (name, model) in enumerate(models()):
            size = 518 if "dinov2" in name else 256 if "mobilevit" in name else 224
            batch = 16 if name in SMALL or size > 500 else (32, 64, 128, 96)[turn % 4]
            for last, amp in ((turn % 3 != 1, True), *(((False, False),) if turn % 5 == 0 else ())):
                try:
                    step(model, batch, size, last, amp)
                    print(f"{name}: batch {batch}", flush=True)
                except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                    print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            del model
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
