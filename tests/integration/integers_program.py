"""A program for one simulated rank: what comes from integers is true, however large.

Run by test_values.py inside a connected rank, like values_program.py. `labels`, `edges` and `lengths` are
what a training script copies to the GPU; all that follows is computed there and must equal the CPU's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from tests.integration.values_program import CHECKS, both, check, main, same

CHECKS.clear()

_numbers = torch.Generator().manual_seed(0)
edges = torch.randint(0, 10_000, (2, 1_000_000), generator=_numbers)
labels = torch.randint(0, 50_000, (200_000,), generator=_numbers)
labels[::3] = -100
lengths = torch.randint(0, 20, (5_000,), generator=_numbers)


@check
def self_loops_of_a_million_edges() -> None:
    def remove(device: str) -> torch.Tensor:
        on = edges.to(device)
        return on[:, on[0] != on[1]]

    assert remove("cuda").shape[1] == int((edges[0] != edges[1]).sum()) > 900_000
    both(remove)


@check
def counts_of_labels() -> None:
    for count in (2_048, 200_000):
        both(lambda d, n=count: (labels[:n].to(d) != -100).sum())  # type: ignore[misc]
    both(lambda d: (labels.pin_memory().to(d, non_blocking=True) >= 0).sum(dtype=torch.int32))
    both(lambda d: (labels[:40_000] != -100).float().to(d).sum())


@check
def jagged_lengths() -> None:
    def offsets(device: str) -> list[torch.Tensor]:
        on = lengths.to(device)
        ends = torch.cumsum(on, 0)
        bag = torch.repeat_interleave(torch.arange(len(on), device=device), on)
        return [torch.nn.functional.pad(ends, (1, 0)), bag, torch.bincount(bag, minlength=len(on)), ends[-1]]

    both(offsets)


@check
def pieces_of_uninitialised_memory() -> None:
    def filled(device: str) -> list[torch.Tensor]:
        on = labels[:40_000].to(device)
        repeated = torch.empty(40_000, dtype=torch.bool, device=device)
        repeated[:-1] = on[1:] == on[:-1]
        repeated[-1:] = False
        rows = torch.empty(50, 100, dtype=torch.long, device=device)
        for i in range(50):
            rows[i] = i
        order = torch.arange(40_000, device=device).flip(0)
        order = (order * 7) % 40_000
        inverse, scattered, copied = (torch.empty(40_000, dtype=torch.long, device=device) for _ in range(3))
        inverse[order] = torch.arange(40_000, device=device)
        scattered.scatter_(0, order, order + 1)
        copied.index_copy_(0, order, order + 2)
        angles = torch.arange(3_000, device=device).float()[:, None] * torch.arange(1, 9, device=device)
        encoding = torch.empty(3_000, 16, device=device)
        encoding[:, 0::2] = angles * 2
        encoding[:, 1::2] = angles + 3
        members = torch.isin(on, torch.arange(0, 20_000, 7, device=device))
        return [repeated, rows.sum(), inverse, scattered.sum(), copied, encoding, encoding.sum(1), members.sum()]

    both(filled)


@check
def padding_and_positions() -> None:
    def unpad(device: str) -> list[torch.Tensor]:
        tokens = labels.view(100, 2_000).to(device)
        mask = tokens.ne(-100)
        rows = mask.sum(-1, dtype=torch.int32)
        boundaries = torch.nn.functional.pad(torch.cumsum(rows, 0, dtype=torch.int32), (1, 0))
        positions = (mask.cumsum(1) - 1).masked_fill_(~mask, 1)
        return [positions, mask.flatten().nonzero(), boundaries, tokens[mask], torch.where(mask, tokens, 0)]

    both(unpad)


@check
def orders_and_tables() -> None:
    def sorted_out(device: str) -> list[torch.Tensor]:
        on = labels.to(device)
        ordered, order = torch.sort(on, stable=True)
        values, inverse, counts = torch.unique(on, return_inverse=True, return_counts=True)
        table = torch.zeros(50_000, dtype=torch.long, device=device)
        table.scatter_add_(0, on.clamp(min=0), torch.ones_like(on))
        table[on[:9].clamp(min=0)] = 7
        common = (on.view(2, -1) % 7).clamp(max=5).mode(1).values  # of more than 2,048 numbers, by Thrust
        return [ordered, order, values, inverse, counts, table, table.gather(0, on.clamp(min=0)), common]

    both(sorted_out)


@check
def blocks_of_masks() -> None:
    def blocks(device: str) -> list[torch.Tensor]:
        i = torch.arange(1_024, device=device)
        window = (i[:, None] >= i[None, :]) & (i[:, None] - i[None, :] < 256)
        documents = (labels[:1_024].to(device) % 97 == 0).cumsum(0)
        same_document = documents[:, None] == documents[None, :]
        return [(m.view(8, 128, 8, 128).sum((1, 3)) > 0).sum(-1) for m in (window, window & same_document)]

    both(blocks)


@check
def flex_attention_block_masks() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    documents = (torch.arange(2_048) // 300).tolist()

    def sparsity(device: str) -> list[torch.Tensor]:
        document = torch.tensor(documents, device=device)
        masks = (
            lambda b, h, q, k: (q >= k) & (q - k < 256),
            lambda b, h, q, k: (q >= k) & (document[q] == document[k]),
        )
        made = [create_block_mask(m, None, None, 2_048, 2_048, device=device) for m in masks]
        return [
            part for m in made for part in (m.kv_num_blocks, m.kv_indices, m.full_kv_num_blocks) if part is not None
        ]

    both(sparsity)


@check
def flex_attention_block_masks_by_pieces() -> None:
    """Larger ones than the tracer computes, and those of a compiled ``create_block_mask``."""
    import torch.nn.attention.flex_attention as flex

    from phantora import stubs
    from phantora.rank.patch import Rank
    from phantora.rank.patches import block_masks

    create = flex.create_block_mask
    block_masks.install(Rank(stubs.ensure(), ctypes.CDLL(None)))
    length, owners = 2_100, torch.arange(2_100) // 300
    document = owners.cuda()

    def mask(owner: torch.Tensor) -> Callable[..., torch.Tensor]:
        return lambda b, h, q, k: (q >= k + b) & (owner[q] == owner[k])

    expected = create(mask(owners), 2, None, length, length, device="cpu")
    for made in (flex.create_block_mask, torch.compile(flex.create_block_mask, backend="eager")):
        found = made(mask(document), 2, None, length, length, device="cuda")
        for name in block_masks.FIELDS:
            same(getattr(found, name), getattr(expected, name))
            assert getattr(found, name).sum() > 0, name


@check
def boxes_that_nms_keeps() -> None:
    from torchvision.ops import nms

    corners = torch.randint(0, 500, (1_500, 2), generator=_numbers).float()
    boxes = torch.cat([corners, corners + torch.randint(20, 200, (1_500, 2), generator=_numbers)], 1)
    scores = torch.randperm(1_500, generator=_numbers).float()
    for count in (200, 1_500):
        both(lambda d, n=count: nms(boxes[:n].to(d), scores[:n].to(d), 0.5))  # type: ignore[misc]


@check
def sparse_tensors_that_are_coalesced() -> None:
    def coalesced(device: str) -> list[torch.Tensor]:
        found = []
        for count in (100, 20_000):  # of few also the values are known
            on = (edges[:, :count] % 300).to(device)
            ones = torch.ones(count, device=device)
            matrix = torch.sparse_coo_tensor(on, ones, (300, 300)).coalesce()
            found += [matrix.indices(), *([matrix.values()] if count <= 1_024 else [])]
        table = torch.nn.Embedding(50_000, 8, sparse=True, device=device)
        table(labels[:9_000].clamp(min=0).to(device)).sum().backward()
        assert table.weight.grad is not None
        return [*found, table.weight.grad.coalesce().indices()]

    both(coalesced)


@check
def nested_tensors() -> None:
    rows = [torch.arange(n) for n in (700, 900, 4)]

    def jagged(device: str) -> list[torch.Tensor]:
        nested: Any = torch.nested.nested_tensor(rows, layout=torch.jagged, device=device)
        return [nested.offsets(), nested.values(), nested.offsets().diff()]

    both(jagged)


@check
def random_integers() -> None:
    torch.manual_seed(3)
    drawn = torch.randint(0, 1_000, (5_000,), device="cuda")
    assert int(drawn.min()) >= 0 and int(drawn.max()) <= 999 and drawn.unique().numel() > 900
    same(torch.randperm(5_000, device="cuda").sort().values, torch.arange(5_000))
    torch.manual_seed(3)
    assert torch.equal(torch.randint(0, 1_000, (5_000,), device="cuda"), drawn), "a seed does not repeat"


@check
def what_meets_the_unknown_is_unknown() -> None:
    unknown = torch.empty(200_000, device="cuda").normal_()
    on = labels.cuda()
    assert int((on + unknown).count_nonzero()) == 0
    on[5:9] = 1
    assert int((on == 1).sum()) == int((labels == 1).sum()) + 4
    on.copy_(unknown)
    assert int(on.count_nonzero()) == 0 and on.nonzero().numel() == 0


@check
def five_million_edges() -> None:
    numbers = torch.Generator().manual_seed(1)
    pairs = torch.randint(0, 3_000, (2, 5_000_000), generator=numbers)

    def degrees(device: str) -> list[torch.Tensor]:
        on = pairs.to(device)
        kept = on[:, on[0] != on[1]]
        weight = torch.zeros(3_000, device=device).scatter_add_(0, kept[1], torch.ones(kept.shape[1], device=device))
        return [weight, kept.amax(1), (kept[0] * 3_000 + kept[1]).sum()]

    both(degrees)


@check
def reals_that_follow_from_known_ones() -> None:
    both(lambda d: 1 / (10_000 ** (torch.arange(0, 512, 2, device=d) / 512)) * torch.arange(4_096, device=d)[:, None])
    both(lambda d: torch.cumprod(1 - torch.linspace(1e-4, 0.02, 4_000, device=d), 0))
    both(lambda d: torch.full((2_000, 2_000), float("-inf"), device=d).triu(1)[1_999, -3:])
    wave = torch.sin(torch.arange(88_200) / 50)

    def there_and_back(device: str) -> torch.Tensor:
        window = torch.hann_window(4_096, device=device)
        spectrum = torch.stft(wave.to(device), 4_096, 1_024, window=window, return_complex=True)
        return torch.istft(spectrum, 4_096, 1_024, window=window, length=88_200)

    torch.testing.assert_close(there_and_back("cuda").cpu(), wave, atol=1e-4, rtol=0)


@check
def random_choices_of_known_shares() -> None:
    torch.manual_seed(3)
    kept = (torch.rand(300_000, device="cuda") < 0.1).nonzero()
    assert 29_000 < len(kept) < 31_000
    assert torch.equal(kept, kept.unique()[:, None])


@check
def what_is_changed_later_is_not_what_was_taken() -> None:
    def change(device: str) -> list[torch.Tensor]:
        on = labels.to(device)
        taken, part = on * 2, on[50_000:150_000]
        total = (on == 1).sum()
        part.add_(1)
        on[::3] = 0
        total += on.sum()
        copied = on.clone()
        on.zero_()
        return [taken, part, total, copied, on, taken.view(2, -1)[1].flip(0)]

    both(change)


@check
def layers_of_a_network_are_unknown() -> None:
    layer = torch.nn.Linear(512, 512, device="cuda")
    x = torch.ones(256, 512, device="cuda")
    out = layer(x)
    assert not out.any() and float(out.sum()) == 0
    out.sum().backward()
    assert layer.weight.grad is not None and not layer.weight.grad.any()


@check
def in_place_on_large_integers() -> None:
    def change(device: str) -> list[torch.Tensor]:
        on = labels.to(device)
        on.add_(1).clamp_(min=0).masked_fill_(on == 0, 5)
        on[on > 40_000] = 2
        on[::2] = on[1::2]
        return [on, on.index_fill(0, lengths.to(device), 9), on.index_put((lengths.to(device),), on[:1])]

    both(change)


@check
def empty_tensors_leave_nothing_to_others() -> None:
    empty, one, none = torch.empty(0, device="cuda"), torch.tensor(1.0, device="cuda"), torch.tensor(0.0, device="cuda")
    for ask in (lambda: empty.unique(return_counts=True), lambda: empty.unique_consecutive(), lambda: empty.nonzero()):
        ask()  # computes its results before it launches, and then launches nothing
        assert bool(one > none) and (one + none).item() == 1.0


if __name__ == "__main__":
    main()
