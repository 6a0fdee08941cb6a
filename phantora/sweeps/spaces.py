"""The space that a command line or a call asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.sweeps.expressions import Expression, Value
from phantora.sweeps.presets import load_preset, preset_path
from phantora.sweeps.space import CLUSTER, Space, read_space, space_of


def space_from(
    file: str | os.PathLike[str] | Mapping[str, Any] | None,
    preset: str | None,
    model: str | None,
    wide: bool,
    target: Sequence[str],
    settings: Mapping[str, Sequence[Value]],
    rules: Sequence[str],
) -> Space:
    """A sweep file (or its content) or a preset, with other values of some axes and more rules. `target` takes the
    place of the file's, and stands behind the preset's. Raises PhantoraError."""
    if (file is None) == (preset is None):
        raise PhantoraError("name a sweep file or a --preset, one of them (docs/sweeps.md)")
    if preset is not None:
        path = Path(preset) if preset.endswith(".toml") else preset_path(preset)
        space = load_preset(path, model, wide)
        space = replace(space, target=(*space.target, *target))
    else:
        if model is not None or wide:
            raise PhantoraError("--model and --wide belong to a --preset")
        assert file is not None
        space = space_of(file, "sweep") if isinstance(file, Mapping) else read_space(Path(file))
        space = replace(space, target=tuple(target) or space.target)
    known = {CLUSTER, *space.axes, *space.let}
    unknown = sorted(settings.keys() - known)
    if unknown:
        raise PhantoraError(f"--set {unknown[0]}: {space.where} has no such name; it has {', '.join(sorted(known))}")
    more = tuple(Expression(text, "--rule") for text in rules)
    return replace(space.with_axes(settings), rules=(*space.rules, *more))
