"""Language models: causal, masked, encoder and decoder; compiled, with adapters, with batches of changing length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.registry import GPU, Step, case, drawn, language, trained


@case()
def pythia() -> Step:
    return trained(*language("gpt_neox", 8, 2048, hidden_size=2048, num_hidden_layers=10, num_attention_heads=16, intermediate_size=8192))


@case()
def qwen3_checkpointed() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 2560, "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    return trained(*language("qwen3", 4, 4096, checkpoint=True, intermediate_size=9728, **sizes), clip=1.0)


@case()
def gemma2() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 2304, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    return trained(*language("gemma2", 4, 2048, intermediate_size=9216, attn_implementation="eager", **sizes))


@case()
def phi3() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 32, "pad_token_id": 0}
    return trained(*language("phi3", 4, 2048, intermediate_size=8192, **sizes))


@case()
def opt_fp16() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 32, "ffn_dim": 8192, "word_embed_proj_dim": 2048}
    return trained(*language("opt", 8, 1024, bf16=False, **sizes), amp=torch.float16, clip=1.0)


@case()
def bloom_alibi() -> Step:
    return trained(*language("bloom", 8, 1024, hidden_size=2048, n_layer=8, n_head=16))


@case()
def mixtral() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 8}
    return trained(*language("mixtral", 8, 2048, intermediate_size=3584, **sizes))


@case()
def gpt2_compiled() -> Step:
    model, _ = language("gpt2", 1, 8, bf16=False, n_embd=1280, n_layer=12, n_head=20)
    ids = torch.randint(5, 30000, (16, 1024))
    fast = torch.compile(model)
    return trained(model, lambda: F.cross_entropy(fast(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()), torch.bfloat16)


@case()
def llama_muon() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
    model, loss = language("llama", 8, 2048, intermediate_size=5632, **sizes)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "head" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n or "head" in n]
    first, second = torch.optim.Muon(matrices, lr=1e-3), torch.optim.AdamW(others, lr=1e-4, fused=True)

    def step() -> None:
        loss().backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()

    return step


@case()
def llama_lora() -> Step:
    sizes: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 8}
    model, loss = language("llama", 4, 2048, intermediate_size=14336, **sizes)
    model.requires_grad_(False)

    class Lora(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.drop = base, nn.Dropout(0.05)
            self.down, self.up = (nn.Linear(*s, bias=False, dtype=torch.bfloat16) for s in ((base.in_features, 16), (16, base.out_features)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(self.drop(x))) * 2.0

    for layer in model.get_submodule("model.layers").children():
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Lora(getattr(layer.self_attn, name)))
    learnt = [p for p in model.parameters() if p.requires_grad]
    return trained(model, loss, optimizer=torch.optim.AdamW(learnt, lr=1e-4))


@case()
def bert_padded_fp16() -> Step:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096)).train()
    ids = torch.randint(5, 30000, (32, 512))
    mask = (torch.arange(512)[None, :] < torch.randint(128, 513, (32, 1))).long()
    labels = torch.where(torch.rand(32, 512) < 0.15, ids, -100)
    return trained(model, lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss, torch.float16)


@case()
def deberta() -> Step:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        hidden_size=768, num_hidden_layers=8, num_attention_heads=12, intermediate_size=3072, relative_attention=True,
        position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], vocab_size=32000,
    )
    model = DebertaV2ForSequenceClassification(config).train()
    ids, labels = torch.randint(5, 30000, (32, 384)), torch.randint(0, 2, (32,))
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, torch.bfloat16)


@case()
def t5() -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=8, num_heads=12, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).bfloat16().train()
    ids, labels = torch.randint(5, 30000, (32, 512)), torch.randint(5, 30000, (32, 128))
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, optimizer=torch.optim.Adafactor(model.parameters(), lr=1e-3))


@case()
def bert_compiled() -> Step:
    """Dropout inside of compiled blocks, sequences of 512."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072)).train()
    head = nn.Linear(768, 30522)
    ids = torch.randint(5, 30000, (32, 512))
    fast = torch.compile(model)
    both = nn.ModuleList([model, head])
    return trained(both, lambda: F.cross_entropy(head(fast(input_ids=ids).last_hidden_state).flatten(0, 1).float(), ids.flatten()), torch.bfloat16)


