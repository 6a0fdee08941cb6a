"""Models that torch compiles: `compiled_mixer`, `compiled_resnet`, `tuned_gpt`, `tuned_mlp`, and FlexAttention's
`flex_documents`, `flex_sliding`, `flex_capped`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.programs.layers import Block
from validation.workloads.programs.steps import Step, fused_adamw, language, main, trained


def compiled_mixer() -> Step:
    """An MLP-Mixer with layer scale and stochastic depth: Inductor's Triton kernels between products."""
    width, tokens, batch = 1024, 256, 128

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.s1, self.s2 = nn.Parameter(torch.full((width,), 0.1)), nn.Parameter(torch.full((width,), 0.1))
            self.t1, self.t2 = nn.Linear(tokens, 512), nn.Linear(512, tokens)
            self.c1, self.c2 = nn.Linear(width, 4096), nn.Linear(4096, width)

        def drop(self, x: torch.Tensor) -> torch.Tensor:
            return x * (torch.rand(x.shape[0], 1, 1, device=x.device) < 0.9) / 0.9

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.t2(F.gelu(self.t1(self.one(x).transpose(1, 2)))).transpose(1, 2)
            x = x + self.drop(self.s1 * h)
            return x + self.drop(self.s2 * self.c2(F.gelu(self.c1(self.two(x)))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 14, 14)
            self.layers = nn.ModuleList(Mixer() for _ in range(16))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x).mean(1))

    torch.set_default_device("cuda")
    model = Model()
    run = torch.compile(model)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(run(images).float(), labels, label_smoothing=0.1)

    return trained(fused_adamw(model), loss)


def compiled_resnet() -> Step:
    """ResNet-50 in channels last: Inductor's batch norms and pointwise kernels around cuDNN's convolutions."""
    from torchvision.models import resnet50

    model = resnet50().to("cuda", memory_format=torch.channels_last).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    x = torch.randn(192, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (192,), device="cuda")

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(compiled(x), y, label_smoothing=0.1)

    return trained(optimizer, loss)


def tuned_gpt() -> Step:
    """A GPT of 6 layers with max-autotune (without CUDA graphs): products by Triton's templates where these win."""
    width, heads, words, batch, length = 1280, 20, 50304, 16, 1024

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
            x = x + F.dropout(self.out(a), 0.1)
            return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)), approximate="tanh")), 0.1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.layers = nn.ModuleList(Layer() for _ in range(6))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.words(ids) + self.places.weight
            for layer in self.layers:
                x = layer(x)
            return F.cross_entropy((self.norm(x) @ self.words.weight.T).view(-1, words), ids.view(-1))

    torch.set_default_device("cuda")
    model = Model().bfloat16()
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
    ids = torch.randint(0, words, (batch, length))
    return trained(fused_adamw(model), lambda: compiled(ids))


def tuned_mlp() -> Step:
    """Six MLPs with max-autotune: each product is whatever Inductor's tuning chose."""
    width, inner, tokens = 2560, 10240, 8192

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    torch.set_default_device("cuda")
    model = nn.Sequential(*(Layer() for _ in range(6))).bfloat16()
    for layer in model:
        layer.compile(mode="max-autotune-no-cudagraphs")
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    return trained(fused_adamw(model), lambda: model(x).square().mean())


def flex(shape: tuple[int, int], given: Callable[[], dict[str, Any]]) -> Step:
    """A GPT of 8 layers whose attention is compiled FlexAttention with the arguments of `given`."""
    from torch.nn.attention.flex_attention import flex_attention

    width, heads = 2048, 16
    torch.set_default_device("cuda")
    arguments = given()
    attend: Any = torch.compile(flex_attention, dynamic=False)

    def layer() -> Block:
        return Block(width, heads, lambda q, k, v: attend(q, k, v, **arguments))

    return language(layer, 8, width, 32000, shape)


def masked(allowed: Callable[..., torch.Tensor]) -> Step:
    """One sequence of 8,192 words with a block mask: `allowed` takes (sequence, head, query, key)."""
    from torch.nn.attention.flex_attention import create_block_mask

    return flex((1, 8192), lambda: {"block_mask": create_block_mask(allowed, None, None, 8192, 8192)})


def flex_documents() -> Step:
    """Packed documents."""
    bounds = torch.tensor([900, 1000, 2600, 2900, 5000, 5200, 7600], device="cuda")
    owner = torch.bucketize(torch.arange(8192, device="cuda"), bounds, right=True)
    return masked(lambda b, h, i, j: (i >= j) & (owner[i] == owner[j]))


def flex_sliding() -> Step:
    """A sliding window."""
    return masked(lambda b, h, i, j: (i >= j) & (i - j < 768))


def flex_capped() -> Step:
    """A cap on the scores and a slope per head, all positions."""
    slopes = 2.0 ** -(torch.arange(1, 17, device="cuda").float() / 2)

    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 30 * torch.tanh((score + slopes[h] * (j - i)) / 30)

    return flex((4, 2048), lambda: {"score_mod": capped})


if __name__ == "__main__":
    main(compiled_mixer, compiled_resnet, tuned_gpt, tuned_mlp, flex_documents, flex_sliding, flex_capped)
