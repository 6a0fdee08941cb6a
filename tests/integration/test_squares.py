"""``x * x`` reads its tensor once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs import records, trace

SCRIPT = """
import torch
x, y, total = (torch.zeros(1 << 26, device="cuda") for _ in range(3))
for _ in range(2):
    x * y
    x * x
    x * x[:]
    x * 2.0
    torch._foreach_addcmul_([total], [x], [y], 0.1)
    torch._foreach_addcmul_([total], [x], [x], 0.1)
    torch._foreach_lerp_([total], [x], 0.1)
torch.cuda.synchronize()
"""


def test_a_square_takes_the_time_of_one_operand_less(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(SCRIPT)
    run = trace(tmp_path, "squares.py")
    assert run.log is not None
    found: dict[tuple[int, str], float] = {}
    for row in records(run.log, "kernel", "link", "op", "start", "end"):
        if row["op"].startswith(("aten::mul", "aten::_foreach")):
            key = row["link"], row["op"]
            found[key] = found.get(key, 0.0) + row["end"] - row["start"]
    product, square, alias, scaled, sums, squares, means = list(found.values())[-7:]
    assert square == pytest.approx(scaled, rel=0.03) and alias == pytest.approx(scaled, rel=0.03)
    assert squares == pytest.approx(means, rel=0.03)
    assert product > 1.3 * square and sums > 1.2 * squares
    assert {op for _, op in found} == {
        "aten::mul.Tensor",
        "aten::_foreach_addcmul_.Scalar",
        "aten::_foreach_lerp_.Scalar",
    }
