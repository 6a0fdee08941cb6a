"""An encoder of 8 layers on sentences of 40 to 1,000 words, as jagged tensors, without padding."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from steps import timed

WIDTH, HEADS, LAYERS, WORDS, BATCH = 1024, 16, 8, 32000, 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (of(h).unflatten(-1, [HEADS, WIDTH // HEADS]).transpose(1, 2) for of in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


torch.manual_seed(0)
lengths = torch.randint(40, 1000, (BATCH,)).tolist()
torch.set_default_device("cuda")
embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
model = nn.ModuleList([embed, head, *(Layer() for _ in range(LAYERS))]).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.nested.nested_tensor([torch.randint(0, WORDS, (n,)) for n in lengths], layout=torch.jagged)


def step() -> None:
    x = embed(ids)
    for layer in model[2:]:
        x = layer(x)
    F.cross_entropy(head(x).values(), ids.values()).backward()
    optimizer.step()
    optimizer.zero_grad()


timed("jagged", step)
