"""Newton-Schulz iterations of Muon as Megatron-Core's layer-wise optimizer makes them, for their time only.

A rank orthogonalises its own experts, and one of as many other matrices as there are replicas, in float32 by five
iterations of three products. Embeddings have Adam.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from megatron.core import parallel_state

ITERATIONS = 5
EMBEDDINGS = ("word_embeddings", "output_layer")


def matrices(model: torch.nn.Module) -> Iterator[torch.Size]:
    """Shapes of a rank's matrices."""
    replicas = parallel_state.get_data_parallel_world_size()
    named = [(name, each) for name, each in model.named_parameters() if each.dim() == 2]
    shared = [each.shape for name, each in named if "experts" not in name and not name.startswith(EMBEDDINGS)]
    yield from (each.shape for name, each in named if ".experts." in name)
    yield from shared[::replicas]


def orthogonalise(shape: torch.Size) -> None:
    """Products of a matrix with fewer rows than columns, or of its transpose."""
    short, long = sorted(shape)
    x = torch.empty((short, long), device="cuda")
    for _ in range(ITERATIONS):
        gram = torch.mm(x, x.t())
        update = torch.addmm(gram, gram, gram)
        x = torch.addmm(x, update, x)
