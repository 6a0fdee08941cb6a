"""phantora calibrate: real traces that are made up, of machines that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from phantora.calibration import calibrate
from phantora.calibration.collectives import collective_curves
from phantora.calibration.exclusive import exclusive_times
from phantora.calibration.fit import OPERATORS, pace_of
from phantora.calibration.kernels import Products, traced_operators
from phantora.calibration.profiled import EVENT_NS, LAUNCH_NS, HostStep, joined_steps
from phantora.cli.calibrate import calibrate as command
from phantora.cli.main import cli
from phantora.cost import KernelLaunch, OperatorSignature, TensorSpec, model_for
from phantora.cost.traced import TracedOperator, write_traced
from phantora.errors import PhantoraError
from phantora.hardware import DEFAULT_HOST, MeasuredCollective, MeasuredGpu, load_calibration, load_cluster, load_host
from phantora.importers import import_traces
from phantora.sim.collectives import CollectiveModel
from phantora.trace.reader import Log, open_log
from phantora.wire.layout import NCCL_DTYPE_NAMES, Coll
from tests.support.fakelog import small_run
from tests.support.kineto_files import Trace

DEFAULT = load_host(DEFAULT_HOST)
CALLS = 4  # as many as the simulated log has
ADD_US = 7.0


def real_trace(step_us: float, rank: int = 0, world: int = 1) -> Trace:
    """Three steps of a host that works all the time, `CALLS` operators with a launch each."""
    trace = Trace(rank, world)
    for number in range(3):
        begin = number * step_us
        trace.slice("user_annotation", f"ProfilerStep#{number}", begin, step_us)
        for at in range(CALLS):
            start = begin + step_us * at / CALLS
            operator = trace.operator("aten::add", start, 0.6 * step_us / CALLS, [8, 8], [8, 8])
            trace.kernel("add", start + 0.1 * step_us / CALLS, start + 10, ADD_US, external=operator)
    return trace


def imported(folder: Path, *traces: Trace) -> Log:
    paths = [str(trace.write(folder / f"rank{trace.rank}.json")) for trace in traces]
    import_traces(paths, str(folder / "real.arrow"))
    return open_log(folder / "real.arrow")


def simulated_log(folder: Path, host: dict[str, object]) -> Log:
    run = small_run(ranks=1, steps=5)
    run.metadata.extra["host"] = host
    return open_log(run.write(folder / "simulated.arrow"))


def default_log(folder: Path) -> Log:
    return simulated_log(folder, {"name": DEFAULT_HOST, "factor": DEFAULT.factor})


def step_us(work_ns: float, ratio: float) -> float:
    """Step of a host whose ratio is `ratio`, under the profiler."""
    launch = 4000.0 / LAUNCH_NS  # how long the trace's launches take
    profiler = DEFAULT.factor * CALLS * (EVENT_NS["operator"] + EVENT_NS["call"]) * launch
    return ratio * (work_ns + profiler) / 1e3


def test_a_machine_on_which_a_script_is_twice_as_slow(tmp_path: Path) -> None:
    simulated = default_log(tmp_path)
    modelled = calibrate(imported(tmp_path, real_trace(1000.0)), simulated, "any").fit.simulated
    assert modelled is not None
    found = calibrate(imported(tmp_path, real_trace(step_us(modelled.work_ns, 2.0))), simulated, "mine")
    assert found.fit.ratio == pytest.approx(2.0, rel=0.02)
    assert found.host.factor == pytest.approx(2 * DEFAULT.factor, rel=0.02)
    assert found.host.api_ns["LAUNCH"] == pytest.approx(2 * DEFAULT.api_ns["LAUNCH"], rel=0.02)
    out = tmp_path / "mine.toml"
    words = [str(tmp_path / "real.arrow"), str(tmp_path / "simulated.arrow"), "--out", str(out), "--name", "mine"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0 and "2.00 times as slow as default" in done.output
    assert "operators    1 with shapes" in done.output
    assert "collectives  left out: import the traces of all ranks" in done.output
    written = load_calibration(str(out))
    assert written.host.api_ns == pytest.approx(found.host.api_ns, rel=1e-3, abs=1) and written.host.measured
    assert load_host(str(out)) == written.host


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs/howto/calibrate.md"
    wanted = ("phantora import ", "phantora calibrate ")
    lines = [line.split() for line in page.read_text().splitlines() if line.strip().startswith(wanted)]
    assert len(lines) == 2
    real_trace(1000.0).write(tmp_path / "rank0.json")
    default_log(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _, name, *words in lines:
        words = [word.replace("*", "0") for word in words if word != "--"]
        if "train.py" in words:  # which the page's reader has
            words[words.index("train.py") :] = ["simulated.arrow"]
        assert CliRunner().invoke(cli, [name, *words], catch_exceptions=False).exit_code == 0
    assert load_calibration("my-machine.toml").host.measured


def test_operators_of_the_trace_have_its_times_on_its_gpu_only(tmp_path: Path) -> None:
    real = imported(tmp_path, real_trace(1000.0))
    out = tmp_path / "mine.toml"
    words = [str(tmp_path / "real.arrow"), str(default_log(tmp_path).path), "--out", str(out)]
    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    assert [(o.key, o.ns) for o in traced_operators(real)[0]] == [("add(bf16[8,8], bf16[8,8])", 1000 * ADD_US)]
    calibration = load_calibration(str(out))
    same, other = load_cluster("1x1xH100"), load_cluster("1x1xH200")
    operand = TensorSpec("bfloat16", (8, 8), (8, 1))
    query = OperatorSignature("aten::add.Tensor", (operand, operand, 1)), (KernelLaunch("add"),)
    assert calibration.note(same) == ""
    assert calibration.note(other).endswith("is from NVIDIA H100 80GB HBM3: on H200-SXM only its host counts")
    assert calibration.applied(other).gpu == other.gpu and calibration.applied(other).host == calibration.host
    signature = replace(query[0], args=(operand, operand))
    price = model_for(calibration.applied(same).gpu).operator(signature, query[1])
    assert (price.durations, price.provenance) == ((1000 * ADD_US,), "measured (calibration)")


def test_the_slowest_rank_decides() -> None:
    """Rank 0 alone is traced. Its GPU waits for the other rank in collectives."""
    simulated = HostStep(rank=0, steps=2, work_ns=10e6, spread=0.0, gpu_ns=11e6, launches=100)
    real = replace(simulated, work_ns=20e6, gpu_ns=33e6, communicates=True)
    assert pace_of(real, simulated) == pytest.approx(1.5)
    assert pace_of(replace(real, communicates=False), simulated) == 1.0
    assert pace_of(replace(real, gpu_ns=15e6), simulated) == 1.0
    assert pace_of(replace(real, computing_ns=30e6), simulated) == 1.0
    assert pace_of(real, replace(simulated, gpu_ns=20e6)) == 1.0  # the GPU is busy longer than its host


def test_several_optimizer_steps_are_one_step_of_the_profiler() -> None:
    assert joined_steps([500, *[100] * 7] * 6, 1300) == 8
    assert joined_steps([588] * 20, 620) == 1


def test_collectives_of_all_ranks(tmp_path: Path) -> None:
    """Rank 1 comes 300 us late; the transfer takes 200 us on both ranks."""
    traces = [Trace(rank, 2) for rank in range(2)]
    for number in range(4):
        begin = 1000.0 * number
        traces[0].all_reduce(begin, begin + 100, 500)
        traces[1].all_reduce(begin, begin + 400, 200)
    curves = collective_curves(imported(tmp_path, *traces))
    assert curves == (MeasuredCollective("all_reduce", 2, (1 << 21,), (200_000.0,)),)
    assert collective_curves(imported(tmp_path, traces[0])) == ()
    cluster = load_cluster("1x4xH100")
    measured = replace(cluster, gpu=replace(cluster.gpu, measured=MeasuredGpu("", collectives=curves)))
    dtype = NCCL_DTYPE_NAMES.index("bfloat16")

    def price(of: object, ranks: int, size: int) -> int:
        return CollectiveModel(of).collective(Coll.ALL_REDUCE, tuple(range(ranks)), size, dtype).duration_ns  # type: ignore[arg-type]

    assert price(measured, 2, 1 << 21) == pytest.approx(200_000, abs=2)
    factor = 200_000 / price(cluster, 2, 1 << 21)
    assert price(measured, 2, 3 << 20) == pytest.approx(factor * price(cluster, 2, 3 << 20), rel=1e-4)
    assert price(measured, 2, 1 << 24) == price(cluster, 2, 1 << 24)
    assert price(measured, 4, 1 << 21) == price(cluster, 4, 1 << 21)


def test_products_are_scaled_only_if_all_differ_to_one_side(tmp_path: Path) -> None:
    """A product that a table has keeps the table's time: its traced time depends on the power limit."""
    assert Products(9, 1.04, (1.02, 1.05)).consistent
    assert not Products(9, 1.01, (0.98, 1.05)).consistent and not Products(3, 1.04, (1.02, 1.05)).consistent
    gpu = load_cluster("1x1xH100").gpu
    operand = TensorSpec("bfloat16", (4096, 4096), (4096, 1))
    query = OperatorSignature("aten::mm", (operand, operand)), (KernelLaunch("nvjet"),)
    table = tmp_path / "mine.parquet"
    write_traced(table, gpu.product, [TracedOperator("mm(bf16[4096,4096], bf16[4096,4096])", 1e9, 0.0, 1)])
    slower = replace(gpu, measured=MeasuredGpu(gpu.product, str(table), products=1.1))
    before, after = (sum(model_for(each).operator(*query).durations) for each in (gpu, slower))
    assert after == pytest.approx(1.1 * before, abs=2)


