"""Passes of convolutions: what is the same work, what its tiles take, and what the nearest ones take."""

from __future__ import annotations

import statistics
from dataclasses import replace
from math import expm1, log

import pytest

from phantora.cost import OperatorSignature, TensorSpec
from phantora.cost.families.convolution.nearest import Nearest, Neighbour, coordinates, points_of
from phantora.cost.families.convolution.passes import INPUT, OUTPUT, WEIGHT, Pass, passes_of, run_passes, timed_passes
from phantora.cost.families.convolution.predict import DEVIATIONS, OPERATORS
from phantora.cost.families.convolution.ranges import COORDINATES, FITTED
from phantora.cost.families.convolution.tiled_transforms import is_tiled, may_tile, tiled_ns
from phantora.cost.families.convolution.tiles import looped, pass_ns
from phantora.cost.families.convolution.transforms import transformed, transforms_ns
from phantora.cost.machine import Machine
from phantora.cost.table import Entry, read_table, signature_key
from phantora.cost.table_files import DATA
from phantora.cost.tensors import contiguous_strides
from phantora.cost.timing import kernel_ns, own_kernels
from phantora.hardware import load_gpu
from validation.data import rows

MACHINE = Machine(load_gpu("H100"))
TABLE = read_table(DATA / "h100-sxm.parquet")
PLAIN = Pass(
    which=OUTPUT,
    batch=16,
    channels=128,
    filters=128,
    groups=1,
    inside=784,
    outside=784,
    taps=9,
    stride=1,
    dilation=1,
    dimensions=2,
    last=True,
    dtype="bfloat16",
    arithmetic="half",
)


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec("bfloat16", shape, contiguous_strides(shape))


def ns(work: Pass) -> float:
    return pass_ns(MACHINE, work)[0]


def test_a_transposed_convolution_is_the_gradient_of_a_plain_one() -> None:
    image, weight, larger = tensor(8, 64, 14, 14), tensor(64, 32, 4, 4), tensor(8, 32, 28, 28)
    ways = ((2, 2), (1, 1), (1, 1))
    up = OperatorSignature("aten::cudnn_convolution_transpose", (image, weight, (1, 1), (0, 0), (2, 2), (1, 1), 1))
    plain = OperatorSignature(
        "aten::convolution_backward", (image, larger, weight, (0,), *ways, False, (0, 0), 1, (True, True, False))
    )
    back = OperatorSignature(
        "aten::convolution_backward", (larger, image, weight, (0,), *ways, True, (0, 0), 1, (True, True, False))
    )
    (output,) = passes_of(up, "")
    of_input, of_weight = passes_of(plain, "")
    assert output == of_input and output.which == INPUT
    assert [work.which for work in passes_of(back, "")] == [OUTPUT, WEIGHT]
    assert passes_of(back, "")[1] == of_weight
    assert (output.channels, output.filters, output.inside, output.outside, output.stride) == (32, 64, 784, 196, 4)


def test_groups_and_sequences() -> None:
    grouped = OperatorSignature(
        "aten::cudnn_convolution", (tensor(2, 96, 1, 500), tensor(64, 24, 1, 3), (0, 2), (1, 1), (1, 2), 4)
    )
    (work,) = passes_of(grouped, "tf32")
    assert (work.groups, work.dimensions, work.dilation, work.last, work.depthwise) == (4, 1, 2, False, False)
    assert passes_of(OperatorSignature("aten::cudnn_convolution", (tensor(2, 96, 1, 500),)), "") == ()


def test_what_kernels_pad_is_computed() -> None:
    """A tap at a time: 48 channels take what 64 do. 45 are padded by kernels of their own."""
    odd, narrow, wide = (ns(replace(PLAIN, batch=64, channels=channels, filters=256)) for channels in (45, 48, 64))
    assert narrow == pytest.approx(wide, rel=0.05) and odd > narrow + 5e3
    one, two = (replace(PLAIN, batch=1, outside=64 * tiles, inside=64 * tiles, filters=64) for tiles in (132, 133))
    assert ns(two) > 1.15 * ns(one)  # another wave


def test_layouts_groups_and_volumes_cost_what_they_do() -> None:
    assert ns(replace(PLAIN, last=False)) > 1.2 * ns(PLAIN)
    many = replace(PLAIN, groups=8, channels=8 * 56, filters=8 * 56)
    assert ns(many) > 8 * 4 * 1900.0
    # Measured: 17.8 ms, where tensor cores would take 0.1.
    volume = Pass(
        which=OUTPUT,
        batch=1,
        channels=448,
        filters=32,
        groups=8,
        inside=4096,
        outside=4096,
        taps=125,
        stride=1,
        dilation=1,
        dimensions=3,
        last=True,
        dtype="bfloat16",
        arithmetic="half",
    )
    assert 8e6 < ns(volume) < 30e6


