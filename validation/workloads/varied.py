"""Training steps of 26 kinds of model as people have them, with batches that keep a GPU busy. A JSON line for each.

    python -m validation.workloads.varied OUT.jsonl [NAME ...]     # real; under phantora trace name one case

On a real GPU a row also holds the kernels of one step: how many of each name, and their ns. Needs transformers and
torchvision; nothing is downloaded, weights are random.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

SIMULATED = hasattr(ctypes.CDLL(None), "ph_charges")
WARM, ITERS = (3, 3) if SIMULATED else (5, 10)
VARYING = "varying"  # in a case's name: its steps differ, so a simulation runs all of them
Step = Callable[[], object]
CASES: dict[str, Callable[[], Step]] = {}


def case(build: Callable[[], Step]) -> Callable[[], Step]:
    CASES[build.__name__] = build
    return build


def trained(
    model: nn.Module,
    loss_of: Callable[[], torch.Tensor],
    amp: torch.dtype | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    clip: float = 0.0,
) -> Step:
    """A step: forward under autocast to `amp`, backward (scaled for float16), clipping, optimizer (fused AdamW)."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)

    def step() -> None:
        with torch.autocast("cuda", amp or torch.bfloat16, enabled=amp is not None):
            loss = loss_of()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def language(name: str, batch: int, length: int, bf16: bool = True, checkpoint: bool = False, **sizes: Any) -> tuple[nn.Module, Any]:
    """A causal language model of transformers with random weights, and its loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, use_cache=False, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if bf16 else torch.float32).train()
    if checkpoint:
        model.gradient_checkpointing_enable()
    ids = torch.randint(5, 30000, (batch, length))
    return model, lambda: model(input_ids=ids, labels=ids).loss


@case
def pythia() -> Step:
    return trained(*language("gpt_neox", 8, 2048, hidden_size=2048, num_hidden_layers=10, num_attention_heads=16, intermediate_size=8192))


@case
def qwen3_checkpointed() -> Step:
    sizes = {"hidden_size": 2560, "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    return trained(*language("qwen3", 4, 4096, checkpoint=True, intermediate_size=9728, **sizes), clip=1.0)


@case
def gemma2() -> Step:
    sizes = {"hidden_size": 2304, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    return trained(*language("gemma2", 4, 2048, intermediate_size=9216, attn_implementation="eager", **sizes))


@case
def phi3() -> Step:
    sizes = {"hidden_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 32, "pad_token_id": 0}
    return trained(*language("phi3", 4, 2048, intermediate_size=8192, **sizes))


@case
def opt_fp16() -> Step:
    sizes = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 32, "ffn_dim": 8192, "word_embed_proj_dim": 2048}
    return trained(*language("opt", 8, 1024, bf16=False, **sizes), amp=torch.float16, clip=1.0)


@case
def bloom_alibi() -> Step:
    return trained(*language("bloom", 8, 1024, hidden_size=2048, n_layer=8, n_head=16))


@case
def mixtral() -> Step:
    sizes = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 8}
    return trained(*language("mixtral", 8, 2048, intermediate_size=3584, **sizes))


@case
def gpt2_compiled() -> Step:
    model, _ = language("gpt2", 1, 8, bf16=False, n_embd=1280, n_layer=12, n_head=20)
    ids = torch.randint(5, 30000, (16, 1024))
    fast = torch.compile(model)
    return trained(model, lambda: F.cross_entropy(fast(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()), torch.bfloat16)


@case
def llama_muon() -> Step:
    sizes = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
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


@case
def llama_lora() -> Step:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 8}
    model, loss = language("llama", 4, 2048, intermediate_size=14336, **sizes)
    model.requires_grad_(False)

    class Lora(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.drop = base, nn.Dropout(0.05)
            self.down, self.up = (nn.Linear(*s, bias=False, dtype=torch.bfloat16) for s in ((base.in_features, 16), (16, base.out_features)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(self.drop(x))) * 2.0

    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Lora(getattr(layer.self_attn, name)))
    learnt = [p for p in model.parameters() if p.requires_grad]
    return trained(model, loss, optimizer=torch.optim.AdamW(learnt, lr=1e-4))


@case
def bert_padded_fp16() -> Step:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096)).train()
    ids = torch.randint(5, 30000, (32, 512))
    mask = (torch.arange(512)[None, :] < torch.randint(128, 513, (32, 1))).long()
    labels = torch.where(torch.rand(32, 512) < 0.15, ids, -100)
    return trained(model, lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss, torch.float16)


@case
def deberta() -> Step:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        hidden_size=768, num_hidden_layers=8, num_attention_heads=12, intermediate_size=3072, relative_attention=True,
        position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], vocab_size=32000,
    )  # fmt: skip
    model = DebertaV2ForSequenceClassification(config).train()
    ids, labels = torch.randint(5, 30000, (32, 384)), torch.randint(0, 2, (32,))
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, torch.bfloat16)


@case
def t5() -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=8, num_heads=12, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).bfloat16().train()
    ids, labels = torch.randint(5, 30000, (32, 512)), torch.randint(5, 30000, (32, 128))
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, optimizer=torch.optim.Adafactor(model.parameters(), lr=1e-3))


@case
def whisper() -> Step:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).train()
    sound, labels = torch.randn(16, 80, 3000), torch.randint(5, 30000, (16, 200))
    return trained(model, lambda: model(input_features=sound, labels=labels).loss, torch.bfloat16)


@case
def wav2vec2_ctc() -> Step:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0, ctc_loss_reduction="mean", vocab_size=32)
    model = Wav2Vec2ForCTC(config).train()
    sound, labels = torch.randn(8, 160000), torch.randint(1, 32, (8, 80))
    return trained(model, lambda: model(input_values=sound, labels=labels).loss, torch.bfloat16)


@case
def clip() -> Step:
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).train()
    ids, images = torch.randint(5, 40000, (256, 77)), torch.randn(256, 3, 224, 224)
    ids[:, -1] = 49407
    return trained(model, lambda: model(input_ids=ids, pixel_values=images, return_loss=True).loss, torch.bfloat16)


@case
def segformer() -> Step:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=150)
    model = SegformerForSemanticSegmentation(config).train()
    images, labels = torch.randn(16, 3, 512, 512), torch.randint(0, 150, (16, 512, 512))
    return trained(model, lambda: model(pixel_values=images, labels=labels).loss, torch.bfloat16)


@case
def videomae() -> Step:
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    model = VideoMAEForVideoClassification(VideoMAEConfig(num_labels=400, num_hidden_layers=8)).train()
    clips, labels = torch.randn(16, 16, 3, 224, 224), torch.randint(0, 400, (16,))
    return trained(model, lambda: model(pixel_values=clips, labels=labels).loss, torch.bfloat16)


@case
def video_resnet() -> Step:
    from torchvision.models.video import r3d_18

    model = r3d_18(num_classes=400).to(memory_format=torch.channels_last_3d)
    clips, labels = torch.randn(16, 3, 16, 112, 112).contiguous(memory_format=torch.channels_last_3d), torch.randint(0, 400, (16,))
    return trained(model, lambda: F.cross_entropy(model(clips), labels), torch.float16, torch.optim.SGD(model.parameters(), 0.01, 0.9, nesterov=True))


@case
def unet3d() -> Step:
    """nnU-Net's kind: 3-D convolutions, instance norms, transposed convolutions, Dice and cross entropy."""

    def block(i: int, o: int, stride: int = 1) -> nn.Sequential:
        parts = []
        for a, s in ((i, stride), (o, 1)):
            parts += [nn.Conv3d(a, o, 3, s, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True)]
        return nn.Sequential(*parts)

    widths = (32, 64, 128, 256, 320)
    down = nn.ModuleList(block(i, o, 1 if i == 1 else 2) for i, o in zip((1, *widths), widths, strict=False))
    up = nn.ModuleList(nn.ConvTranspose3d(i, o, 2, 2) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True))
    join = nn.ModuleList(block(2 * o, o) for o in widths[-2::-1])
    model = nn.ModuleList([down, up, join, nn.Conv3d(32, 4, 1)])
    volume, labels = torch.randn(2, 1, 128, 128, 128), torch.randint(0, 4, (2, 128, 128, 128))

    def loss() -> torch.Tensor:
        x, kept = volume, []
        for part in down:
            x = part(x)
            kept.append(x)
        for part, both, old in zip(up, join, kept[-2::-1], strict=True):
            x = both(torch.cat((part(x), old), 1))
        out = model[3](x).float()
        shares, true = out.softmax(1), F.one_hot(labels, 4).movedim(-1, 1).float()
        dice = 2 * (shares * true).sum((2, 3, 4)) / (shares + true).sum((2, 3, 4))
        return F.cross_entropy(out, labels) + 1 - dice.mean()

    return trained(model, loss, torch.bfloat16, torch.optim.SGD(model.parameters(), 0.01, 0.99, nesterov=True), clip=12.0)


