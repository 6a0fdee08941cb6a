"""The first send or receive of a pair waits on the host until the other side has called, as NCCL connects lazily."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from tests.support.runs import phantora, trace

# Rank 2 receives from 0 and 1 in one batch, rank 1 sends only after it has received. Rank 0's batch waits for rank 2.
PROGRAM = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
t = torch.zeros(1 << 20, device="cuda")
def batch(*ops):
    for work in dist.batch_isend_irecv([dist.P2POp(*op) for op in ops]):
        work.wait()
if os.environ.get("APART"):  # connections of their own first: then each pair waits for itself alone
    batch((dist.isend, t, (rank + 1) % 3), (dist.irecv, t.clone(), (rank - 1) % 3))
    for source, target in ((0, 1), (0, 2), (1, 2)):
        if rank in (source, target):
            batch((dist.isend, t, target) if rank == source else (dist.irecv, t, source))
if rank == 0:
    batch((dist.isend, t, 1), (dist.isend, t, 2))
elif rank == 1:
    batch((dist.irecv, t, 0))
    torch.cuda.synchronize()
    batch((dist.isend, t, 2))
else:
    batch((dist.irecv, t.clone(), 0), (dist.irecv, t.clone(), 1))
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_a_skip_connection_in_one_batch_hangs_and_connections_replay(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = trace(tmp_path, "--cluster", "1x3xH100", "--hang-timeout", "3", "train.py", check=False)
    assert done.status != 0
    waits = re.findall(r"rank (\d) waits in its first send or receive with rank (\d)", done.err)
    assert waits == [("0", "2"), ("1", "0"), ("2", "1"), ("0", "2")]  # the last line names the first of them again
    (tmp_path / "apart.py").write_text('import os\nos.environ["APART"] = "1"\n' + PROGRAM)
    run = trace(tmp_path, "--cluster", "1x3xH100", "apart.py", recording=True)
    again = tmp_path / "again.arrow"
    replayed = phantora("replay", str(run.log), "-q", "--no-summary", "-o", str(again), cwd=again.parent, timeout=120)
    assert replayed.returncode == 0, replayed.stderr
    assert pa.ipc.open_file(again).read_all() == pa.ipc.open_file(run.log).read_all()
