"""Adds flavors with fewer layers to TorchTitan's models, by the framework's own hook:

--experimental.custom_import layers --model.flavor 8B-2layers

All other sizes of the flavor stay.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torchtitan.models.deepseek_v3 import deepseekv3_args
from torchtitan.models.gpt_oss import gptoss_configs
from torchtitan.models.llama3 import llama3_args
from torchtitan.models.qwen3 import qwen3_args

tables: tuple[dict[str, Any], ...] = (llama3_args, qwen3_args, deepseekv3_args, gptoss_configs)
for table in tables:
    for flavor, arguments in list(table.items()):
        for count in range(1, arguments.n_layers):
            table[f"{flavor}-{count}layers"] = dataclasses.replace(arguments, n_layers=count)
