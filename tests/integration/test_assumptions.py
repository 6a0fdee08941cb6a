"""Replacements of unknown values, and the rows for the places where the program read them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from phantora.errors import PhantoraError
from phantora.rank.assume import parse_assumptions
from phantora.spec import VARIABLE, RankSpec
from phantora.trace.analysis.analyze import analyze
from phantora.trace.analysis.assumptions import HOST_TIME, Assumption, _by_source, assumed
from phantora.trace.analysis.render import render
from phantora.trace.reader import open_log
from tests.support import ringdump, runs

INSTALL = """from phantora.rank import assume
from phantora.rank.patch import Rank
ctypes.CDLL(str(stubs.ensure().tracer)).phantora_tracer_install()
assume.PATCH.install(Rank(stubs.ensure(), ctypes.CDLL(None)))
"""


def run(text: str, assume: str = "") -> ringdump.Dump:
    ranks = RankSpec(assume=tuple(filter(None, assume.split(","))))
    dump = ringdump.run_script(INSTALL + text, environment={VARIABLE: ranks.to_json()})
    assert dump.status == 0, dump.stderr
    return dump


def said(dump: ringdump.Dump) -> list[str]:
    names = {record["id"]: record["blob"].decode() for record in dump.of("DEFINE_NAME")}
    spans = [names[record["id"]] for record in dump.of("HOST_SPAN")]
    return [name.removeprefix("assumed: ").rsplit(" at ", 1)[0] for name in spans if name.startswith("assumed: ")]


def test_what_is_read_of_unknown_values_is_said(stub_set: Any) -> None:
    dump = run(
        "x = torch.empty(5000, device='cuda').uniform_()\n"
        "n = int((x > 0.5).sum())\n"
        "if bool((x > 2).any()): pass\n"
        "x[x > 0.5]\n"
        "torch.equal(x, x + 1)\n"
        "assert torch.allclose(x, x + 1)\n"
        "x.argmax().tolist()\n"
        "(x > 0.5).cpu()\n"
        "x.sum().item()\n"
        "known = torch.arange(5000, device='cuda')\n"
        "int((known > 7).sum()); known[known > 7]; known.tolist(); torch.equal(known, known)\n"
        "assert torch.allclose(known, known) and not torch.allclose(known, known + 1)\n"
    )
    assert said(dump) == [
        "0 is read",
        "False is read",
        "nonzero finds 0 in 5000 elements",
        "equal is True",
        "allclose is True",
        "2500 is read",
        "unknown Bools are read",
        "the real 0 is read",
    ]
    texts = [record["blob"].decode() for record in dump.of("DEFINE_NAME")]
    places = {text.rsplit(" at ", 1)[1] for text in texts if text.startswith("assumed: ")}
    assert len(places) == 8, "not distinguished by their lines"


def test_unknown_numbers_are_finite_and_close(stub_set: Any) -> None:
    run(
        "for n in 5_000, 9_000_000:\n"  # the second are too many to write down
        "    x = torch.empty(n, device='cuda').uniform_(); y = x + 1\n"
        "    assert torch.isfinite(x).all() and torch.isfinite(x).all(dim=0)\n"
        "    assert not (~torch.isfinite(x)).any() and not x.isnan().any()\n"
        "    torch.testing.assert_close(x, y)\n"
        "    assert len(x[torch.isfinite(x)]) == n\n"
        "    mask = torch.isfinite(x); mask.zero_(); assert not mask.all()\n"
        "known = torch.arange(5_000, device='cuda')\n"
        "assert not known.isclose(known + 1).any() and known.isclose(known).all()\n"
    )


def test_unknown_numbers_equal_those_that_a_program_compares_them_with(stub_set: Any) -> None:
    """However it is written: `torch.equal` was true, `(w == c).all()` false."""
    run(
        "for n in 5_000, 9_000_000:\n"  # the second are too many to write down
        "    w = torch.nn.Parameter(torch.empty(n, device='cuda').uniform_()); c = w.detach() * 1\n"
        "    assert torch.equal(w, c) and (w == c).all() and torch.eq(w, c).all(dim=0) and not (w != c).any()\n"
        "    assert w.ne(c).sum() == 0 and not (~(w == c)).any() and (w - c).abs().sum() == 0\n"
        "    assert ((w - c).abs() <= 1e-8 + 1e-5 * c.abs()).all() and ((w - c).abs() < 1e-6).all()\n"
        "    assert (w == c).sum() == n and (w == c).float().mean() == 1 and torch.count_nonzero(w == c) == n\n"
        "    assert ((w == c) | (w.isnan() & c.isnan())).all(); torch.testing.assert_close(w, c)\n"
        "    mask = w == c\n"
        "    assert len(w[mask]) == 0 and not (w > 0).all() and not (w == c[0]).all()\n"  # masks stay unknown
        "    mask.zero_(); assert not mask.all()\n"
        "known = torch.arange(5_000., device='cuda')\n"
        "assert not (known == known + 1).any() and not (known < known).all() and (known == known).all()\n"
    )


def test_distributions_of_unknown_numbers_are_valid(stub_set: Any) -> None:
    """Each batch beyond 1,024 numbers was refused: "Expected parameter loc to satisfy the constraint Real()"."""
    run(
        "from torch.distributions import *\n"
        "import torch.distributions as D\n"
        "for n in 64, 40_000:\n"  # the second has too many numbers to write down
        "    x = torch.empty(n, 256, device='cuda').normal_(); scale = x.exp()\n"
        "    Normal(x, scale).log_prob(x); Gamma(scale, scale).rsample()\n"
        "    kl_divergence(Normal(x, scale), Normal(0 * x, scale))\n"
        "    Categorical(logits=x).sample(); D.Bernoulli(probs=x.sigmoid()).log_prob(x.bernoulli(0.5))\n"
        "    Categorical(probs=x.softmax(-1)).entropy(); Dirichlet(scale).rsample()\n"
        "    TransformedDistribution(Normal(x, scale), [D.TanhTransform()]).rsample()\n"
        "few = x.sum(0)\n"
        "Normal(few, few.exp()).log_prob(few); Normal(few, 0 * few)\n"  # whether a scale is positive is not known
        "def refused(make):\n"
        "    try: make()\n"
        "    except ValueError: return True\n"
        "known = torch.full((4096,), 2.0, device='cuda')\n"
        "assert refused(lambda: Normal(known, -known)) and refused(lambda: D.Bernoulli(probs=known))\n"
        "assert refused(lambda: Normal(few[:4], torch.zeros(4, device='cuda')))\n"
        "assert refused(lambda: Normal(torch.tensor([float('nan')], device='cuda'), 1))\n"
    )


def test_what_is_computed_from_unknown_numbers_is_finite(stub_set: Any) -> None:
    run(
        "boxes = torch.empty(100, 50, device='cuda').uniform_().sum(1)\n"  # unknown, and few
        "assert (boxes / boxes).isfinite().all() and boxes.log().tolist() == [0.0] * 100\n"
        "area = boxes.clone(); area.div_(boxes - boxes); assert area.sum().item() == 0.0\n"
        "assert boxes.masked_fill(boxes == 0, -float('inf')).max().item() == -float('inf')\n"
        "scores = boxes + torch.full((100,), -float('inf'), device='cuda')\n"
        "assert scores.tolist() == [-float('inf')] * 100 and not scores.sub_(scores).isfinite().any()\n"
        "assert (torch.zeros(3, device='cuda') / 0).isnan().all()\n"  # known
        "none = torch.empty(0, device='cuda')\n"
        "assert none.mean().isnan()\n"
        "picked = boxes[boxes > 1]\n"  # a mask leaves nothing, which is a guess
        "assert len(picked) == 0 and picked.mean().item() == 0 and (picked.sum() / picked.numel()).item() == 0\n"
        "loss = torch.nn.functional.binary_cross_entropy_with_logits(picked, torch.ones_like(picked))\n"
        "assert loss.item() == 0 and picked.std().item() == 0\n"
    )


CHOICES = (
    "logits = torch.empty(4096, 8, device='cuda').normal_()\n"
    "weights, experts = logits.softmax(-1).topk(2, dim=-1)\n"
    "print([(experts == e).nonzero().shape[0] for e in range(8)], experts[0].tolist())\n"
    "sampled = torch.multinomial(torch.empty(3, 9000, device='cuda').uniform_(), 1)\n"
    "print(torch.empty(2, 50000, device='cuda').normal_().argmax(-1).tolist(), sampled.flatten().tolist())\n"
    "print(torch.empty(4000, device='cuda').uniform_().sort().indices.equal(torch.arange(4000, device='cuda')))\n"
)


def test_unknown_choices_are_spread(stub_set: Any) -> None:
    """The experts of a router get equal shares, and a sampled token is neither the first nor the last."""
    lines = run(CHOICES).value.strip().splitlines()
    assert lines == [
        "[1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024] [4, 5]",
        "[25000, 25001] [4500, 4501, 4502]",
        "True",
    ]


def test_experts_get_other_shares_in_each_step(stub_set: Any) -> None:
    """Unless a backward pass repeats the choice."""
    lines = run(
        "def shares():\n"
        "    top = torch.empty(4096, 8, device='cuda').normal_().topk(2).indices\n"
        "    return torch.bincount(top.flatten(), minlength=8).tolist()\n"
        "class Again(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x.clone())\n"
        "    backward = staticmethod(lambda ctx, g: (shares(), g)[1])\n"
        "w = torch.nn.Parameter(torch.zeros(4, device='cuda')); w.grad = torch.ones_like(w)\n"
        "optimizer = torch.optim.SGD([w])\n"
        "for _ in range(2): print(shares(), shares()); optimizer.step()\n"
        "Again.apply(w).sum().backward(); print(shares())\n"
    ).value.splitlines()
    first, second, third = (re.findall(r"\[[\d, ]+\]", line) for line in lines)
    assert {*first, *third} == {str([1024] * 8)} and second[0] != second[1]
    for text in second:
        drawn = json.loads(text)
        assert sum(drawn) == 8192 and 0 < max(abs(tokens - 1024) for tokens in drawn) < 5 * 28  # sqrt(1024 * 3 / 4)


def test_the_first_may_be_chosen(stub_set: Any) -> None:
    assert run(CHOICES, "choice=first").value.splitlines()[1] == "[0, 0] [0, 0, 0]"


def test_masks_and_losses(stub_set: Any) -> None:
    text = (
        "from torchvision.ops import nms\n"
        "scores = torch.empty(10000, device='cuda').uniform_()\n"
        "print(scores[scores > 0.5].numel())\n"
        "boxes = scores.view(2500, 4)\n"
        "print(*(len(nms(part, part[:, 0], 0.5)) for part in (boxes, boxes[:100])))\n"
        "model = torch.nn.Linear(2000, 10, device='cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    out = model(torch.empty(600, 2000, device='cuda').normal_())\n"
        "    loss = torch.nn.functional.cross_entropy(out, torch.randint(10, (600,), device='cuda'))\n"
        "    loss.backward(); optimizer.step(); print(round(loss.item(), 3))\n"
        "scaler = torch.amp.GradScaler('cuda')\n"
        "for _ in range(3):\n"
        "    scaler.scale(model(torch.empty(600, 2000, device='cuda')).sum()).backward()\n"
        "    scaler.step(optimizer); scaler.update(); print(scaler.get_scale())\n"
    )
    dump = run(text, "loss=8:1:3,mask=0.25,nms=0.1,overflow=2")
    assert dump.value.split() == ["2500", "250", "10", "8.0", "4.0", "2.0", "1.0", *["32768.0", "16384.0", "16384.0"]]
    assert "GradScaler skips 2 steps" in said(dump)
    assert {"nms keeps 250 of 2500 boxes", "nms keeps 10 of 100 boxes"} <= set(said(dump))
    assert run(text).value.split() == ["0", "1250", "50", "0.0", "0.0", "0.0", "0.0", *["65536.0"] * 3]


def test_losses_of_a_programs_own(stub_set: Any) -> None:
    """Made of other operators than torch's losses, and scaled for mixed precision: known once backward() is called."""
    text = (
        "model = torch.nn.Linear(2000, 10, device='cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cuda')\n"
        "for scaled in (False, False, True):\n"
        "    loss = (model(torch.empty(600, 2000, device='cuda').normal_()).abs() ** 1.5).mean()\n"
        "    (scaler.scale(loss) if scaled else loss).backward(); optimizer.step(); print(round(loss.item(), 3))\n"
        "true = torch.tensor(3.0, device='cuda', requires_grad=True) * 2\n"
        "true.backward(); print(true.item())\n"
    )
    assert run(text, "loss=8:1:3").value.split() == ["8.0", "4.0", "2.0", "6.0"]
    assert run(text).value.split() == ["0.0", "0.0", "0.0", "6.0"]


