"""DeepEP's interface on two ranks, both modes, without DeepEP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.runs import trace

TOKENS, TOP_K, EXPERTS = 512, 4, 16
PROGRAM = f"""
import json, os, torch, torch.distributed as dist
from deep_ep import Buffer
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
buffer = Buffer(dist.group.WORLD, 1 << 26, low_latency_mode=True)
x = torch.empty({TOKENS}, 1024, device="cuda", dtype=torch.bfloat16)
chosen = torch.zeros({TOKENS}, {TOP_K}, dtype=torch.int64, device="cuda")
weights = torch.empty({TOKENS}, {TOP_K}, device="cuda")
of_rank, _, of_expert, in_rank, _ = buffer.get_dispatch_layout(chosen, {EXPERTS})
rows, indices, _, counts, handle, _ = buffer.dispatch(
    x, topk_idx=chosen, topk_weights=weights, num_tokens_per_rank=of_rank, is_token_in_rank=in_rank,
    num_tokens_per_expert=of_expert,
)
back, _, event = buffer.combine(rows, handle, async_finish=True)
event.current_stream_wait()
(packed, _), of_each, handle, _, hook = buffer.low_latency_dispatch(
    x[:128], chosen[:128], 128, {EXPERTS}, return_recv_hook=True
)
hook()
out, _, _ = buffer.low_latency_combine(packed.to(torch.bfloat16), chosen[:128], weights[:128], handle)
torch.cuda.synchronize()
print(json.dumps({{
    "rows": len(rows), "counts": sum(counts), "of_rank": int(of_rank.sum()), "in_rank": int(in_rank.sum()),
    "here": int((indices >= 0).sum()), "back": list(back.shape), "each": of_each.tolist(), "out": list(out.shape),
}}), flush=True)
"""


def test_exchange_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    result = trace(tmp_path, "--cluster", "1x2xH100", "program.py")
    for found in (json.loads(line[line.index("{") :]) for line in result.out.splitlines() if "{" in line):
        assert found["counts"] == found["here"] == TOKENS * TOP_K  # half of both ranks' choices
        assert found["of_rank"] == found["in_rank"] == pytest.approx(found["rows"], rel=0.05)
        assert (found["back"], found["out"]) == ([TOKENS, 1024], [128, 1024])
        assert found["each"] == [128 * TOP_K * 2 // EXPERTS] * (EXPERTS // 2)
