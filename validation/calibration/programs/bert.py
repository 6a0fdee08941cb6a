"""Transformers' BERT for sentence pairs, AdamW by loops over parameters, a scheduler, loss.item() each step."""

import torch
from transformers import BertConfig, BertForSequenceClassification

from validation.calibration.programs.common import Step, main


def build(layers: int, batch: int, seq: int, hidden: int) -> Step:
    config = BertConfig(
        vocab_size=8192, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden, num_labels=3,
    )
    model = BertForSequenceClassification(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, foreach=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 / (1 + n))
    ids = torch.randint(0, 8192, (batch, seq), device="cuda")
    mask = torch.ones_like(ids)
    labels = torch.randint(0, 3, (batch,), device="cuda")
    losses = []

    def step() -> None:
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    return step


main("bert", build, {
    "base": dict(layers=6, batch=8, seq=64, hidden=256), "deep": dict(layers=16, batch=8, seq=64, hidden=256),
    "long": dict(layers=6, batch=4, seq=256, hidden=256), "wide": dict(layers=4, batch=32, seq=64, hidden=512),
})
