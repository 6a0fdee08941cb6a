"""Data files of GPUs, hosts and clusters, and what is said about mistakes in them."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantora.cost.types import CLASSES
from phantora.errors import PhantoraError
from phantora.hardware import REFERENCE_HOST, device_fields, gpu_names, load_cluster, load_gpu, load_host
from phantora.hardware.gpus import DATA
from phantora.hardware.prices import rate_of, rental_prices
from phantora.hardware.types import LOADS
from phantora.profile.host import OWN, Probe, Row, compare
from phantora.profile.script import UNITS
from phantora.wire.layout import Api, Device, dtype
from validation.data import HERE, rows


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_is_complete_and_plausible(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.sources
    assert gpu.peak_flops["float16"] >= gpu.peak_flops["bfloat16"] >= gpu.peak_flops["tfloat32"] >= 8e12
    assert 0 < gpu.context_bytes < gpu.memory_bytes // 10
    assert gpu.smem_per_block_optin <= gpu.smem_per_sm <= 256 * 1024
    # Bus width and memory clock give the bandwidth: two transfers a clock.
    computed = gpu.bus_width / 8 * gpu.memory_clock_khz * 1e3 * 2
    assert computed == pytest.approx(gpu.hbm_bandwidth, rel=0.03)
    # Dense FP16 per SM and clock is a power of two; boost clocks in data sheets differ a little.
    per_clock = gpu.peak_flops["float16"] / gpu.sms / (gpu.clock_khz * 1e3)
    assert any(per_clock == pytest.approx(n, rel=0.16) for n in (512, 1024, 2048, 4096, 8192))
    assert set(gpu.interference.classes) <= set(CLASSES)
    assert all(factor >= 1.0 for factor in gpu.interference.classes.values())


def test_each_data_file_is_one_gpu() -> None:
    assert len(list((DATA / "gpus").glob("*.toml"))) == len(gpu_names())


@pytest.mark.parametrize(
    ("alias", "product"),
    [
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("h100-sxm", "NVIDIA H100 80GB HBM3"),
        ("H100_PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB"),
        ("rtx3090", "NVIDIA GeForce RTX 3090"),
        ("B200", "NVIDIA B200"),
        ("L40S", "NVIDIA L40S"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("GH200", "NVIDIA GH200 144G HBM3e"),
        ("V100", "Tesla V100-SXM2-32GB"),
    ],
)
def test_aliases(alias: str, product: str) -> None:
    assert load_gpu(alias).product == product


def test_aliases_are_unique() -> None:
    seen: dict[str, str] = {}
    for name in gpu_names():
        for alias in (name, *load_gpu(name).aliases):
            assert seen.setdefault(alias.upper(), name) == name


def test_device_fields_fill_the_shared_struct() -> None:
    values = device_fields(load_gpu("H200"))
    assert set(values) == {field[1] for field in Device.fields} - {"pad"}
    struct = dtype(Device)
    import numpy as np

    record = np.zeros(1, struct)
    for key, value in values.items():
        record[0][key] = value
        assert record[0][key] == value
    assert values["memory_bytes"] == 150109880320


def test_unknown_gpu_names_near_ones() -> None:
    with pytest.raises(PhantoraError, match=r"cluster 'H100x8': write 1x8xH100$"):
        load_cluster("H100x8")
    assert load_cluster("gb200-nvl72:1").gpu.name == "GB200"  # a system that has a GPU's name
    with pytest.raises(PhantoraError, match=r"unknown GPU 'H2000'.*H200-SXM"):
        load_gpu("H2000")
    with pytest.raises(PhantoraError, match=r"Known: .*A100-SXM-40GB.*B200-SXM"):
        load_gpu("qqqq")
    with pytest.raises(PhantoraError, match="MI300X is no NVIDIA GPU"):
        load_gpu("MI300X")


@pytest.mark.parametrize(
    ("spec", "hosts", "gpus", "name"),
    [
        ("2x8xH100", 2, 8, "H100-SXM"),
        ("8xH100", 1, 8, "H100-SXM"),
        ("1x4xH200", 1, 4, "H200-SXM"),
        ("16 x 8 x a100-80gb", 16, 8, "A100-SXM-80GB"),
        ("4", 1, 4, "H100-SXM"),
        ("B200", 1, 1, "B200-SXM"),
        ("RTX3090", 1, 1, "RTX3090"),
        ("2xRTX3090", 1, 2, "RTX3090"),
    ],
)
def test_cluster_shorthands(spec: str, hosts: int, gpus: int, name: str) -> None:
    cluster = load_cluster(spec)
    assert (cluster.hosts, cluster.gpus_per_host, cluster.gpu.name) == (hosts, gpus, name)
    assert cluster.world_size == hosts * gpus
    assert cluster.intra.bandwidth > 0 and cluster.inter.bandwidth > 0


def test_gpus_without_nvlink_use_pcie() -> None:
    cluster = load_cluster("8xL40S")
    assert cluster.gpu.nvlink_bandwidth == 0
    assert cluster.intra.bandwidth < cluster.gpu.pcie_bandwidth
    assert device_fields(cluster.gpu)["nvlink"] == 0


@pytest.mark.parametrize("spec", ["", "2x", "x8xH100", "2x8x", "2x8xH100x3x", "0x8xH100", "3x4", "8xH900", "-1xH100"])
def test_malformed_clusters(spec: str) -> None:
    with pytest.raises(PhantoraError) as caught:
        load_cluster(spec)
    assert "H100" in str(caught.value)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_cluster_file(tmp_path: Path) -> None:
    spec = write(
        tmp_path / "lab.toml",
        'hosts = 4\ngpus_per_host = 2\ngpu = "H100-PCIe"\n[inter]\nbandwidth = 1.25e10\n[intra]\nlatency_ns = 9\n',
    )
    cluster = load_cluster(spec)
    assert (cluster.name, cluster.world_size, cluster.gpu.name) == ("lab", 8, "H100-PCIe")
    assert cluster.inter.bandwidth == 1.25e10
    assert cluster.intra.latency_ns == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus_per_host = 2", "gpu must be"),
        ('gpu = "H100"', "gpus_per_host must be"),
        ('gpu = "H100"\ngpus_per_host = 0', "at least 1"),
        ('gpu = "H100"\ngpus_per_host = 1\nnodes = 2', "unknown key 'nodes'"),
        ('gpu = "H100"\ngpus_per_host = 1\n[intra]\nspeed = 2', "unknown key 'speed'"),
        ('gpu = "H100"\ngpus_per_host = 1\n[nccl]\nNCCL_ALGO = 2', "NCCL's variables as text"),
        ('gpu = "H100"\ngpus_per_host = 1\n[intra]\nbandwidth = "fast"', "bandwidth must be a number"),
        ('gpu = "H100"\ngpus_per_host = 1\n[inter]\nbandwidth = 0', "must be positive"),
        ("gpu = ", "not valid TOML"),
    ],
)
def test_mistakes_in_cluster_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PhantoraError, match=message):
        load_cluster(write(tmp_path / "bad.toml", text))


def test_missing_file() -> None:
    with pytest.raises(PhantoraError, match=r"cannot read nowhere\.toml"):
        load_cluster("nowhere.toml")


def test_own_gpu_file(tmp_path: Path) -> None:
    text = (DATA / "gpus" / "h100-sxm.toml").read_text()
    path = write(tmp_path / "mine.toml", text.replace('name = "H100-SXM"', 'name = "MINE"'))
    gpu = load_gpu(path)
    assert gpu.name == "MINE" and gpu.calibrated_on == "H200-SXM"
    assert load_cluster(f"2x8x{path}").name == "2x8xMINE" and load_cluster(f"4x{path}").gpu == gpu
    same = write(tmp_path / "theirs.toml", text)
    assert load_cluster(f"1x8x{same}").name == "1x8xtheirs"  # the shipped one is 1x8xH100-SXM
    broken = write(tmp_path / "broken.toml", text.replace("sms = 132", ""))
    with pytest.raises(PhantoraError, match="'sms' is missing"):
        load_gpu(broken)
    typed = write(tmp_path / "typed.toml", text.replace("sms = 132", "sms = 1.5"))
    with pytest.raises(PhantoraError, match="sms must be a whole number"):
        load_gpu(typed)
    reference = write(tmp_path / "ref.toml", text.replace('calibration = "H200-SXM"', 'calibration = "H100-SXM"'))
    with pytest.raises(PhantoraError, match="calibration must be"):
        load_gpu(reference)
    low = text.replace("power_watts = 700", "power_watts = 700\nlimit_watts = 140")
    limited = write(tmp_path / "limited.toml", low)
    with pytest.raises(PhantoraError, match="limit_watts is 140, and H100-SXM idles at 147 W"):
        load_gpu(limited)


def test_a_calibration_of_another_gpu_with_changes(tmp_path: Path) -> None:
    """RTX 4090 reaches all of its peak; everything else is as on the H200."""
    own, source = load_gpu("RTX4090").calibration, load_gpu("H200").calibration
    assert own.gemm_peak == 1.05 and replace(own, gemm_peak=source.gemm_peak) == source
    text = (DATA / "gpus" / "rtx-4090.toml").read_text()
    (tmp_path / "x.toml").write_text(text.replace('of = "H200-SXM"', 'of = "RTX3090"'))
    with pytest.raises(PhantoraError, match="calibration must be a table, or the name of a GPU that has one"):
        load_gpu(str(tmp_path / "x.toml"))


def test_prices_have_a_source_and_a_date() -> None:
    prices = rental_prices()
    assert {"H100-SXM", "H200-SXM", "B200-SXM", "GB200"} <= {price.gpu for price in prices}
    for price in prices:
        assert load_gpu(price.gpu).name == price.gpu and 0.1 < price.dollars < 30
        assert price.source.startswith("https://") and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", price.date)


def test_the_rate_of_a_gpu_is_the_median_of_its_prices(tmp_path: Path) -> None:
    row = (
        '[[price]]\nprovider = "{}"\noffer = "x"\ngpu = "H100-SXM"\n'
        'dollars = {}\nterms = "{}"\nsource = "a"\ndate = "b"\n'
    )
    path = tmp_path / "prices.toml"
    path.write_text(
        "".join(row.format(*each) for each in (("a", 2, "on-demand"), ("b", 4.5, "on-demand"), ("a", 1, "spot")))
    )
    rate = rate_of("H100", rental_prices(path))
    assert rate is not None and (rate.dollars, rate.low, rate.high) == (3.25, 2.0, 4.5)
    assert str(rate_of("H100", rental_prices(path), "spot")) == "$1.00"
    assert rate_of("H200", rental_prices(path)) is None and rate_of("H100", rental_prices(path), provider="c") is None
    path.write_text(row.format("a", 2, "forever"))
    with pytest.raises(PhantoraError, match=r"prices.toml:6: price.0.terms: 'forever' is none of on-demand"):
        rental_prices(path)


def test_host_profile_has_every_call() -> None:
    host = load_host("default")
    assert set(host.api_ns) == set(Api.names())
    assert all(isinstance(ns, int) for ns in host.api_ns.values())


FITS = HERE / "fits"
HOST_SPEED = 0.88  # of the profile's host by that of the host measured: data/hosts/emerald-rapids-fast.toml


def charged(row: dict[str, Any], kinds: tuple[str, ...] = ("",)) -> float:
    """ns at the reference host's prices of what `row` counted, of costs whose names begin so."""
    api_ns = load_host(REFERENCE_HOST).api_ns
    named = ((Api.names()[int(api)], count) for api, count in row["charges"].items())
    return float(sum(api_ns[name] * count * UNITS.get(name, 1.0) for name, count in named if name.startswith(kinds)))