UNKNOWN = "x = torch.empty(5000, device='cuda').normal_()\n"


def test_unknown_flags_end_loops_when_told() -> None:
    text = UNKNOWN + (
        "for _ in range(2):\n"
        "    steps = 0\n"
        "    for steps in range(1, 100):\n"
        "        if x.norm() < 1e-3: break\n"
        "    print(steps)\n"
        "    while x.norm() > 1e-3: steps += 1\n"
        "    print(steps)\n"
    )
    assert run(text).value.split() == ["1", "1", "1", "1"]
    assert run(text, "iterations=7").value.split() == ["7", "13", "7", "13"]
    assert run(text, "iterations=7@script.py:99").value.split() == ["1", "1", "1", "1"]


def test_unknown_reals_end_loops_when_told() -> None:
    """Unknown reals end loops at the named place only: a loss that is printed stays 0."""
    text = UNKNOWN + (
        "def steps(read):\n"
        "    for step in range(1, 100):\n"
        "        if read(x.norm()) < 1e-3: return step\n"
        "print([steps(read) for read in (float, torch.Tensor.item, lambda t: t.cpu().item())])\n"
        "print(x.mean().item())\n"
    )
    plain = run(text)
    assert plain.value.splitlines() == ["[1, 1, 1]", "0.0"]
    names = [record["blob"].decode() for record in plain.of("DEFINE_NAME")]
    read = [name.rpartition(" at ")[2] for name in names if name.startswith("assumed: the real 0 is read")]
    place, in_lambda, _ = read
    assert run(text, f"iterations=7@{place}").value.splitlines() == ["[7, 7, 1]", "0.0"]
    assert run(text, f"iterations=7@{in_lambda}").value.splitlines() == ["[1, 1, 7]", "0.0"]
    counted = text.replace("read(x.norm()) < 1e-3", "read((x.abs() > 1e-3).sum()) == 0")
    assert run(counted, f"iterations=7@{place}").value.splitlines() == ["[7, 7, 1]", "0.0"]


