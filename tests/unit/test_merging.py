"""phantora profile merge: tables that others measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from phantora.cli.profile import profile
from phantora.cost.table import Entry, TimedKernel, read_table, write_table

ABOUT = {"gpu": "NVIDIA H100 80GB HBM3", "torch": "2.11.0+cu130", "cuda": "13.0", "driver": "580"}
PRODUCT = '{"op":"aten::mm","args":[{"t":"bfloat16","s":[8192,8192]},{"t":"bfloat16","s":[8192,8192]}]}'
RELU = '{"op":"aten::relu","args":[{"t":"bfloat16","s":[%d]}]}'


def entry(signature: str, ns: int) -> Entry:
    return Entry(
        signature,
        "",
        (TimedKernel(name="k", kind="kernel", grid=(1, 1, 1), block=(128, 1, 1), cold=ns, warm=ns, spread=0.01),),
        1980,
    )


def merged(tmp_path: Path, *tables: tuple[dict[str, str], list[Entry]]) -> tuple[int, str, Path]:
    for at, (about, entries) in enumerate(tables):
        write_table(tmp_path / f"{at}.parquet", about, entries)
    out = tmp_path / "out.parquet"
    done = CliRunner().invoke(
        profile, ["merge", *(str(tmp_path / f"{at}.parquet") for at in range(len(tables))), "--out", str(out)]
    )
    return done.exit_code, done.output + str(done.exception or ""), out


def test_the_last_table_counts_and_differences_are_told(tmp_path: Path) -> None:
    first = [entry(RELU % 64, 2000), entry(RELU % 128, 2000)]
    second = [entry(RELU % 128, 3000), entry(PRODUCT, 1_400_000)]
    status, text, out = merged(tmp_path, (ABOUT, first), (ABOUT, second))
    assert status == 0, text
    assert "1 of them new; those known before take 1.50 times as long in the median, 1 differ by more" in text
    assert sorted(kernel.cold for each in read_table(out) for kernel in each.kernels) == [2000, 3000, 1_400_000]


@pytest.mark.parametrize("name", ["gpu", "torch", "cuda"])
def test_tables_of_different_kinds_are_refused(tmp_path: Path, name: str) -> None:
    other = ABOUT | {name: "another"}
    status, text, out = merged(tmp_path, (ABOUT, [entry(RELU % 64, 2000)]), (other, [entry(RELU % 64, 2000)]))
    assert status != 0
    assert f"was measured with {name} another" in text and "one table contains one GPU, torch and CUDA" in text
    assert not out.exists()


def test_a_product_faster_than_the_peak_is_not_believed(tmp_path: Path) -> None:
    status, text, out = merged(tmp_path, (ABOUT, [replace(entry(PRODUCT, 300_000))]))
    assert status != 0 and not out.exists()
    assert "1 operators are faster than the peak of this GPU: aten::mm(bfloat16[8192,8192]" in text