def test_host_costs_add_up() -> None:
    """Charges of steps in the simulator, at the profile's prices, against a real host."""
    real = {row["name"]: row["us"] * HOST_SPEED for row in rows("2026-11-21-h200x4/host_time.jsonl") if "us" in row}
    charges = rows(FITS / "host_time_charges.jsonl")
    errors = {row["name"]: charged(row) / 1e3 / real[row["name"]] - 1 for row in charges}
    steps = {name: error for name, error in errors.items() if "blocks" in name or "bottlenecks" in name}
    assert len(steps) >= 12
    assert all(abs(error) < 0.15 for error in steps.values()), steps
    assert statistics.mean(map(abs, steps.values())) < 0.06, steps
    kinds = ("AdamW foreach", "AdamW loop", "SGD foreach")
    optimizers = {f"{kind} {count}": errors[f"{kind} {count}"] for kind in kinds for count in (20, 200)}
    assert all(abs(error) < 0.05 for error in optimizers.values()), optimizers


def test_host_costs_hold_for_workloads() -> None:
    """The CPU time of 25 workloads without CUDA calls on four hosts, each divided by its factor, against what they are
    charged for without these calls."""
    charges = rows(FITS / "host_workload_charges.jsonl")
    counted = {row["run_id"].removeprefix("host_"): charged(row, OWN) for row in charges}
    ratios: dict[str, list[float]] = {}
    pairs = rows("2026-11-25-h100/host_pairs.parquet")
    for session in "abcd":
        lines = [row for row in pairs if row["session"] == session]
        probe = {row["name"]: Row(row["kind"], row["null_ns"], row["null_cpu_ns"]) for row in lines if "kind" in row}
        found = compare(Probe({}, probe), load_host(REFERENCE_HOST))
        assert found is not None
        for row in lines:
            if "run_id" in row:
                own = statistics.median(row["null_cpu_times"]) * 1e9 / found.factor
                workload = row["run_id"].removeprefix("host_")
                ratios.setdefault(workload, []).append(math.log(counted[workload] / own))
    assert len(ratios) == 25
    errors = {workload: statistics.mean(each) for workload, each in ratios.items()}
    assert statistics.mean(map(abs, errors.values())) < 0.09, errors
    assert max(map(abs, errors.values())) < 0.35, errors  # tensor parallel; see validation/fits/host.py


