"""Sweeps of known scripts and models. A preset is a sweep file with models and, under ``[wide]``, more values of its
axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError, known_names
from phantora.hardware import toml
from phantora.sweeps.space import Space, space_of

HERE = Path(__file__).parent


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def preset_path(name: str) -> Path:
    """Raises PhantoraError for an unknown name."""
    if name not in preset_names():
        raise PhantoraError(f"unknown preset {name!r}; {known_names(name, preset_names())}")
    return HERE / f"{name}.toml"


def load_preset(path: Path, model: str | None, wide: bool = False) -> Space:
    """The preset at `path` for one of its models. Raises PhantoraError."""
    table = toml.read(path)
    models = table.get("models", {})
    name = path.stem
    if model is None and models:
        raise PhantoraError(f"--preset {name} needs a --model: {', '.join(models)}")
    if model is not None and model not in models:
        raise PhantoraError(f"preset {name} has no model {model!r}; {known_names(model, models)}")
    constants: dict[str, Any] = dict(models[model]) if model is not None else {}
    axes = constants.pop("matrix", {})  # of the model: what is left as it is does not fit
    # Before what is computed from them; as texts of the grammar.
    let = {**{key: repr(value) for key, value in constants.items()}, **table.get("let", {})}
    matrix = {**table.get("matrix", {}), **axes, **(table.get("wide", {}) if wide else {})}
    where = f"preset {name}" if path.parent == HERE else str(path)
    return space_of({**table, "matrix": matrix, "let": let}, where)
