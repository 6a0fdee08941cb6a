"""A program for one simulated rank: computes on the GPU, compares with the CPU, prints what differs.

Run by test_values.py inside a connected rank. Each check prints one line, ``ok name`` or
``bad name: expected, got``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.rank.shims.values import write

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def same(got: Any, expected: Any) -> None:
    """Equal in values, shape and dtype; floats up to rounding."""
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected), f"{len(got)} results for {len(expected)}"
        for g, e in zip(got, expected, strict=True):
            same(g, e)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
    else:
        assert got == expected, f"expected {expected!r}, got {got!r}"


def both(function: Callable[[str], Any]) -> None:
    same(function("cuda"), function("cpu"))


def data(device: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 3).to(dtype).to(device)


@check
def factories() -> None:
    both(lambda d: torch.arange(10, device=d))
    both(lambda d: torch.arange(1.0, 2.0, 0.25, device=d))
    both(lambda d: torch.full((3, 4), 7, device=d))
    both(lambda d: torch.ones(5, dtype=torch.bfloat16, device=d))
    both(lambda d: torch.zeros(3, dtype=torch.int32, device=d))
    both(lambda d: torch.eye(4, device=d))
    both(lambda d: torch.linspace(0, 1, 9, device=d))
    both(lambda d: torch.tensor([1, 2, 3]).to(d))
    both(lambda d: torch.tensor([1.5, float("inf")], device=d))
    both(lambda d: torch.tril_indices(4, 4, device=d))
    both(lambda d: torch.scalar_tensor(3.5, device=d))


@check
def arithmetic() -> None:
    both(lambda d: data(d, 4, 5) + data(d, 5, seed=1))
    both(lambda d: data(d, 8).mul(2).sub_(1).div(3))
    both(lambda d: data(d, 8).exp().log1p().sqrt())
    both(lambda d: data(d, 8) > 0)
    both(lambda d: torch.where(data(d, 8) > 0, data(d, 8), 0.0))
    both(lambda d: data(d, 8).clamp_(-1, 1))
    both(lambda d: data(d, 8).to(torch.bfloat16).float())
    both(lambda d: data(d, 8).to(torch.float64))
    both(lambda d: torch.arange(8, device=d) // 3)
    both(lambda d: torch.lerp(data(d, 8), data(d, 8, seed=1), 0.25))
    both(lambda d: torch.addcmul(data(d, 8), data(d, 8), data(d, 8), value=0.5))
    both(lambda d: data(d, 8).isnan().logical_not())


@check
def strided() -> None:
    both(lambda d: data(d, 6, 7).t() * 2)
    both(lambda d: data(d, 6, 7)[::2, 1::3].contiguous())
    both(lambda d: data(d, 6, 1).expand(6, 5).sum(1))

    def write_column(d: str) -> Tensor:
        x = data(d, 6, 7)
        x[:, 2] = 5
        x[1].neg_()
        x.t()[3] += 1
        return x

    both(write_column)
    both(lambda d: torch.cat([data(d, 2, 3), data(d, 1, 3, seed=2)]))
    both(lambda d: torch.stack([data(d, 3), data(d, 3, seed=2)], dim=1))
    both(lambda d: data(d, 4, 4).tril())
    both(lambda d: torch.nn.functional.pad(data(d, 3), (1, 2), value=9.0))


@check
def reductions() -> None:
    both(lambda d: data(d, 6, 7).sum())
    both(lambda d: data(d, 6, 7).mean(0))
    both(lambda d: data(d, 6, 7).norm())
    both(lambda d: torch.linalg.vector_norm(data(d, 9), float("inf")))
    both(lambda d: data(d, 6, 7).max(dim=1))
    both(lambda d: data(d, 6, 7).argmax())
    both(lambda d: data(d, 20).var())
    both(lambda d: torch.arange(9, device=d).cumsum(0))
    both(lambda d: (data(d, 9) > 5).any())
    both(lambda d: (data(d, 9) < 50).all())
    both(lambda d: data(d, 9).softmax(0))
    both(lambda d: data(d, 3, 9).logsumexp(1))
    both(lambda d: torch.allclose(data(d, 9), data(d, 9)))
    both(lambda d: torch.equal(data(d, 9), data(d, 9, seed=1)))
    both(lambda d: torch.equal(data(d, 9), data(d, 9)))


@check
def items() -> None:
    both(lambda d: data(d, 3)[1].item())
    both(lambda d: bool((data(d, 3) > 100).any()))
    both(lambda d: torch.arange(5, device=d).tolist())
    both(lambda d: int(torch.tensor([3, 4], device=d).prod()))


@check
def ordering() -> None:
    both(lambda d: data(d, 17).sort())
    both(lambda d: data(d, 17).argsort(descending=True))
    both(lambda d: data(d, 17).topk(3))
    both(lambda d: torch.searchsorted(torch.arange(9, device=d), torch.tensor([2, 5], device=d)))


@check
def indexing() -> None:
    index = torch.tensor([3, 1, 1])
    both(lambda d: data(d, 6, 2)[index.to(d)])
    both(lambda d: data(d, 6, 2).index_select(0, index.to(d)))
    both(lambda d: data(d, 6).gather(0, index.to(d)))
    both(lambda d: torch.zeros(6, device=d).scatter_add_(0, index.to(d), data(d, 3)))
    both(lambda d: torch.zeros(6, device=d).index_add_(0, index.to(d), data(d, 3)))
    both(lambda d: data(d, 6).index_put_((index.to(d),), data(d, 3), accumulate=True))
    both(lambda d: data(d, 6).masked_fill_(data(d, 6) > 0, 1.0))
    both(lambda d: torch.nn.functional.embedding(index.to(d), data(d, 6, 4)))
    both(lambda d: torch.nn.functional.one_hot(index.to(d), 5))


@check
def sizes_from_data() -> None:
    both(lambda d: data(d, 20).gt(0).nonzero())
    both(lambda d: data(d, 5, 6).gt(0).nonzero(as_tuple=True))
    both(lambda d: data(d, 20)[data(d, 20) > 1])
    both(lambda d: data(d, 20).masked_select(data(d, 20) < 0))
    both(lambda d: torch.bincount(torch.tensor([1, 1, 4], device=d), minlength=3))
    both(lambda d: torch.histc(torch.tensor([1.0, 1.0, 3.0], device=d), bins=4, min=0, max=4))
    both(lambda d: torch.tensor([3, 1, 3, 2], device=d).unique())
    both(lambda d: torch.unique(torch.tensor([3, 1, 3], device=d), return_inverse=True, return_counts=True))
    both(lambda d: torch.unique(torch.tensor([True, True], device=d)))
    both(lambda d: torch.unique(torch.tensor([True, False], device=d), return_counts=True))
    both(lambda d: torch.unique(torch.tensor([[1, 2], [1, 2], [0, 2]], device=d), dim=0))
    both(lambda d: torch.unique_consecutive(torch.tensor([1, 1, 2, 1], device=d), return_counts=True))
    both(lambda d: torch.repeat_interleave(torch.tensor([2, 0, 3], device=d)))
    both(lambda d: torch.arange(3, device=d).repeat_interleave(torch.tensor([2, 0, 3], device=d)))


@check
def products() -> None:
    both(lambda d: data(d, 4, 5) @ data(d, 5, 3, seed=1))
    both(lambda d: torch.addmm(data(d, 3), data(d, 4, 5), data(d, 5, 3, seed=1)))
    both(lambda d: torch.bmm(data(d, 2, 4, 5), data(d, 2, 5, 3, seed=1)))
    both(lambda d: data(d, 5).dot(data(d, 5, seed=1)))
    both(lambda d: torch.outer(data(d, 5), data(d, 3)))
    both(lambda d: torch.einsum("ij,kj->ik", data(d, 2, 5), data(d, 3, 5)))


@check
def linear_algebra() -> None:
    both(lambda d: torch.linalg.inv(torch.eye(3, device=d) * 2))
    both(lambda d: torch.linalg.solve(torch.eye(3, device=d) * 4, data(d, 3)))


@check
def under_a_profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = (torch.arange(4, device="cuda") * 2).sum()
    same(result.item(), 12)
    names = [event.name for event in profile.events() or ()]
    assert names.count("aten::mul") == 1, names


@check
def networks() -> None:
    def train(d: str) -> list[Tensor]:
        weight = data(d, 6, 4).requires_grad_()
        bias = data(d, 4, seed=1).requires_grad_()
        target = torch.tensor([0, 3, 1], device=d)
        x = torch.nn.functional.layer_norm(data(d, 3, 6), (6,))
        loss = torch.nn.functional.cross_entropy(torch.nn.functional.gelu(x @ weight + bias), target)
        loss.backward()
        assert weight.grad is not None and bias.grad is not None
        return [loss.detach(), weight.grad, bias.grad]

    both(train)


def optimizer_run(d: str, **options: Any) -> list[Tensor]:
    parameters = [data(d, 5, 4).requires_grad_(), data(d, 3, seed=1).requires_grad_()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
    for step in range(3):
        optimizer.zero_grad()
        for i, p in enumerate(parameters):
            p.grad = data(d, *p.shape, seed=10 * step + i)
        optimizer.step()
    return [p.detach() for p in parameters]


@check
def optimizers() -> None:
    expected = optimizer_run("cpu")
    same(optimizer_run("cuda", foreach=False), expected)
    same(optimizer_run("cuda", foreach=True), expected)
    same(optimizer_run("cuda", fused=True), expected)
    same(optimizer_run("cuda", capturable=True), expected)


@check
def step_of_a_large_model() -> None:
    """Parameters are large, step counters on the GPU are not."""
    for options in ({"fused": True}, {"capturable": True}):
        p = torch.zeros(100_000, device="cuda", requires_grad=True)
        optimizer = torch.optim.AdamW([p], lr=0.1, **options)  # type: ignore[arg-type]
        for _ in range(3):
            p.grad = torch.zeros_like(p)
            optimizer.step()
        step = optimizer.state[p]["step"]
        assert step.is_cuda
        same(step.item(), 3.0)


@check
def gradient_clipping() -> None:
    def clip(d: str) -> list[Tensor]:
        parameters = [torch.nn.Parameter(data(d, 4)), torch.nn.Parameter(data(d, 2, 2))]
        for i, p in enumerate(parameters):
            p.grad = data(d, *p.shape, seed=i)
        total = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return [total] + [p.grad for p in parameters if p.grad is not None]

    both(clip)


@check
def grad_scaler() -> None:
    def scale(d: str) -> list[Any]:
        p = torch.nn.Parameter(data(d, 4))
        optimizer = torch.optim.SGD([p], lr=0.1)
        scaler = torch.amp.GradScaler(d, init_scale=1024.0, growth_interval=2)
        seen: list[Any] = []
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale((p * (float("inf") if step == 2 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            seen += [scaler.get_scale(), p.detach().clone()]
        return seen

    both(scale)


@check
def infinity_is_remembered_next_to_large_gradients() -> None:
    found = torch.ones(1, device="cuda")
    large = torch.zeros(5000, device="cuda")
    torch._amp_foreach_non_finite_check_and_unscale_([large], found, torch.ones(1, device="cuda"))
    same(found.item(), 1.0)


@check
def infinity_in_a_small_gradient_is_found_next_to_large_ones() -> None:
    unknown, small = torch.randn(5000, device="cuda"), torch.ones(8, device="cuda")
    for number, expected in ((1.0, 0.0), (float("inf"), 1.0), (float("nan"), 1.0)):
        small[3] = number
        found = torch.zeros(1, device="cuda")
        torch._amp_foreach_non_finite_check_and_unscale_([unknown, small], found, torch.ones(1, device="cuda"))
        same(found.item(), expected)


@check
def rows_of_bytes() -> None:
    row = torch.arange(5 << 20).to(torch.uint8)
    there = row.cuda()
    same(there.cpu()[-1000:], row[-1000:])
    same(there[5 << 19 :][:500], row[5 << 19 :][:500])
    filled = torch.cat((there, torch.empty(3 << 20, dtype=torch.uint8, device="cuda")))  # as evaluators fill up pickles
    assert torch.equal(filled.cpu()[: len(row)], row) and not filled.cpu()[len(row) :].any()
    there.resize_(6 << 20)
    assert torch.equal(there.clone().cpu()[: len(row)], row)
    same(row.view(5, 1 << 20).cuda().cpu()[3, :500], row.view(5, 1 << 20)[3, :500])


@check
def random_numbers() -> None:
    torch.manual_seed(7)
    cpu = torch.random.get_rng_state()
    x = torch.rand(100, device="cuda")
    assert 0.3 < x.mean().item() < 0.7 and x.min() >= 0 and x.max() < 1
    y = torch.rand(100, device="cuda")
    assert not torch.equal(x, y), "the same numbers twice"
    n = torch.randint(5, 9, (50,), device="cuda")
    assert set(n.tolist()) <= {5, 6, 7, 8} and len(set(n.tolist())) > 1
    same(torch.randperm(20, device="cuda").sort().values, torch.arange(20))
    kept = torch.nn.functional.dropout(torch.ones(200, device="cuda"), 0.5)
    assert set(kept.tolist()) == {0.0, 2.0}
    torch.bernoulli(torch.full((9,), 0.5, device="cuda"))
    own = torch.Generator("cuda").manual_seed(3)
    z = torch.randn(10, device="cuda", generator=own)
    assert torch.equal(torch.random.get_rng_state(), cpu), "the CPU stream moved"
    torch.manual_seed(7)
    assert torch.equal(torch.rand(100, device="cuda"), x), "a seed does not repeat"
    own.manual_seed(3)
    assert torch.equal(torch.randn(10, device="cuda", generator=own), z), "a generator does not repeat"
    torch.rand(3)
    assert not torch.equal(torch.random.get_rng_state(), cpu)


def halves(*shape: int) -> Tensor:
    """A parameter's numbers: large ones are carried to the GPU, and not computed with."""
    return torch.nn.Parameter(torch.full(shape, 1.5)).cuda().detach()