def test_the_slowest_rank_decides(tmp_path: Path) -> None:
    host = load_host("default")
    assert host.pace(1) == 1
    assert 1.15 < host.pace(4) < 1.18 < host.pace(8) < 1.25
    assert load_host("3").pace(8) == host.pace(8)
    assert load_host(REFERENCE_HOST).pace(4) == load_host("grace").pace(4) == 1
    mine = write(tmp_path / "mine.toml", 'name = "mine"\nbase = "grace"\nfactor = 1.5\n')
    assert load_host(mine).pace(8) == 1
    measured = write(tmp_path / "measured.toml", Path(mine).read_text().replace("base", "measured = true\nbase"))
    assert load_host(measured).pace(8) == host.pace(8)
    with pytest.raises(PhantoraError, match="rank_spread must be a number from 0"):
        load_host(write(tmp_path / "wrong.toml", 'name = "wrong"\nbase = "grace"\nrank_spread = 1.5\n'))


def test_host_by_factor_and_base(tmp_path: Path) -> None:
    host = load_host("default")
    twice = load_host("2")
    assert twice.factor == 2 * host.factor
    assert twice.api_ns == {name: ns if name in LOADS else 2 * ns for name, ns in host.api_ns.items()}
    assert load_cluster("2x8xH100").host == host
    text = 'name = "mine"\nbase = "emerald-rapids-fast"\nfactor = 1.5\nspread = [0.9, 1.2]\n[api_ns]\nLAUNCH = 5000\n'
    mine = load_host(write(tmp_path / "mine.toml", text))
    assert (mine.factor, mine.spread, mine.measured) == (1.5, (0.9, 1.2), False)
    assert mine.api_ns["LAUNCH"] == 5000
    assert mine.api_ns["OP_PYTHON"] == load_host("emerald-rapids-fast:1.5").api_ns["OP_PYTHON"]
    cluster = 'gpu = "H100"\ngpus_per_host = 1\n'
    assert load_cluster(write(tmp_path / "c.toml", cluster + 'host = "mine.toml"\n')).host == mine
    assert load_cluster(write(tmp_path / "d.toml", cluster + "host = 2\n")).host.api_ns == twice.api_ns
    for line, message in (("host = true", "must be a built-in name"), ("host = 99", "between 0.1 and 20")):
        with pytest.raises(PhantoraError, match=message):
            load_cluster(write(tmp_path / "e.toml", cluster + line))
    for old, new, message in (
        ('"emerald-rapids-fast"', '"fast"', "f.toml:2: base must be one of default, em"),
        ("1.5", "-1", "factor must be a number between 0.1 and 20"),
        ("0.9", "1.1", r"spread must be \[LOW, HIGH\]"),
        ("LAUNCH", "LUNCH", "LUNCH is not a known call"),
    ):
        with pytest.raises(PhantoraError, match=message):
            load_host(write(tmp_path / "f.toml", text.replace(old, new)))
        load_host.__globals__["_from_file"].cache_clear()


def test_host_file_mistakes(tmp_path: Path) -> None:
    text = (DATA / "hosts" / "emerald-rapids-fast.toml").read_text()
    with pytest.raises(PhantoraError, match=r"api_ns\.LAUNCH is missing"):
        load_host(write(tmp_path / "a.toml", text.replace("\nLAUNCH = ", "\nLAUNCHES = ")))
    with pytest.raises(PhantoraError, match="must not be negative"):
        load_host(write(tmp_path / "b.toml", text.replace("MEMSET = 2300", "MEMSET = -1")))
    with pytest.raises(PhantoraError, match="unknown host 'laptop'; known: default, em"):
        load_host("laptop")
