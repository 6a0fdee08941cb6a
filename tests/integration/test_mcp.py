"""An agent with the tools of `phantora mcp` answers the questions of docs/howto, over the SDK's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client

from phantora.cli.mcp import TOOLS, server
from tests.support.runs import SAMPLES

pytestmark = pytest.mark.usefixtures("shared_server")
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
LOG = str(GOLDEN / "small.arrow")


def with_client(talk: Callable[[Any], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with Client(server()) as client:
            await talk(client)

    asyncio.run(connected())


def test_every_tool_has_the_schemas_of_its_command() -> None:
    async def talk(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tuple(tools) == TOOLS
        for tool in tools.values():
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            jsonschema.Draft202012Validator.check_schema(tool.output_schema)
            assert tool.description and not {"help", "as_json"} & set(tool.input_schema["properties"])
        trace = tools["trace"].input_schema
        assert trace["required"] == ["target"] and trace["properties"]["target"]["type"] == "array"
        assert trace["properties"]["host_time"]["enum"] == ["modelled", "measured", "none"]

    with_client(talk)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("analyze", {"log": LOG}, "a step, with start-up"),
        ("why", {"files": [str(GOLDEN / "dumps" / "leak" / "oom.pickle")]}, "train.py:64 keeps 28 blocks"),
        ("diff", {"logs": [LOG, LOG]}, "No difference"),
        ("doctor", {"script": str(SAMPLES / "llama_ddp.py")}, "all run"),
    ],
)
def test_tools_answer_in_text_and_in_json(tool: str, arguments: dict[str, Any], said: str) -> None:
    async def talk(client: Any) -> None:
        text = await client.call_tool(tool, arguments)
        assert said in text.content[0].text and text.structured_content == {"text": text.content[0].text}
        numbers = await client.call_tool(tool, {**arguments, "json": True})
        assert json.loads(numbers.content[0].text) == numbers.structured_content["result"]

    with_client(talk)


def test_a_run_tells_its_progress_and_a_failure_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, torch\nprint('loss')\ntorch.ones(4, device='cuda')\nassert sys.argv[1:] == ['1']\n"
    )
    said: list[str] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        said.append(message or "")

    async def talk(client: Any) -> None:
        run = {"target": ["train.py", "1"], "cluster": "1x1xH100", "output": ["run.arrow"], "folder": str(tmp_path)}
        found = await client.call_tool("trace", run, progress_callback=progress)
        assert not found.is_error and (tmp_path / "run.arrow").exists() and said
        assert "loss" in found.content[0].text and "\nFITS " in found.content[0].text  # the script's, and the summary
        failed = await client.call_tool("trace", {**run, "target": ["train.py", "2"]})
        assert failed.is_error and "AssertionError" in failed.content[0].text
        for tool, arguments, line in (
            ("analyze", {"log": "none.arrow"}, "none.arrow: cannot open the log"),
            ("analyze", {"lag": "none.arrow"}, "analyze has no argument 'lag'; it has log"),
            ("guess", {}, "no tool 'guess'; there are trace, fits"),
        ):
            wrong = await client.call_tool(tool, arguments)
            assert wrong.is_error and line in wrong.content[0].text and "\n" not in wrong.content[0].text

    with_client(talk)


UNSEEN = """
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--forget", action="store_true")
options = parser.parse_args()
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layers = [torch.nn.Linear(options.width, options.width) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda().bfloat16())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    x = torch.randn(options.batch, 1024, options.width, device="cuda", dtype=torch.bfloat16)
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    total = torch.ones(1, device="cuda")
    if not (options.forget and rank == 1 and step == 3):
        dist.all_reduce(total)
torch.cuda.synchronize()
"""


def test_the_five_questions_about_an_unseen_script(tmp_path: Path) -> None:
    """What holds a step up, does it fit, which GPU, why is it slower, why does it hang: as the instructions say."""
    (tmp_path / "new.py").write_text(UNSEEN)
    here = {"folder": str(tmp_path), "cluster": "1x2xH100"}

    async def talk(client: Any) -> None:
        async def ask(tool: str, **arguments: Any) -> str:
            found = await client.call_tool(tool, arguments)
            assert not found.is_error, found.content[0].text
            return str(found.content[0].text)

        await ask("trace", target=["new.py"], output=["run.arrow"], **here)
        why = dict(
            line.split(maxsplit=1)
            for line in (await ask("why", files=["run.arrow"], folder=str(tmp_path))).splitlines()
        )
        report = json.loads(await ask("analyze", log="run.arrow", folder=str(tmp_path), json=True))
        assert float(why["STEP"].split()[0]) == pytest.approx(report["headline"]["step_time_ns"] / 1e6, rel=0.01)
        assert report["details"]["findings"]

        fits = json.loads(await ask("fits", target=["new.py"], json=True, **here))
        assert fits["fits"] and fits["peak_allocated_bytes"] == report["peak"]["allocated_bytes"]

        machines = await ask("compare", target=["new.py"], gpus="H100,B200", count="2", json=True, folder=str(tmp_path))
        steps = [row["step_time_ns"] for row in json.loads(machines)["machines"]]
        assert len(steps) == 2 and steps[0] > 1.2 * steps[1]

        await ask("trace", target=["new.py", "--width", "4096"], output=["wide.arrow"], **here)
        slower = await ask("diff", logs=["run.arrow", "wide.arrow"], folder=str(tmp_path))
        assert slower.startswith("Slower by ") and "gemm" in slower

        hangs = await client.call_tool("trace", {"target": ["new.py", "--forget"], "output": ["hang.arrow"], **here})
        assert "new.py:" in hangs.content[0].text and "rank 1" in hangs.content[0].text

    with_client(talk)