def test_a_share_of_drafted_tokens_is_accepted() -> None:
    text = UNKNOWN + (
        "torch.manual_seed(0)\n"
        "accepted = sum(not bool(torch.rand((), device='cuda') > x[i] / x[i + 1]) for i in range(400))\n"
        "equal = (x.view(-1, 50).argmax(-1) == x.view(-1, 50).argmax(-1)).sum().item()\n"
        "print(accepted, equal)\n"
    )
    assert run(text).value.split() == ["0", "100"]
    accepted, equal = map(int, run(text, "accept=0.7").value.split())
    assert 250 < accepted < 310 and 55 < equal < 85


GENERATION = """
torch.manual_seed(0)
END, VOCABULARY = 7, 3000
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(VOCABULARY, 32), torch.nn.Embedding(64, 32)
        self.head = torch.nn.Linear(32, VOCABULARY)
    @torch.no_grad()
    def forward(self, tokens):
        return self.head(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device='cuda')))[:, -1]
model = Model().cuda()

def whole(prompts):  # all tokens are read again for each, and prompts of one length make a batch
    tokens, over = prompts, torch.zeros(len(prompts), 1, dtype=torch.bool, device='cuda')
    while tokens.shape[1] < 40 and not over.all():
        chosen = torch.multinomial(model(tokens).softmax(-1), 1)
        tokens, over = torch.cat([tokens, chosen], 1), over | (chosen == END)
    new = tokens[:, prompts.shape[1]:].tolist()
    return [row.index(END) + 1 if END in row else 0 for row in new]

def slots(prompts, count):  # a prompt takes the place of a sequence that ended; tokens go through Python
    lengths, last, waiting = {}, {}, list(enumerate(prompts))
    while waiting or last:
        if waiting and len(last) < count:
            number, prompt = waiting.pop(0)
            last[number], lengths[number] = model(prompt[None]).argmax(-1).item(), 1
        else:
            sampled = model(torch.tensor([[token] for token in last.values()]).cuda()).argmax(-1)
            for number, token in zip(list(last), sampled.tolist()):
                last[number], lengths[number] = token, lengths[number] + 1
        last = {number: token for number, token in last.items() if token != END and lengths[number] < 40}
    return list(lengths.values())

prompts = torch.randint(10, VOCABULARY, (6, 5), device='cuda')
print(whole(prompts), whole(prompts[:2]), slots(prompts, 3), slots(torch.flip(prompts, [0]), 1), sep=';')
"""