@case
def gan() -> Step:
    """DCGAN at 128 pixels, two optimizers."""
    sizes = (1024, 512, 256, 128, 64)
    parts: list[nn.Module] = [nn.ConvTranspose2d(128, 1024, 4), nn.BatchNorm2d(1024), nn.ReLU(True)]
    for i, o in itertools.pairwise(sizes):
        parts += [nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True)]
    maker = nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())
    parts = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for o, i in zip(sizes[-2::-1], sizes[:0:-1], strict=True):
        parts += [nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2, True)]
    judge = nn.Sequential(*parts, nn.Conv2d(1024, 1, 4))
    first, second = (torch.optim.Adam(m.parameters(), 2e-4, (0.5, 0.999)) for m in (maker, judge))
    real = torch.randn(128, 3, 128, 128)

    def step() -> None:
        noise = torch.randn(128, 128, 1, 1)
        with torch.autocast("cuda", torch.bfloat16):
            made = maker(noise)
            loss = F.softplus(-judge(real).float()).mean() + F.softplus(judge(made.detach()).float()).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.softplus(-judge(made).float()).mean()
        first.zero_grad()
        loss.backward()
        first.step()

    return step


@case
def superresolution() -> Step:
    """EDSR: 3x3 convolutions at full size and a pixel shuffle, float32 with TF32."""

    class Res(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(128, 128, 3, 1, 1), nn.ReLU(True), nn.Conv2d(128, 128, 3, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.1 * self.body(x)

    tail = [nn.Conv2d(128, 512, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(128, 3, 3, 1, 1)]
    model = nn.Sequential(nn.Conv2d(3, 128, 3, 1, 1), *(Res() for _ in range(16)), *tail)
    low, high = torch.rand(16, 3, 96, 96), torch.rand(16, 3, 192, 192)
    return trained(model, lambda: F.l1_loss(model(low), high), optimizer=torch.optim.Adam(model.parameters(), 1e-4))


@case
def speech_lstm() -> Step:
    """DeepSpeech 2's kind: convolutions over spectrograms, bidirectional LSTMs, CTC, clipping."""
    front = nn.Sequential(nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, True),
                          nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20, True))  # fmt: skip
    rnn, head = nn.LSTM(32 * 41, 1024, 4, bidirectional=True), nn.Linear(2048, 29)
    model = nn.ModuleList([front, rnn, head])
    sound, words = torch.randn(32, 1, 161, 800), torch.randint(1, 29, (32, 100))
    lengths = torch.full((32,), 400, dtype=torch.int32), torch.full((32,), 100, dtype=torch.int32)

    def loss() -> torch.Tensor:
        x = front(sound)
        x = head(rnn(x.flatten(1, 2).permute(2, 0, 1))[0]).float().log_softmax(-1)
        return F.ctc_loss(x, words, *lengths, zero_infinity=True)

    return trained(model, loss, torch.float16, torch.optim.SGD(model.parameters(), 1e-4, 0.9), clip=400.0)


@case
def nerf() -> Step:
    """An MLP of 256 for 262,144 points with sines of places, and the volume's integral, float32 with TF32."""
    first = nn.Sequential(nn.Linear(63, 256), nn.ReLU(), *(m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU())))
    density, colour = nn.Linear(256, 1), nn.Sequential(nn.Linear(256 + 27, 128), nn.ReLU(), nn.Linear(128, 3), nn.Sigmoid())
    model = nn.ModuleList([first, density, colour])
    start, ray, seen = torch.randn(2048, 1, 3), F.normalize(torch.randn(2048, 1, 3), dim=-1), torch.rand(2048, 3)

    def waves(x: torch.Tensor, n: int) -> torch.Tensor:
        powers = 2.0 ** torch.arange(n, dtype=torch.float32)
        y = (x[..., None, :] * powers[:, None]).flatten(-2)
        return torch.cat((x, y.sin(), y.cos()), -1)

    def loss() -> torch.Tensor:
        t = torch.linspace(2, 6, 128) + torch.rand(2048, 128) * 0.03
        h = first(waves(start + ray * t[..., None], 10))
        sigma = F.relu(density(h).squeeze(-1))
        rgb = colour(torch.cat((h, waves(ray, 4).expand(-1, 128, -1)), -1))
        alpha = 1 - torch.exp(-sigma * F.pad(t.diff(dim=-1), (0, 1), value=1e3))
        past = torch.cumprod(torch.cat((torch.ones(2048, 1), 1 - alpha[:, :-1] + 1e-10), -1), -1)
        return F.mse_loss(((past * alpha)[..., None] * rgb).sum(1), seen)

    return trained(model, loss, optimizer=torch.optim.Adam(model.parameters(), 5e-4))