def test_a_member_is_what_it_is_and_far_ones_are_doubted() -> None:
    assert len(COORDINATES) == len(coordinates(MACHINE, PLAIN)[0]) == len(FITTED[OUTPUT].near)
    measured = {replace(PLAIN, batch=2**n): 1.5 for n in range(1, 8)}
    guesses = nearest(measured)
    within = guesses.read(replace(PLAIN, batch=16))
    far = guesses.read(replace(PLAIN, batch=16, groups=16, dimensions=3, taps=27, dilation=4, last=False))
    assert within.ns == pytest.approx(1.5 * ns(replace(PLAIN, batch=16)), rel=0.1)
    assert within.deviation < 0.5 * far.deviation


def nearest(measured: dict[Pass, float]) -> Nearest:
    """Prediction from passes that took that many times their time by tiles."""
    import numpy as np

    from phantora.cost.training_points import TrainingPoints

    at = np.array([coordinates(MACHINE, work)[0] for work in measured])
    return Nearest(MACHINE, OUTPUT, TrainingPoints(at, np.array([log(ratio) for ratio in measured.values()])))


def drawn(name: str) -> list[Entry]:
    """Convolutions of the shipped table that one list of random operators named."""
    keys = {row["key"] for row in rows("2026-11-23-h100/convolutions.parquet") if row["drawn"] == name}
    every = (entry for operator in OPERATORS for entry in TABLE.of_operator(operator))
    return [entry for entry in every if signature_key(entry.parsed, entry.compute) in keys]


def test_random_ones_tell_of_other_random_ones() -> None:
    """A small part of what `validation/compare/leave_out.py --table` does; the shipped table has 50 times as many
    members."""
    families = points_of(MACHINE, drawn("operators-1"))
    guesses = {which: Nearest(MACHINE, which, points) for which, points in families.items()}
    found: list[tuple[Neighbour, float]] = []
    for entry in drawn("operators-2")[::2]:
        found += [(guesses[work.which].read(work), real) for work, real in timed_passes(entry)]
    errors = [abs(neighbour.ns / real - 1.0) for neighbour, real in found]
    assert statistics.median(errors) < 0.35
    pairs = zip(errors, found, strict=True)
    within = [error <= expm1(DEVIATIONS * neighbour.deviation) for error, (neighbour, _) in pairs]
    assert 0.75 < sum(within) / len(within) < 0.98


def test_gradients_by_fourier_transforms_take_what_was_measured() -> None:
    """Gradients within the limits of `transformed`: their kernels from the first transform on."""
    found = {}
    for entry in TABLE.of_operator("convolution_backward"):
        *_, work = passes_of(entry.parsed, entry.compute) or (PLAIN,)
        if transformed(work):
            names = [kernel.name for kernel in own_kernels(entry)]
            first = next(i for i, name in enumerate(names) if "flip_filter" in name)
            ns = sum(kernel_ns(kernel, "convolution") for kernel in own_kernels(entry)[first:])
            found[work.batch, work.channels, work.filters] = transforms_ns(MACHINE, work) / ns
    assert found == {(64, 128, 32): pytest.approx(1.0, abs=0.15), (48, 256, 64): pytest.approx(1.0, abs=0.15)}


def test_filters_as_large_as_the_image_take_what_was_measured() -> None:
    """Double backward passes. Extrapolated from neighbours some take 0.6 times as long."""
    machine, errors = Machine(load_gpu("H200")), []
    for entry in read_table(DATA / "h200-sxm.parquet").of_operator("cudnn_convolution"):
        errors += [abs(ns / pass_ns(machine, work)[0] - 1) for work, ns in timed_passes(entry) if looped(machine, work)]
    assert len(errors) > 50 and statistics.median(errors) < 0.06 and statistics.quantiles(errors, n=10)[-1] < 0.2


def test_transforms_of_tiles_take_what_their_kernels_took() -> None:
    """An H200's gradients in float32 without TF32: three kernels a tile."""
    machine, table = Machine(load_gpu("H200")), read_table(DATA / "h200-sxm.parquet")
    found = [
        (work, sum(kernel_ns(kernel, "convolution") for kernel in ran))
        for name in OPERATORS
        for entry in table.of_operator(name)
        for work, ran in run_passes(entry)
        if may_tile(work) and not work.last and is_tiled(kernel.name for kernel in ran)
    ]
    errors = [abs(log(tiled_ns(machine, work) / real)) for work, real in found]
    assert len(found) > 30 and statistics.mean(errors) < 0.12 and max(errors) < 0.4
