"""The option of a script that runs its products in FP8, found in its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from phantora.hardware.types import Cluster
from phantora.spec import RunSpec
from phantora.sweeps.batch import nodes_of

_FLOAT8 = re.compile(r"(fp8|float8)", re.I)
_SWITCH = re.compile(r"--?(use[-_]|enable[-_])?(fp8|float8)([-_](recipe|format|training|linear|compute))?")
_FORMAT = re.compile(r"--?((compute|train|mixed|amp)[-_])?(precision|dtype|data[-_]type)")


def float8(run: RunSpec, cluster: Cluster) -> tuple[str, ...]:
    """The words that run the products of the script in FP8: ``("--fp8",)``, ``("--precision", "fp8")``. Empty where it
    has no such option, where they are given, and on GPUs without FP8."""
    if any("float8" not in part.gpu.peak_flops for part in cluster.parts):
        return ()
    if any(_FLOAT8.search(word) for word in run.arguments):
        return ()
    return next(_options(Path(run.target)), ())


def _options(script: Path) -> Iterator[tuple[str, ...]]:
    lists: dict[str, ast.expr] = {}
    for node in nodes_of(script):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() | ast.Tuple() as value):
                lists[name] = value
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                yield from _of_argument(node, lists)


def _of_argument(call: ast.Call, lists: dict[str, ast.expr]) -> Iterator[tuple[str, ...]]:
    """The words for one ``add_argument``."""
    flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    given = {one.arg: one.value for one in call.keywords}
    listed = given.get("choices")
    if isinstance(listed, ast.Name):
        listed = lists.get(listed.id)
    names = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    choices = [str(one.value) for one in names if isinstance(one, ast.Constant)]
    action = given.get("action")
    for flag in flags:
        if _SWITCH.fullmatch(flag) and isinstance(action, ast.Constant) and action.value == "store_true":
            yield (flag,)
        elif _SWITCH.fullmatch(flag) and choices:
            yield flag, choices[0]
        elif _FORMAT.fullmatch(flag):
            yield from ((flag, choice) for choice in choices if _FLOAT8.search(choice))