@case
def point_cloud() -> Step:
    """DGCNN: nearest neighbours by cdist and topk, gathered edges, 1x1 convolutions, maxima."""

    def layer(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))

    layers = nn.ModuleList([layer(3, 64), layer(64, 64), layer(64, 128), layer(128, 256)])
    tail = nn.Sequential(nn.Conv1d(512, 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2))
    model = nn.ModuleList([layers, tail, nn.Linear(1024, 40)])
    points, labels = torch.randn(32, 3, 1024), torch.randint(0, 40, (32,))

    def edges(x: torch.Tensor) -> torch.Tensor:
        b, c, n = x.shape
        flat = x.transpose(1, 2)
        near = torch.cdist(flat, flat).topk(20, largest=False).indices
        y = flat.gather(1, near.flatten(1)[..., None].expand(-1, -1, c)).view(b, n, 20, c)
        here = flat[:, :, None, :].expand(-1, -1, 20, -1)
        return torch.cat((y - here, here), -1).permute(0, 3, 1, 2).contiguous()

    def loss() -> torch.Tensor:
        x, kept = points, []
        for part in layers:
            x = part(edges(x)).amax(-1)
            kept.append(x)
        return F.cross_entropy(model[2](tail(torch.cat(kept, 1)).amax(-1)), labels, label_smoothing=0.2)

    return trained(model, loss, optimizer=torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=1e-4))


