"""Training steps of image models, and the GPU time of each operator in them. JSON lines.

    python -m validation.workloads.image_models OUT.jsonl.gz [CASE ... | fresh | third | fourth | fifth | sixth | seventh]     # real, or under phantora trace

On a real GPU a row also contains the kernels' time by operator and shapes (torch's profiler, two steps); a simulated run has
it in its log, within the annotation that bears the case's name. Needs torchvision, whose weights are not loaded.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision.models as zoo

from validation.charges import SIMULATED
from validation.workloads.host_runs import Unet
from validation.workloads.timing import row_of

WARM, ITERS = (2, 3) if SIMULATED else (5, 10)


@dataclass(frozen=True)
class Case:
    model: str
    batch: int
    last: bool
    """channels_last"""
    size: int = 224
    amp: bool = True
    """bfloat16 autocast; else float32 with TF32"""

    @property
    def name(self) -> str:
        return f"{self.model}_bs{self.batch}{'_cl' if self.last else ''}{'' if self.amp else '_fp32'}"


CASES = (
    Case("convnext_tiny", 64, True), Case("convnext_small", 32, False), Case("convnext_base", 16, False, amp=False),
    Case("swin_t", 64, False), Case("swin_v2_t", 32, False), Case("efficientnet_b0", 128, True),
    Case("efficientnet_v2_s", 64, True), Case("regnet_y_8gf", 64, True), Case("regnet_x_3_2gf", 64, False),
    Case("resnext50_32x4d", 64, True), Case("resnext101_64x4d", 32, False), Case("mobilenet_v2", 128, True),
    Case("mobilenet_v3_large", 256, True), Case("densenet121", 64, True), Case("densenet161", 32, False),
    Case("vit_b_16", 64, False), Case("vit_l_16", 32, False), Case("vit_b_32", 128, False, amp=False),
    Case("wide_resnet50_2", 64, True), Case("shufflenet_v2_x1_0", 256, True), Case("mnasnet1_0", 128, False),
    Case("inception_v3", 64, True, 299), Case("maxvit_t", 32, False), Case("deeplabv3_resnet50", 16, True, 256),
    Case("unet", 16, True, 64), Case("unet", 16, False, 64, amp=False), Case("resnet50", 64, False, amp=False),
)


# Batches that keep the GPU busy on a slow host; predicted before they ran.
FRESH = (
    Case("resnet152", 128, True), Case("efficientnet_b3", 128, True), Case("regnet_y_32gf", 32, True), Case("vgg19_bn", 96, False),
    Case("convnext_base", 96, True), Case("vit_b_16", 192, False), Case("resnet50", 256, True), Case("mobilenet_v2", 512, True),
    Case("densenet121", 192, True), Case("swin_t", 192, False), Case("efficientnet_v2_l", 32, True), Case("resnet50", 128, False, amp=False),
)

# Twenty more of the kind, predicted on the default host before they ran.
THIRD = (
    Case("resnet34", 512, True), Case("resnext101_32x8d", 64, True), Case("wide_resnet101_2", 128, True), Case("vgg16_bn", 128, True),
    Case("regnet_y_16gf", 64, True), Case("regnet_x_8gf", 128, True), Case("regnet_y_3_2gf", 192, True), Case("densenet169", 128, True),
    Case("mobilenet_v3_large", 768, True), Case("mnasnet1_3", 384, True), Case("efficientnet_b0", 384, True), Case("efficientnet_v2_m", 64, True),
    Case("shufflenet_v2_x2_0", 512, True), Case("inception_v3", 192, True, 299), Case("convnext_small", 128, True), Case("convnext_tiny", 192, False),
    Case("swin_s", 96, False), Case("vit_l_16", 96, False), Case("vit_b_32", 768, False), Case("resnet50", 192, False, amp=False),
)

# Twenty more, in batches that keep the GPU busy next to a host 2.5 times as slow as the default.
FOURTH = (
    Case("resnet18", 1024, True), Case("resnet101", 192, True), Case("wide_resnet50_2", 192, True), Case("resnext50_32x4d", 256, True),
    Case("resnext101_64x4d", 96, True), Case("vgg13", 192, True), Case("densenet201", 256, True), Case("googlenet", 512, True),
    Case("squeezenet1_1", 1024, True), Case("mobilenet_v3_small", 2048, True), Case("mnasnet0_75", 768, True), Case("shufflenet_v2_x1_5", 1024, True),
    Case("efficientnet_b1", 384, True), Case("efficientnet_b4", 128, True), Case("efficientnet_v2_s", 256, True), Case("regnet_y_1_6gf", 512, True),
    Case("regnet_x_16gf", 96, True), Case("convnext_large", 96, True), Case("swin_b", 128, False), Case("vit_b_16", 256, False, amp=False),
)

# With groups distinguished by their width, and more of what was measured in float32.
FIFTH = (
    Case("regnet_x_32gf", 64, True), Case("regnet_y_8gf", 160, True), Case("resnext50_32x4d", 320, True), Case("vit_b_16", 192, False, amp=False),
    Case("resnet101", 128, False, amp=False), Case("convnext_small", 160, True), Case("mobilenet_v2", 768, True), Case("swin_t", 256, False),
)

# With groups of odd widths as cuDNN pads and slices them.
SIXTH = (
    Case("regnet_x_1_6gf", 384, True), Case("regnet_x_3_2gf", 256, True), Case("regnet_x_8gf", 192, True), Case("regnet_y_16gf", 96, True),
    Case("regnet_x_16gf", 64, False), Case("resnext101_32x8d", 96, True), Case("densenet161", 128, True), Case("convnext_base", 128, True),
    Case("efficientnet_b2", 320, True), Case("swin_s", 160, False), Case("resnet152", 192, True), Case("inception_v3", 256, True, 299),
    Case("mobilenet_v3_large", 1024, True), Case("vit_l_16", 128, False), Case("wide_resnet101_2", 128, False), Case("resnet50", 256, True, amp=False),
)

# Eight more.
SEVENTH = (
    Case("regnet_y_3_2gf", 256, True), Case("regnet_x_800mf", 768, True), Case("convnext_tiny", 256, True), Case("mnasnet1_0", 768, True),
    Case("googlenet", 640, True), Case("vgg16_bn", 192, True), Case("swin_v2_t", 160, False), Case("maxvit_t", 128, False),
)
SETS = {"fresh": FRESH, "third": THIRD, "fourth": FOURTH, "fifth": FIFTH, "sixth": SIXTH, "seventh": SEVENTH}


def build(case: Case) -> tuple[nn.Module, Any]:
    """The model and its loss."""
    batch, size = case.batch, case.size
    form = torch.channels_last if case.last else torch.contiguous_format
    with torch.device("cuda"):
        if case.model == "unet":
            model: nn.Module = Unet(128)
            x, noise, t = torch.randn(batch, 4, size, size), torch.randn(batch, 4, size, size), torch.randn(batch, 256)
            x = x.contiguous(memory_format=form)
            return model.to(memory_format=form), lambda: F.mse_loss(model(x, t).float(), noise)  # type: ignore[call-overload]
        x = torch.randn(batch, 3, size, size).contiguous(memory_format=form)
        if case.model.startswith("deeplab"):
            model = zoo.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
            y = torch.randint(21, (batch, size, size))
            return model.to(memory_format=form), lambda: F.cross_entropy(model(x)["out"].float(), y)  # type: ignore[call-overload]
        options = {"init_weights": True, "aux_logits": False} if case.model in ("inception_v3", "googlenet") else {}
        model = getattr(zoo, case.model)(weights=None, **options)
        y = torch.randint(1000, (batch,))
    return model.to(memory_format=form), lambda: F.cross_entropy(model(x).float(), y)  # type: ignore[call-overload]


def profiled(step: Any) -> list[list[Any]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
        step()
        step()
        torch.cuda.synchronize()
    rows = seen.key_averages(group_by_input_shape=True)
    return [
        [row.key, str(row.input_shapes), row.count / 2, round(row.self_device_time_total / 2, 2)]
        for row in rows
        if row.self_device_time_total > 0
    ]


def run(case: Case) -> dict[str, Any]:
    torch.manual_seed(0)
    model, loss_of = build(case)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=case.amp):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = []
    for turn in range(WARM + ITERS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.profiler.record_function(case.name if turn == WARM + ITERS - 1 else "step"):
            step()
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    row = row_of(f"image_{case.name}", times[WARM:], name="image_models")
    if not SIMULATED:
        row["kernels"] = profiled(step)
    else:
        print(json.dumps(row), flush=True)
    return row


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    wanted = sys.argv[2:]
    chosen = SETS.get(wanted[0]) if len(wanted) == 1 else None
    known = {case.name: case for case in (*CASES, *FRESH, *THIRD, *FOURTH, *FIFTH, *SIXTH, *SEVENTH)}
    for case in chosen or ([known[name] for name in wanted] if wanted else CASES):
        begin = time.monotonic()
        try:
            row = run(case)
        except (RuntimeError, ValueError, TypeError) as error:
            row = {"run_id": f"image_{case.name}", "error": f"{type(error).__name__}: {error}"[:300]}
        with gzip.open(sys.argv[1], "at") as file:
            print(json.dumps(row), file=file)
        print(f"{case.name}: {row.get('median_iter_s', 0) * 1e3:.2f} ms {row.get('error', '')} ({time.monotonic() - begin:.1f} s)", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