def test_sequences_end_at_assumed_lengths() -> None:
    """An end-of-sequence token is sampled for each prompt at its length, in whatever row and batch."""
    dump = run(GENERATION, "length=lognormal:12:0.4:30")
    first, again, slots, turned = map(json.loads, dump.value.split(";"))
    assert 1 < min(first) < max(first) <= 30 and len(set(first)) > 2
    assert len(set(slots)) > 2 and max(slots) <= 30 and again != first[:2], "a prompt's next sample is its own"
    assert turned != slots[::-1] and max(turned) <= 30
    assert said(dump).count("a sequence ends by length=lognormal:12:0.4:30") == 20
    assert "no sampled token is 7 (--assume length)" in said(run(GENERATION))


def test_a_router_samples_no_tokens() -> None:
    """Its loop compares the chosen experts with each expert."""
    text = "top = torch.nn.Linear(2048, 8).cuda()(torch.ones(4096, 2048, device='cuda')).topk(2).indices\n"
    found = said(run(text + "for expert in range(8): (top == expert).nonzero()\n"))
    assert found == ["nonzero finds 1024 in 8192 elements"] * 8


def test_a_run_reports_its_assumptions(tmp_path: Path, stub_set: Any) -> None:
    (tmp_path / "guess.py").write_text(
        "import os, torch; torch.cuda.set_device(int(os.environ['RANK']))\n"
        "x = torch.empty(5000, device='cuda').uniform_()\n"
        "for _ in range(3):\n    print((x > 0.5).nonzero().shape[0])\n"
        "s = torch.eye(2000, device='cuda').to_sparse()\n"
        "y = torch.empty(2000, 8, device='cuda').uniform_()\n"
        "(s @ y, s.to_sparse_csr() @ y)\n"
        "if y.norm().item() > 5: print('far')\n"
        "print(y.norm().item())\n"
        "while True:\n    error = y.norm().cpu()\n    if error < 1e-3:\n        break\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "rank, large = dist.get_rank(), torch.arange(3000, device='cuda')\n"
        "n = (x > 0.5).sum() if rank == 0 else torch.zeros((), dtype=torch.int64, device='cuda')\n"
        "if rank == 0: large += (x > 0.5)[:3000].sum()\n"
        "dist.send(n, 1) if rank == 0 else dist.recv(n, 0)\n"
        "dist.broadcast(large, 0)\n"
        "if rank: print((n + 1).item())\n"
        "if rank: print(large.tolist())\n"
        "dist.broadcast(n.fill_(7), 0)\n"
        "if rank: print(n.item())\n"
        "mask = x > 0.5 if rank == 0 else torch.empty(5000, dtype=torch.bool, device='cuda')\n"
        "dist.broadcast(mask, 0)\n"
        "if rank: print(mask.nonzero().shape[0])\n"
        "few = s.to_dense()[0, :100] @ s.to_dense()[:100, :100] * y[:, 0][:100] > 1\n"
        "print(few.nonzero().shape[0])\n"
        "mine = torch.cat([y.flatten(), torch.full((1,), 2.0 + rank, device='cuda')])\n"
        "parts = torch.empty(2, 16001, device='cuda')\n"
        "dist.all_gather_into_tensor(parts.view(-1), mine)\n"
        "print('counts', parts[:, -1].tolist(), int((parts[:, -1] > 2).sum()))\n"
        "table = torch.arange(30000, device='cuda').float() if rank == 0 else torch.empty(30000, device='cuda')\n"
        "dist.broadcast(table, 0)\n"
        "print('table', table[-1].item())\n"
    )
    run = runs.trace(tmp_path, "--cluster", "1x2xH100", "--assume", "mask=0.1", "--json", "guess.py")
    analysis = json.loads(run.out.strip().splitlines()[-1])["analysis"]
    reported = {item["what"]: item["times"] for item in analysis["assumptions"]}
    assert reported["nonzero finds 500 in 5000 elements at guess.py:4"] == 6
    assert reported["the real 0 is read at guess.py:8"] == 2
    assert reported["1 is read at guess.py:21"] == 1, "its sender guessed it"
    assert reported["unknown Longs are read at guess.py:22"] == 1
    assert not any("guess.py:24" in what for what in reported), "the sender knows the number"
    assert reported["nonzero finds 500 in 5000 elements at guess.py:27"] == 1, "nor does its sender know the mask"
    assert reported["nonzero finds 10 in 100 elements at guess.py:29"] == 2, "small masks too"
    for line in ("counts [2.0, 3.0] 1", "table 29999.0"):
        assert run.err.count(line) == 2, "known parts of tensors above 64 KiB come from all ranks"
    assert not any("guess.py:9" in what for what in reported), "what is only printed decides nothing"
    ends = [item["what"] for item in analysis["assumptions"] if item["ends_loop"]]
    assert ends == ["the real 0 is read at guess.py:11"]
    assert analysis["metadata"]["extra"]["assume"] == "mask=0.1"
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    render(analyze(open_log(run.log)), console)
    assert "nonzero finds 500 in 5000 elements at guess.py:4, 6 times" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_number_that_ends_no_loop_has_no_option_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counts.py").write_text("right += hits.sum().item()\nwhile wrong < 3:\n    wrong += misses.sum().item()\n")
    counted, ends = (_by_source(f"88 is read at counts.py:{line}", 1) for line in (1, 3))
    assert counted is not None and (counted.option, counted.rank) == ("", 1)
    assert ends is not None and ends.option == " (--assume iterations=N@counts.py:3 ends its loop at the N-th read)"


