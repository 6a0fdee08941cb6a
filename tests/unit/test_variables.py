"""Environment variables are simulated, or named as not simulated."""

from __future__ import annotations

import pytest

from phantora.sim.variables import NOT_SIMULATED, Variables


@pytest.mark.parametrize(
    "name",
    ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT"],
)
def test_torch_reads_its_own_variables(name: str) -> None:
    assert Variables.read({name: "x"}) == Variables({name: "x"}, {})


def test_what_is_not_simulated_is_named_with_what_happens_instead() -> None:
    read = Variables.read({**dict.fromkeys(NOT_SIMULATED, "1"), "HOME": "/", "CUBLAS_WORKSPACE_CONFIG": ""})
    assert read.simulated == {}
    assert set(read.ignored) == set(NOT_SIMULATED) - {"CUBLAS_WORKSPACE_CONFIG"}


def test_one_hardware_queue_is_simulated_and_others_are_named() -> None:
    assert Variables.read({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}).simulated == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in Variables.read({"CUDA_DEVICE_MAX_CONNECTIONS": "32"}).ignored
