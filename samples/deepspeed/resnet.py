"""Trains torchvision's ResNet-50 with DeepSpeed on random images.

torchrun --nproc-per-node 4 samples/deepspeed/resnet.py --batch 128
"""

from __future__ import annotations

import argparse
import os

import deepspeed
import torch
import torch.nn.functional as F
from torchvision.models import resnet50

from training import add_arguments, dtype_of, settings_of, train


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, "resnet.json")
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    settings = settings_of(args)

    deepspeed.init_distributed()
    torch.manual_seed(1234 + torch.distributed.get_rank())
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    model = resnet50()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    shape = engine.train_micro_batch_size_per_gpu(), 3, args.size, args.size

    def loss_of() -> torch.Tensor:
        images = torch.randn(shape, device=device, dtype=dtype_of(settings))
        labels = torch.randint(0, 1000, shape[:1], device=device)
        return F.cross_entropy(engine(images).float(), labels)

    train(engine, args, loss_of, "images", 1)


if __name__ == "__main__":
    main()
