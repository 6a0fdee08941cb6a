"""Models that make images or volumes: GANs, diffusion, autoencoders, U-Nets, radiance fields."""

from __future__ import annotations

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

from validation.workloads.registry import GPU, Step, case, images, trained


@case()
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


@case()
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


@case()
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


@case()
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


@case()
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


@case()
def cyclegan() -> Step:
    """ResNet generator with instance norms and reflections, at 256 pixels, float32 with TF32."""

    class Res(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            twice = [m for _ in range(2) for m in (nn.ReflectionPad2d(1), nn.Conv2d(256, 256, 3), nn.InstanceNorm2d(256), nn.ReLU(True))]
            self.body = nn.Sequential(*twice[:-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)

    parts: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, 64, 7), nn.InstanceNorm2d(64), nn.ReLU(True)]
    for i in (64, 128):
        parts += [nn.Conv2d(i, 2 * i, 3, 2, 1), nn.InstanceNorm2d(2 * i), nn.ReLU(True)]
    parts += [Res() for _ in range(9)]
    for i in (256, 128):
        parts += [nn.ConvTranspose2d(i, i // 2, 3, 2, 1, 1), nn.InstanceNorm2d(i // 2), nn.ReLU(True)]
    model = nn.Sequential(*parts, nn.ReflectionPad2d(3), nn.Conv2d(64, 3, 7), nn.Tanh())
    images, real = torch.rand(8, 3, 256, 256), torch.rand(8, 3, 256, 256)
    return trained(model, lambda: F.l1_loss(model(images), real), optimizer=torch.optim.Adam(model.parameters(), 2e-4))


@case()
def unet_bilinear() -> Step:
    """2-D U-Net with bilinear resizing and batch norm, channels first, bfloat16."""

    def block(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(*(m for a in (i, o) for m in (nn.Conv2d(a, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))))

    widths = (64, 128, 256, 512)
    down = nn.ModuleList(block(i, o) for i, o in zip((3, *widths), widths, strict=False))
    up = nn.ModuleList(block(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True))
    model = nn.ModuleList([down, up, nn.Conv2d(64, 21, 1)])
    images, labels = torch.randn(16, 3, 256, 256), torch.randint(0, 21, (16, 256, 256))

    def loss() -> torch.Tensor:
        x, kept = images, []
        for part in down:
            x = part(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = kept.pop()
        for part in up:
            x = part(torch.cat((F.interpolate(x, scale_factor=2, mode="bilinear"), kept.pop()), 1))
        return F.cross_entropy(model[2](x).float(), labels)

    return trained(model, loss, torch.bfloat16)


@case()
def voxels() -> Step:
    """A 3-D ResNet-like classifier of volumes, float32 with TF32, batch norm."""
    parts: list[nn.Module] = []
    for i, o in ((1, 32), (32, 64), (64, 128), (128, 256)):
        parts += [nn.Conv3d(i, o, 3, padding=1), nn.BatchNorm3d(o), nn.ReLU(True), nn.Conv3d(o, o, 3, padding=1), nn.BatchNorm3d(o), nn.ReLU(True), nn.MaxPool3d(2)]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 10))
    x, y = torch.randn(8, 1, 64, 64, 64), torch.randint(0, 10, (8,))
    return trained(model, lambda: F.cross_entropy(model(x), y))


@case()
def diffusion_unet() -> Step:
    """A denoising U-Net: group norms, attention at two scales, transposed convolutions up."""

    class Block(nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
            self.time = nn.Linear(512, b)
            self.second = nn.Sequential(nn.GroupNorm(32, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1))
            self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return self.skip(x) + self.second(self.first(x) + self.time(t)[:, :, None, None])

    class Attention(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.GroupNorm(32, c), nn.Linear(c, 3 * c), nn.Linear(c, c)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, c, h, w = x.shape
            q, k, v = (
                self.qkv(self.norm(x).flatten(2).transpose(1, 2)).view(b, h * w, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
            )
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
            return x + self.out(y).transpose(1, 2).view(b, c, h, w)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            c = (128, 256, 384, 512)
            self.begin = nn.Conv2d(4, c[0], 3, padding=1)
            self.down = nn.ModuleList(Block(c[max(0, i - 1)], c[i]) for i in range(4))
            self.shrink = nn.ModuleList(nn.Conv2d(n, n, 3, 2, 1) for n in c[:3])
            self.middle, self.attend = Block(c[3], c[3]), nn.ModuleList(Attention(n) for n in (c[2], c[3], c[3]))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(c[i + 1], c[i], 4, 2, 1) for i in range(3))
            self.up = nn.ModuleList(Block(2 * n, n) for n in c[:3])
            self.end = nn.Conv2d(c[0], 4, 3, padding=1)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            x, kept = self.begin(x), []
            for i in range(4):
                x = self.down[i](x, t)
                if i >= 2:
                    x = self.attend[i - 2](x)
                if i < 3:
                    kept.append(x)
                    x = self.shrink[i](x)
            x = self.attend[2](self.middle(x, t))
            for i in (2, 1, 0):
                x = self.up[i](torch.cat([self.grow[i](x), kept[i]], 1), t)
            return self.end(x)

    model = UNet()
    x, t = torch.randn(32, 4, 64, 64), torch.randn(32, 512)
    return trained(model, lambda: F.mse_loss(model(x, t).float(), x), torch.bfloat16)


@case()
def dcgan() -> Step:
    """Generator of transposed convolutions against a discriminator, 64 pixels, batch 512, TF32."""
    g = nn.Sequential(
        nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True),
        nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
        nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
        nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )
    d = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
        nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2, True),
        nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, True),
        nn.Conv2d(256, 512, 4, 2, 1, bias=False), nn.BatchNorm2d(512), nn.LeakyReLU(0.2, True),
        nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    )
    of_g, of_d = (torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)) for m in (g, d))
    real, noise = torch.randn(512, 3, 64, 64), torch.randn(512, 100, 1, 1)
    one, zero = torch.ones(512), torch.zeros(512)

    def step() -> None:
        of_d.zero_grad()
        fake = g(noise)
        loss = F.binary_cross_entropy_with_logits
        (loss(d(real), one) + loss(d(fake.detach()), zero)).backward()
        of_d.step()
        of_g.zero_grad()
        loss(d(fake), one).backward()
        of_g.step()

    return step


@case(default_device=False)
def masked_autoencoder() -> Step:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    model = ViTMAEForPreTraining(ViTMAEConfig()).to(GPU).train()
    x = images(192, 224, last=False)
    return trained(model, lambda: model(x).loss, torch.bfloat16)


@case(default_device=False)
def latent_diffusion() -> Step:
    """The U-Net of Stable Diffusion 1.5, 64 x 64 latents, batch 8."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(cross_attention_dim=768, attention_head_dim=8).to(GPU).train()
    x, t = torch.randn(8, 4, 64, 64, device=GPU), torch.randint(0, 1000, (8,), device=GPU)
    text = torch.randn(8, 77, 768, device=GPU)
    return trained(model, lambda: F.mse_loss(model(x, t, text).sample.float(), x), torch.bfloat16, clip=1.0)


@case(default_device=False)
def image_autoencoder() -> Step:
    """Stable Diffusion's autoencoder, 256 pixels, batch 8."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    ).to(GPU).train()
    x = images(8, 256, last=False)
    return trained(model, lambda: F.mse_loss(model(x, sample_posterior=True).sample.float(), x), torch.bfloat16)
