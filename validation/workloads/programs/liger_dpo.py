"""Direct preference optimization with Liger's fused, chunked loss and its norm and gate; a frozen reference model."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss
from liger_kernel.ops import LigerSiLUMulFunction
from liger_kernel.transformers import LigerRMSNorm

from steps import timed

WIDTH, HEADS, INNER, LAYERS, WORDS, PAIRS, LENGTH = 2048, 16, 5632, 5, 64000, 4, 1024


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = LigerRMSNorm(WIDTH), LigerRMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (t.reshape(2 * PAIRS, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(a)
        h = self.n2(x)
        return x + self.down(LigerSiLUMulFunction.apply(self.gate(h), self.up(h)))


def decoder() -> nn.ModuleList:
    embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    return nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()


def hidden(model: nn.ModuleList, ids: torch.Tensor) -> torch.Tensor:
    x = model[0](ids)
    for layer in model[2:]:
        x = layer(x)
    return x


torch.manual_seed(0)
torch.set_default_device("cuda")
policy, reference = decoder(), decoder().requires_grad_(False)
loss_of = LigerFusedLinearDPOLoss(compiled=False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5, fused=True)
ids = torch.randint(0, WORDS, (2 * PAIRS, LENGTH))


def step() -> None:
    with torch.no_grad():
        old = hidden(reference, ids)
    loss, *_ = loss_of(policy[1].weight, hidden(policy, ids), ids, ref_input=old, ref_weight=reference[1].weight)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


timed("liger_dpo", step)
