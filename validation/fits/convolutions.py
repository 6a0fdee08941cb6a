"""Fits the ranges over which convolutions resemble each other; prints phantora/cost/families/convolution/ranges.py.

    python -m validation.fits.convolutions [--without FILE.parquet]

For each direction (output, input's gradient, weight's gradient) members of the H100's table are predicted from all the
others (leave one out), and variances and ranges maximise the likelihood of what was measured. All passes with random
sizes and those of unusual models are members (the files of `RANDOM` and `UNUSUAL`), and some others of the table.
Errors of random sizes count three times. A short range costs a little, so that what tells nothing has none.
"""

from __future__ import annotations

import argparse
import random
import textwrap
from math import log
from pathlib import Path

import torch

from phantora.cost.families.convolution.nearest import MEAN, coordinates
from phantora.cost.families.convolution.passes import INPUT, OUTPUT, WEIGHT, timed_passes
from phantora.cost.families.convolution.predict import OPERATORS
from phantora.cost.families.convolution.ranges import COORDINATES
from phantora.cost.machine import Machine
from phantora.cost.table import Entry, Table, read_table, signature_key
from phantora.cost.table_files import DATA
from phantora.hardware import load_gpu
from validation.data import rows

DRAWN = "2026-11-23-h100/convolutions.parquet"
RANDOM = ("operators-1", "operators-2", "convolutions-1", "convolutions-2")
UNUSUAL = ("models",)
DIRECTIONS = (OUTPUT, INPUT, WEIGHT)
OTHERS, STEPS, RATE, SHORT = 150, 35, 0.15, 0.0005
Floats = torch.Tensor


def keys_of(names: tuple[str, ...]) -> set[str]:
    """Signatures of the convolutions of these lists."""
    return {row["key"] for row in rows(DRAWN) if row["drawn"] in names}


def convolutions(table: Table) -> dict[str, Entry]:
    """Entries by the keys of their signatures."""
    return {signature_key(e.parsed, e.compute): e for name in OPERATORS for e in table.of_operator(name)}


def chosen(table: Table, hidden: set[str]) -> dict[str, tuple[Floats, Floats, Floats]]:
    """By direction: coordinates, logarithms of measured over analytic time, and weights of members."""
    machine, drawn, unusual = Machine(load_gpu("H100")), keys_of(RANDOM), keys_of(UNUSUAL)
    found = convolutions(table)
    entries = list(found.items())
    random.Random(0).shuffle(entries)
    entries.sort(key=lambda pair: pair[0] not in drawn and pair[0] not in unusual)
    rows: dict[str, list[tuple[list[float], float, float]]] = {}
    others = dict.fromkeys(DIRECTIONS, 0)
    for key, entry in entries:
        if key in hidden or min(others.values()) >= OTHERS:
            continue
        for work, ns in timed_passes(entry):
            usual = key not in drawn and key not in unusual
            others[work.which] += usual
            if not usual or others[work.which] <= OTHERS:
                place, analytic = coordinates(machine, work)
                rows.setdefault(work.which, []).append((place, log(ns / analytic), 3.0 if key in drawn else 1.0))
    columns = {which: list(zip(*found, strict=True)) for which, found in rows.items()}
    return {
        which: tuple(torch.tensor(column, dtype=torch.float64) for column in found)  # type: ignore[misc]
        for which, found in columns.items()
    }


def covariance(at: Floats, ranges: Floats, variances: Floats) -> Floats:
    """Between members."""
    total = torch.zeros(len(at), len(at), dtype=torch.float64)
    for row, variance in zip(ranges, variances, strict=True):
        places = at * row
        squares = (places * places).sum(1)
        away = (squares[:, None] + squares[None] - 2 * places @ places.T).clamp_min(1e-10).sqrt()
        total = total + variance * (1 + away) * torch.exp(-away)
    return total


def fit(at: Floats, values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Ranges (their inverse), and variances with the noise last."""
    spread = at.std(0) + 0.3
    ranges = torch.stack([torch.log(0.35 / spread), torch.log(0.15 / spread)]).requires_grad_()
    variances = torch.log(torch.tensor([0.3, 0.3, 0.03], dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([ranges, variances], lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        own = torch.eye(len(at), dtype=torch.float64) * variances[-1].exp()
        inverse = torch.linalg.inv(covariance(at, ranges.exp(), variances[:-1].exp()) + own)
        left = 1.0 / inverse.diagonal()
        error = (inverse @ (values - MEAN)) * left
        loss = (weights * (left.log() + error * error / left) / 2).sum() / weights.sum() + SHORT * ranges.exp().sum()
        loss.backward()
        optimizer.step()
    left_out = error[weights > 1].abs().median().item()
    print(f"# {len(at)} members, median error {left_out:.3f}, loss {loss.item():.3f}", flush=True)
    return ranges.detach().exp(), variances.detach().exp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", type=Path, action="append", default=[], help="what is measured there is no member")
    options = parser.parse_args()
    hidden = {key for path in options.without for key in convolutions(read_table(path))}
    members = chosen(read_table(DATA / "h100-sxm.parquet"), hidden)
    found = {which: fit(*members[which]) for which in DIRECTIONS}
    for which, (ranges, variances) in found.items():
        print(f'    "{which}": Fitted(')
        for row in ranges.tolist():
            numbers = ", ".join(f"{value:.3g}" for value in row)
            print("        (\n" + textwrap.indent(textwrap.fill(numbers, 104), " " * 12) + ",\n        ),")
        print(f"        ({', '.join(f'{value:.3g}' for value in variances.tolist()[:-1])}),")
        print(f"        {float(variances[-1]):.3g},\n    ),")
    print("#", len(COORDINATES), "coordinates")


if __name__ == "__main__":
    main()
