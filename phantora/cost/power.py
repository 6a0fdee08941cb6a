"""The clock at which a GPU runs a kernel on tensor cores alone: what it draws must stay below the GPU's burst limit.

Power grows with the clock to the GPU's exponent, and with the arithmetic in a second at full clock.
"""

from __future__ import annotations

from phantora.cost.machine import Machine
from phantora.cost.types import Price


def watts(machine: Machine, price: Price) -> float:
    """Dynamic power at the pace of the price's durations; the price has a format of tensor cores."""
    gpu, attention = machine.gpu, price.cls == "attention"
    tensor = gpu.power.attention if attention else gpu.power.tensor
    tensor *= gpu.power.float8 if price.format.startswith(("float8", "float4")) else 1.0
    rate = price.flops * price.computed / max(1, sum(price.durations)) / machine.peak(price.format)
    return gpu.power_watts * (tensor * rate + gpu.power.active * attention)


def burst_clock(machine: Machine, price: Price) -> float:
    """The share of the full clock that the price's durations hold for: 1, or less where the burst limit is met."""
    power, drawn = machine.gpu.power, watts(machine, price)
    burst = (power.burst - power.idle) * machine.gpu.power_watts
    return min(1.0, (burst / drawn) ** (1.0 / (power.exponent - 1.0))) if drawn > 0 else 1.0


def on_fewer_sms(machine: Machine, price: Price, longer: float) -> float:
    """Slowdown of the kernel on fewer SMs, if it would be `longer` at the same clock.

    It draws less there, so the clock may rise. Four products on 116 of 132 SMs of an H100 take 7 to 12 % longer than on
    all, by their waves of tiles alone 11 to 13 %
    (validation/workloads/te_steps.py gpt16b-tp2-bf16, gpt16b-tp2-overlap-bf16). 21 others on 116 and 100 SMs
    are 2.5 % off on average (fewer_sms.py).
    """
    power = machine.gpu.power
    if not price.format or price.format in power.without_tensor_cores or longer <= 1.0:
        return longer
    clock = burst_clock(machine, price)
    if clock >= 1.0:
        return longer
    return float(longer * clock / min(1.0, clock * longer ** (1.0 / power.exponent)))
