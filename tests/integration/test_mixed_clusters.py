"""Hosts of different GPUs in one cluster: each rank's memory, prices and links, the late kind, folds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantora.errors import PhantoraError, Reason
from phantora.fold.syntax import parse_fold
from phantora.hardware import build, load_cluster, load_gpu
from phantora.runs.fold import within_kinds
from phantora.sim.pricing import by_kinds
from phantora.trace.analysis.analyze import analyze
from phantora.trace.reader import open_log
from tests.support.runs import trace

MIXED = "1x1xH100+1x1xB200"
PROGRAM = """
import json, os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl")
props = torch.cuda.get_device_properties(0)
print(json.dumps([rank, props.name, props.total_memory]))
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(8, device="cuda"))])
for _ in range(4):
    b = a @ a
    dist.all_reduce(b[:4096])
    o.step()
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_each_rank_has_the_memory_and_the_prices_of_its_gpu(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    run = trace(tmp_path, "--cluster", MIXED, str(script))
    gpus = [load_gpu(name) for name in ("H100", "B200")]
    seen = sorted(json.loads(line.partition(": ")[2]) for line in run.out.splitlines() if "[" in line)
    assert seen == [[rank, gpu.product, gpu.memory_bytes] for rank, gpu in enumerate(gpus)]
    log = open_log(run.log)
    names = log.words("name")
    longest = [0, 0]
    for batch in log.batches(("rank", "name", "kind", "start", "end"), kinds=("kernel",)):
        for rank, name, start, end in zip(*(batch[c].tolist() for c in ("rank", "name", "start", "end")), strict=True):
            if "nccl" not in names[name]:
                longest[rank] = max(longest[rank], end - start)
    assert 1.5 < longest[0] / longest[1] < 3, "a product takes twice as long on the H100"
    report = analyze(log)
    late = [row.name for row in report.delays if row.cause == "late rank"]
    assert late[:1] == ["late rank 0 on H100-SXM"]


def test_a_cluster_of_kinds(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('gpus_per_host = 8\n[[hosts]]\ngpu = "H100"\ncount = 2\n[[hosts]]\ngpu = "B200"\n')
    cluster = load_cluster(str(file))
    assert [(part.gpu.name, part.hosts) for part in cluster.parts] == [("H100-SXM", 2), ("B200-SXM", 1)]
    assert [cluster.kind_of(host) for host in range(3)] == [0, 0, 1] and cluster.world_size == 24
    assert cluster.part(2, 4).parts[0].gpus_per_host == 4 and len(cluster.part(2, 4).parts) == 1
    rates = {link.name: link.bandwidth for link in build(cluster).links}
    assert rates["h2.gpu0>h2.nvswitch"] / rates["h0.gpu0>h0.nvswitch"] == pytest.approx(900 / 478.1, rel=0.01)


@pytest.mark.parametrize(
    "spec, message",
    [
        ("1x8xH100+1x4xB200", "give them the same number of GPUs"),
        ("1x4xH100+1x4xL40S", "the same .wiring."),
        ("1x4xH100+4x4xGB200", "NVLink over several hosts"),
    ],
)
def test_hosts_that_do_not_go_together(spec: str, message: str) -> None:
    with pytest.raises(PhantoraError, match=message):
        load_cluster(spec)


def test_collectives_of_several_kinds_go_by_the_slowest_links() -> None:
    found = by_kinds(load_cluster("1x8xH100+1x8xB200"))
    assert found[frozenset({1})].gpu.name == "B200-SXM"
    assert found[frozenset({0, 1})].gpu.name == "H100-SXM" and len(found) == 3


def test_a_process_stands_for_ranks_of_its_kind_alone() -> None:
    cluster = load_cluster("2x8xH100+2x8xB200")
    fold = parse_fold("pp=2,dp=16", 32)
    assert within_kinds(fold, cluster, 8) is fold
    with pytest.raises(PhantoraError, match="on H100-SXM cannot stand for rank 16 on B200-SXM") as caught:
        within_kinds(parse_fold("dp=32", 32), cluster, 8)
    assert caught.value.reason == Reason.CANNOT_FOLD