def test_a_summary_names_what_decides_work_first() -> None:
    found = [
        Assumption("a sequence ends at a.py:1", 2),
        Assumption("a sequence ends at b.py:2", 1),
        Assumption("0 is read at a.py:7", 9),
    ]
    assert assumed(found) == ["a sequence ends, 3 times, and 1 more (phantora analyze)"]
    read = "0 is read at a.py:7 (--assume iterations=N@a.py:7)"
    assert assumed(found[2:]) == [f"{read} (docs/values.md)"] and assumed([]) == []
    splits = Assumption("unknown Longs are read at a.py:8", 4)
    assert assumed([splits, *found[2:]]) == ["unknown Longs are read at a.py:8, 4 times, and 1 more (phantora analyze)"]
    ends = Assumption("the real 0 is read at a.py:9", 2, ends_loop=True)
    threads = Assumption(f"{HOST_TIME[1]} 24 threads at a.py:3", 40)
    source = (Path(__file__).parents[2] / "stub/tracer/host_cost.cpp").read_text()
    assert all(begin in source for begin in HOST_TIME)
    assert assumed(sorted([threads, found[2], ends], key=lambda each: each.rank)) == [
        "a float that is not computed reads as 0 at a.py:9 (--assume iterations=N@a.py:9 ends its loop at the N-th "
        "read), 2 times, and 2 more (phantora analyze)"
    ]
    assert assumed([found[2], threads]) == [f"{read}, and 1 more (phantora analyze)"]


