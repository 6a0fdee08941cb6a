"""Real host time that the operator tracer adds, in ns per call, on simulated CUDA tensors.

    python -m benchmarks.tracer_overhead

Columns: stubs alone; tracer installed but the rank in null mode (torch's own cost of having an
observer with inputs and outputs); tracer at work (frame, signature, records, values). `small` rows
are computed on the CPU as well; `large` rows only clear their results.
"""

from __future__ import annotations

import json
import sys

from tests.support import ringdump

PROGRAM = """
import json, time
if {tracer}:
    ctypes.CDLL(str(stubs.ensure().tracer)).phantora_tracer_install()
large = torch.empty(1024, 1024, dtype=torch.bfloat16, device="cuda")
small = torch.empty(8, 8, device="cuda")
weight = torch.empty(1024, 1024, dtype=torch.bfloat16, device="cuda", requires_grad=True)
many = [torch.empty(4096, device="cuda") for _ in range(100)]
host = torch.empty(8, 8)
calls = dict((
    ("view", lambda: large.view(-1)),
    ("empty", lambda: torch.empty(1024, 1024, device="cuda")),
    ("add_ on the CPU", lambda: host.add_(host)),
    ("add_ large", lambda: large.add_(large)),
    ("add large", lambda: large + large),
    ("mm large", lambda: large @ large),
    ("linear large", lambda: torch.nn.functional.linear(large, weight)),
    ("add_ small", lambda: small.add_(small)),
    ("add small", lambda: small + small),
    ("foreach 100 large", lambda: torch._foreach_add_(many, 1.0)),
))
times = dict()
for name, call in calls.items():
    best = float("inf")
    for _ in range(7):
        start = time.thread_time_ns()
        for _ in range(500):
            call()
        best = min(best, (time.thread_time_ns() - start) / 500)
    times[name] = best
print(json.dumps(times))
"""


def measure(tracer: bool, null_mode: bool) -> dict[str, float]:
    program = PROGRAM.format(tracer=tracer)
    dump = ringdump.run_script(program, device={"memory_bytes": 80 << 30}, null_mode=null_mode)
    if dump.status:
        sys.exit(dump.stderr)
    times: dict[str, float] = json.loads(dump.value)
    return times


def main() -> None:
    columns = {
        "null mode": measure(False, True),
        "+ observer": measure(True, True),
        "no tracer": measure(False, False),
        "tracer": measure(True, False),
    }
    print(f"{'ns per call':20}" + "".join(f"{name:>14}" for name in columns))
    for name in columns["tracer"]:
        print(f"{name:20}" + "".join(f"{times[name]:14.0f}" for times in columns.values()))


if __name__ == "__main__":
    main()