@case
def diffusion_transformer() -> Step:
    """DiT-L/2 for latents of 32 x 32: modulated layer norms, float32 weights, autocast, an average of the weights."""
    width, heads, depth, batch = 1024, 16, 12, 64

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
            self.qkv, self.out, self.change = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 6 * width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            a, b, g, d, e, h = self.change(F.silu(c))[:, None].chunk(6, -1)
            q, k, v = self.qkv(self.n1(x) * (1 + b) + a).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
            x = x + g * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + h * self.mlp(self.n2(x) * (1 + e) + d)

    patch, places = nn.Conv2d(4, width, 2, 2), nn.Parameter(torch.randn(1, 256, width))
    moment, blocks, head = nn.Linear(256, width), nn.ModuleList(Block() for _ in range(depth)), nn.Linear(width, 32)
    model = nn.ModuleList([patch, moment, blocks, head])
    model.register_parameter("places", places)
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9999))
    latents, noise, t = torch.randn(batch, 4, 32, 32), torch.randn(batch, 8, 32, 32), torch.randn(batch, 256)

    def loss() -> torch.Tensor:
        x, c = patch(latents).flatten(2).transpose(1, 2) + places, moment(t)
        for part in blocks:
            x = part(x, c)
        y = head(x).view(batch, 16, 16, 2, 2, 8).permute(0, 5, 1, 3, 2, 4).reshape(batch, 8, 32, 32)
        return F.mse_loss(y.float(), noise)

    once = trained(model, loss, torch.bfloat16)

    def step() -> None:
        once()
        mean.update_parameters(model)

    return step


def profiled(step: Step) -> dict[str, list[int]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        step()
        torch.cuda.synchronize()
    kernels: dict[str, list[int]] = {}
    for event in found.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            count, ns = kernels.get(event.name()[:200], (0, 0))
            kernels[event.name()[:200]] = [count + 1, ns + event.duration_ns()]
    return kernels


def run(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    step = CASES[name]()
    warm, iters = (5, 10) if VARYING in name else (WARM, ITERS)
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(iters):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    row: dict[str, Any] = {
        "run_id": f"varied_{name}", "name": "varied", "iter_times": times, "median_iter_s": statistics.median(times),
        "max_memory_allocated": torch.cuda.max_memory_allocated(), "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip
    return row if SIMULATED else {**row, "kernels": profiled(step)}


def main(default_device: bool = True) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if default_device:
        torch.set_default_device("cuda")
    for name in sys.argv[2:] or CASES:
        begin = time.monotonic()
        try:
            row = run(name)
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            if SIMULATED:
                raise
            row = {"run_id": f"varied_{name}", "error": f"{type(error).__name__}: {error}"[:300]}
        with open(sys.argv[1], "a") as file:
            print(json.dumps(row), file=file)
        if SIMULATED:
            print(json.dumps(row))
        else:
            print(f"{name}: {row.get('median_iter_s', 0) * 1e3:.2f} ms {row.get('error', '')} ({time.monotonic() - begin:.1f} s)", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