def test_a_machine_by_its_operators(tmp_path: Path) -> None:
    """Operators of a trace that all take 1.5 times as long as on the machine that is known."""
    known = json.loads(OPERATORS.read_text())
    trace, at = Trace(), 0.0
    for _ in range(2):
        for name, ns in known["own_ns"].items():
            trace.operator(name, at, 1.5 * ns / 1e3)
            at += 2 * ns / 1e3
    trace.kernel("any", at, at + 5, 1.0)
    found = calibrate(imported(tmp_path, trace), None, "mine")
    assert found.host.factor == pytest.approx(1.5 * known["factor"], rel=0.01) and found.fit.operators > 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu = 3", "gpu must be a table"),
        ("[gpu]\nproducts = 1.0", "key 'product' is missing"),
        (
            '[gpu]\nproduct = "X"\n[[gpu.collectives]]\nop = "all_reduce"\nmembers = 2\n'
            "bytes = [4, 2]\nns = [1.0, 2.0]",
            "give ascending bytes",
        ),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'name = "mine"\nbase = "default"\nfactor = 2.0\n{text}\n')
    with pytest.raises(PhantoraError, match=message):
        load_calibration(str(path))


def test_logs_that_do_not_tell(tmp_path: Path) -> None:
    simulated = simulated_log(tmp_path, {"name": "mine", "factor": 1.0})
    real = imported(tmp_path, real_trace(1000.0))
    with pytest.raises(PhantoraError, match="is a simulated log"):
        calibrate(simulated, None, "mine")
    with pytest.raises(PhantoraError, match="its host 'mine' is not built-in"):
        calibrate(real, simulated, "mine")
    with pytest.raises(PhantoraError, match="1 operators to compare the machine by"):
        calibrate(real, None, "mine")


def test_exclusive_times_of_nested_events() -> None:
    start, end = np.array([0, 10, 15, 40, 5]), np.array([100, 30, 20, 50, 8])
    thread = np.array([1, 1, 1, 1, 2])
    assert exclusive_times(start, end, thread).tolist() == [70, 15, 5, 10, 3]