def unknown(*shape: int) -> Tensor:
    """Tensors as an initialisation would leave them."""
    return torch.empty(*shape, device="cuda").normal_()


@check
def large_results_are_zero() -> None:
    x = halves(2000)
    same(x.sum().item(), 0.0)
    same(int(x.count_nonzero()), 0)
    same(unknown(5000).abs().max().item(), 0.0)
    same((x + 1).cpu(), torch.zeros(2000))
    same(x.cpu(), torch.full((2000,), 1.5))  # a copy carries its bytes
    same(x.clone().cpu(), torch.full((2000,), 1.5))


@check
def in_place_on_large_is_zero() -> None:
    x = halves(2000)
    x.add_(1)
    same(x.cpu(), torch.zeros(2000))
    y = halves(2000)
    torch.add(x, 1, out=y)
    same(y.cpu(), torch.zeros(2000))
    rows = halves(3, 2000)
    rows[1].mul_(2)
    same(rows.cpu()[:, 0], torch.tensor([1.5, 0.0, 1.5]))
    lists = [halves(2000), halves(4)]
    torch._foreach_add_(lists, 1)
    same([t.cpu() for t in lists], [torch.zeros(2000), torch.zeros(4)])


@check
def gaps_of_a_large_view_are_left_alone() -> None:
    x = halves(20, 200)
    x[:, :100].add_(1)
    same(x.cpu()[:, :100].abs().max().item(), 0.0)
    same(x.cpu()[:, 100:].min().item(), 1.5)


