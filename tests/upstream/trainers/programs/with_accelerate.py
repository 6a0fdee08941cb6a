"""A training loop on accelerate: FSDP2, or LoRA of PEFT under DDP."""

import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import AutoModelForCausalLM

lora = "--lora" in sys.argv
plugin = None if lora else FullyShardedDataParallelPlugin(fsdp_version=2)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
model = AutoModelForCausalLM.from_pretrained("org/model")
if lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
data = torch.utils.data.DataLoader(torch.randint(0, 256, (12, 256)), batch_size=2)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for batch in data:
    loss = model(input_ids=batch, labels=batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.print("loss", loss.item())
accelerator.end_training()