@case()
def gpt2_dropout_compiled() -> Step:
    """GPT-2 small of transformers as it is, compiled, dropout 0.1."""
    model, _ = language("gpt2", 1, 8, bf16=False, n_layer=6)
    ids = torch.randint(5, 30000, (24, 1024))
    fast = torch.compile(model)
    return trained(model, lambda: F.cross_entropy(fast(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()), torch.bfloat16, clip=1.0)


@case()
def gpt2_small() -> Step:
    """nanoGPT's sizes: 124M, 12 sequences of 1,024."""
    model, _ = language("gpt2", 12, 1024, bf16=False, vocab_size=50304, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    ids = torch.randint(0, 50000, (12, 1024))
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss, torch.bfloat16, clip=1.0)


@case()
def qwen_half() -> Step:
    """0.5B with a vocabulary of 151,936."""
    sizes: dict[str, Any] = {
        "hidden_size": 896,
        "num_hidden_layers": 12,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    }
    return trained(*language("qwen2", 4, 2048, intermediate_size=4864, tie_word_embeddings=True, **sizes), clip=1.0)


@case()
def llama_1b() -> Step:
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    return trained(*language("llama", 2, 4096, checkpoint=True, intermediate_size=8192, **sizes), clip=1.0)


@case()
def finetune_varying() -> Step:
    """Batches padded to their longest sequence."""
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    model, _ = language("llama", 1, 8, intermediate_size=5632, attn_implementation="sdpa", **sizes)
    lengths = drawn(700, 2000)

    def loss() -> torch.Tensor:
        ids = torch.randint(5, 30000, (8, next(lengths)))
        return model(input_ids=ids, labels=ids).loss

    return trained(model, loss)


@case()
def bert_varying() -> Step:
    """A classifier whose batches have any length; masks, float16."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig()).train()
    lengths = drawn(100, 480)

    def loss() -> torch.Tensor:
        length = next(lengths)
        ids = torch.randint(5, 30000, (64, length))
        mask = torch.arange(length) < torch.randint(length // 2, length + 1, (64, 1))
        return model(input_ids=ids, attention_mask=mask.long(), labels=torch.randint(0, 2, (64,))).loss

    return trained(model, loss, torch.float16, clip=1.0)


@case(default_device=False)
def preferences() -> Step:
    """Direct preference optimisation: a policy and a reference of 0.6B, 8 pairs of 1,024 tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", use_cache=False, hidden_size=1536, num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=4,
        intermediate_size=4096, vocab_size=32000,
    )
    policy, reference = (AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(GPU) for _ in "ab")
    ids = torch.randint(5, 30000, (16, 1024), device=GPU)
    mask = torch.arange(1024, device=GPU) >= 256

    def log_probability(model: nn.Module) -> torch.Tensor:
        logits = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
        return (logits.gather(2, ids[:, 1:, None]).squeeze(2) * mask[1:]).sum(1)

    def loss() -> torch.Tensor:
        with torch.no_grad():
            old = log_probability(reference)
        gain = (log_probability(policy) - old).view(2, 8)
        return -F.logsigmoid(0.1 * (gain[0] - gain[1])).mean()

    return trained(policy, loss, clip=1.0)


@case(default_device=False)
def llama_compiled() -> Step:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama", use_cache=False, hidden_size=2048, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8,
        intermediate_size=5632, vocab_size=32000,
    )
    model: Any = torch.compile(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(GPU).train())
    ids = torch.randint(5, 30000, (8, 2048), device=GPU)
    return trained(model, lambda: model(input_ids=ids, labels=ids).loss)