@check
def no_stale_bytes() -> None:
    torch.cuda.empty_cache()
    small = torch.full((500,), 3.25, device="cuda")
    address = small.data_ptr()
    del small
    again = torch.empty(500, device="cuda")
    assert again.data_ptr() == address, "the block was not reused: the test shows nothing"
    same(again.abs().max().item(), 0.0)
    del again
    carried = halves(4000)
    address = carried.data_ptr()
    same(carried.cpu().sum().item(), 6000.0)
    del carried
    result = halves(4000)[:0].new_zeros(1)
    del result
    big = torch.empty(4000, device="cuda")
    reused = big.data_ptr() == address
    big.normal_()
    same(big.cpu().abs().max().item(), 0.0)
    assert reused, "the block was not reused: the test shows nothing"


@check
def sizes_from_large_data() -> None:
    x = unknown(5000)
    same(tuple(x.nonzero().shape), (0, 1))
    same(x[x > 0].numel(), 0)
    same(x.unique().numel(), 1)
    assert torch.equal(x, torch.zeros_like(x))
    same(torch.bincount(x.long(), minlength=8).cpu(), torch.zeros(8, dtype=torch.long))


@check
def given_values_are_computed_with() -> None:
    """Given results of a kernel stay true through operators of any size, until they meet an unknown value."""
    expected = torch.rand(4096, 8, generator=torch.Generator().manual_seed(0)) < 0.25
    chosen = torch.zeros(4096, 8, dtype=torch.bool, device="cuda")
    write(chosen, expected.numpy())
    both = {"cuda": chosen, "cpu": expected}

    def compare(function: Callable[[Tensor], Any]) -> None:
        same(function(both["cuda"]), function(both["cpu"]))

    compare(lambda t: t.sum(dim=0))
    compare(lambda t: t[:, 2:6].T.contiguous().long().sum(dim=1))
    compare(lambda t: t.clone().nonzero())
    columns = unknown(4096).unsqueeze(0).expand(8, -1)  # large: of unknown values
    assert columns.masked_select(chosen.T).shape == (int(expected.sum()),)
    assert (chosen.T * columns).count_nonzero().item() == 0
    chosen.logical_or_(columns.T == 0.5)
    assert chosen.sum().item() == 0


@check
def inside_modes() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Counting() as mode:
        on_host = (torch.arange(4, device="cuda") + 1).cpu()
    same(on_host, torch.arange(1, 5))
    same(mode.seen, 3)  # arange, add, copy to the host
    with torch.autocast("cuda", dtype=torch.bfloat16):
        same((data("cuda", 4, 4) @ data("cuda", 4, 4)).dtype, torch.bfloat16)
    with torch.inference_mode():
        both(lambda d: data(d, 4).add_(1))
    with torch.no_grad():
        both(lambda d: data(d, 4).requires_grad_().detach().mul(2))
    same(torch.vmap(lambda v: v.sum())(data("cuda", 3, 4)), data("cpu", 3, 4).sum(1))


@check
def memory_statistics() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.empty(1000, 1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4_000_256
    del x
    assert torch.cuda.memory_allocated() == before


def main() -> None:
    for name, function in CHECKS.items():
        try:
            function()
        except Exception as error:  # every check reports
            print(f"bad {name}: {type(error).__name__}: {error}".replace("\n", " | "), flush=True)
        else:
            print(f"ok {name}", flush=True)


if __name__ == "__main__":
    main()