@pytest.mark.parametrize(
    ("what", "option"),
    [
        ("GradScaler skips no step at a.py:3", "overflow=N"),
        ("nonzero finds 0 in 5000 elements at a.py:3", "mask=SHARE"),
        ("nms keeps 3 of 9 boxes at a.py:3", "nms=SHARE"),
        ("gradients of unknown norm are clipped at a.py:3", "clip=never"),
        ("the real 0 is read at a.py:3", "loss=VALUE or iterations=N@a.py:3"),
        ("False is read at a.py:3", "iterations=N@a.py:3"),
    ],
)
def test_an_assumption_names_the_option_that_changes_it(what: str, option: str) -> None:
    (line,) = assumed([Assumption(what, 2)])
    assert line.endswith(f"(--assume {option}), 2 times (docs/values.md)") or f"(--assume {option}) (docs" in line
    assert parse_assumptions([word.replace("N", "3").replace("SHARE", "0.5") for word in option.split(" or ")[-1:]])


def test_assumptions_are_checked() -> None:
    given = ("mask=0.5", "choice=first", "loss=10:2:500", "length=lognormal:900:0.8:4096", "eos=2", "overflow=3")
    assert parse_assumptions(given) == tuple(sorted(given))
    assert parse_assumptions(()) == ()
    wrong = (
        "mask mask=2 choice=7 loss=a loss=1:2 loss=-1:2:3 tokens=5 loss=nan nms=2 length=0 length=lognormal:9 "
        "length=normal:3:4 length=uniform:9:3 eos=-1"
    )
    for option in wrong.split():
        with pytest.raises(PhantoraError, match=r"--assume"):
            parse_assumptions((option,))


def test_arithmetic_on_the_cpu_that_takes_no_time_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\na, b = torch.ones(1024, 1024), torch.ones(1024, 1024)\n"
        "torch.ones(8, device='cuda').add_(1)\na @ b\na[:64] @ b\n"
    )
    found = analyze(open_log(runs.trace(tmp_path, "train.py").log)).assumptions
    products = [one for one in found if one.what.startswith(HOST_TIME[0])]
    assert [(one.what, one.times) for one in products] == [
        ("products on the CPU take the time of their memory only at train.py:4", 1)
    ]
