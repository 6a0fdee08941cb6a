"""Space of a sweep: axes, rules between them, and the form in which a value reaches the script. Read from TOML
(docs/sweeps.md)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from phantora.errors import PhantoraError
from phantora.hardware import toml
from phantora.options import spec_of
from phantora.spec import RunSpec
from phantora.sweeps.expressions import Expression, Value

Spelling = str | tuple[str, ...] | dict[str, tuple[str, ...]]
"""Form of a value: behind a flag (`--tp`; `--tp=` in one word; true: the flag alone, false: nothing), words in which
``{name}`` stands for values, or the words for each value."""
PLACES = ("sweep", "samples")
"""``{sweep}`` and ``{samples}`` in words are folders."""
CLUSTER = "cluster"
RATES = ("peak", "nvlink_rate", "nic_rate")
"""Rates of a GPU: FLOP/s in bfloat16, bytes/s of its link inside the host and of its NIC."""
GIVEN = ("cluster", "world", "hosts", "gpus_per_host", "nvlink_gpus", "gpu_memory", "gpu", "capability", *RATES)
"""Names that every expression may use: the cluster's text, its GPUs, hosts, GPUs of a host and of an NVLink domain,
bytes of a GPU, the GPU's name and the major number of its compute capability."""
_KEYS = {
    "target",
    "here",
    "requires",
    "setup",
    "cluster",
    "rules",
    "matrix",
    "wide",
    "list",
    "let",
    "arguments",
    "environment",
    "options",
    "steps",
    "bounds",
    "tokens",
    "models",
    "about",
    "fold",
}


_NAMED = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Steps:
    """Numbers of steps of a run."""

    argument: str
    first: int = 3
    most: int = 24

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.most:
            raise PhantoraError(f"[steps]: first = {self.first} and most = {self.most} must be 1 <= first <= most")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Lower bounds of a point; None if unknown."""

    memory: Expression | None = None
    """Bytes of a GPU."""
    flops: Expression | None = None
    """Flops of a step, all GPUs together."""
    bytes: Expression | None = None
    """Bytes of its memory that a GPU reads and writes in a step."""
    time: Expression | None = None
    """Seconds of a step, estimated but for a common factor: neither this nor `likely_memory` is a bound."""
    likely_memory: Expression | None = None
    """Bytes of a GPU, estimated but for a common factor."""
    format: Expression | None = None
    """Format whose peak bounds the flops; without it the GPU's fastest."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The content of a sweep file, checked."""

    where: str
    """The file or preset, for messages."""
    target: tuple[str, ...] = ()
    """Words of `phantora trace` for all points: options, a script or ``-m module``, its arguments."""
    run: RunSpec = field(default_factory=lambda: RunSpec(""))
    """The run that `target` changes: options of all points."""
    here: tuple[str, ...] = ()
    """More such arguments that a real run has no use for (a made-up data set)."""
    setup: tuple[str, ...] = ()
    """A Python script and its arguments, run once before the first point."""
    requires: tuple[str, ...] = ()
    """Modules that the script imports."""
    axes: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    """The matrix: each value of each axis with each of the others."""
    listed: tuple[dict[str, Value], ...] = ()
    """Points given one by one; each is combined with the matrix, whose axes it replaces."""
    let: dict[str, Expression] = field(default_factory=dict)
    """Names computed from others, in order."""
    rules: tuple[Expression, ...] = ()
    arguments: dict[str, Spelling] = field(default_factory=dict)
    environment: dict[str, Spelling] = field(default_factory=dict)
    options: dict[str, Spelling] = field(default_factory=dict)
    """Options of `phantora trace`."""
    steps: Steps | None = None
    bounds: Bounds = Bounds()
    tokens: Expression | None = None
    """Tokens of a step, all GPUs together; without it, from the log."""
    fold: str = ""
    """The axes of the mesh, ``{name}`` in the place of values, as ``--fold`` of `phantora trace` takes them."""

    def __post_init__(self) -> None:
        """Raises PhantoraError for an empty axis, and for names that nothing gives."""
        for name, values in self.axes.items():
            if not values:
                raise PhantoraError(f"{self.where}: the axis {name} has no values")
            if len(set(map(repr, values))) < len(values):
                raise PhantoraError(f"{self.where}: the axis {name} has a value twice")
        given = {*GIVEN, *self.axes, *(name for point in self.listed for name in point)}
        for name, expression in self.let.items():
            if name in given:
                raise PhantoraError(f"{self.where}: [let] {name}: the name is taken")
            _known(expression, given)
            given.add(name)
        bounds = self.bounds
        for one in (*self.rules, self.tokens, *(getattr(bounds, each.name) for each in fields(Bounds))):
            if one is not None:
                _known(one, given)
        for table, spelled in (
            ("arguments", self.arguments),
            ("environment", self.environment),
            ("options", self.options),
        ):
            for name, spelling in spelled.items():
                words = " ".join(spelling) if isinstance(spelling, tuple) else ""
                for one in {name, *_NAMED.findall(words)} - given - {*PLACES}:
                    raise PhantoraError(f"{self.where}: [{table}] {name}: no axis and no [let] has the name {one!r}")
        for one in sorted({*_NAMED.findall(self.fold)} - given):
            raise PhantoraError(f"{self.where}: fold: no axis and no [let] has the name {one!r}")
        unused = set(self.axes) - {CLUSTER, *self.used_names}
        if unused:
            name = sorted(unused)[0]
            raise PhantoraError(
                f"{self.where}: the axis {name} changes nothing: name it in [arguments], [environment], [options], "
                "[let] or a rule"
            )

    @property
    def shared_run(self) -> RunSpec:
        """The run of all points, without the cluster, arguments and options of each. Raises PhantoraError."""
        return _parsed(self.target, self.run, self.where)

    @property
    def used_names(self) -> set[str]:
        """Names that rules, arguments, variables of the environment or options use."""
        used = {name for expression in (*self.let.values(), *self.rules) for name in expression.names}
        return used | {*self.arguments, *self.environment, *self.options, *_NAMED.findall(self.fold)}

    def with_axes(self, axes: Mapping[str, Sequence[Value]]) -> Space:
        """The space with other values of these axes. Names of [let] among them are no longer computed."""
        let = {name: expression for name, expression in self.let.items() if name not in axes}
        return replace(self, axes={**self.axes, **{name: tuple(values) for name, values in axes.items()}}, let=let)


@functools.lru_cache(maxsize=1024)
def _parsed(words: tuple[str, ...], base: RunSpec, where: str) -> RunSpec:
    try:
        return spec_of(words, base)
    except PhantoraError as error:
        raise PhantoraError(f"{where}: {error}") from error


def run_with(space: Space, options: tuple[str, ...]) -> RunSpec:
    """The run of all points with the words `options`. Raises PhantoraError."""
    return _parsed(options, space.shared_run, f"{space.where}: [options]")


def _known(expression: Expression, given: Iterable[str]) -> None:
    unknown = sorted(expression.names - set(given))
    if unknown:
        raise PhantoraError(f"{expression.where} {expression.text!r}: nothing gives {unknown[0]!r}")


def filled(word: str, names: Mapping[str, Value]) -> str:
    """`word` with values in the place of ``{name}``."""
    return _NAMED.sub(lambda found: text_of(names.get(found[1], found[0])), word)


def spelled(spelling: Spelling, name: str, names: Mapping[str, Value]) -> tuple[str, ...]:
    """The words that give the value of `name`. Raises PhantoraError where the table of words does not have it."""
    value = names[name]
    if isinstance(spelling, tuple):
        return tuple(filled(word, names) for word in spelling)
    if isinstance(spelling, dict):
        if text_of(value) not in spelling:
            raise PhantoraError(f"{name} = {text_of(value)}: unknown value; known: {', '.join(spelling)}")
        return spelling[text_of(value)]
    if isinstance(value, bool):
        return (spelling.rstrip("="),) if value else ()
    return (spelling + text_of(value),) if spelling.endswith("=") else (spelling, text_of(value))


def text_of(value: Value) -> str:
    """As a command line has it: 8, 0.5, true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# ---------------------------------------------------------------------- reading


def read_space(path: str | Path) -> Space:
    """Reads a sweep file. Raises PhantoraError."""
    return space_of(toml.read(Path(path)), str(path))


def space_of(table: Mapping[str, Any], where: str) -> Space:
    """`table` as a sweep file has it; `where` for messages."""
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise PhantoraError(f"{where}: unknown key {unknown[0]!r}; a sweep has {', '.join(sorted(_KEYS))}")
    axes = {name: _values(found, f"{where}: [matrix] {name}") for name, found in _table(table, "matrix", where).items()}
    if CLUSTER in table:
        axes[CLUSTER] = _values(table[CLUSTER], f"{where}: cluster")
    listed = table.get("list", [])
    if not isinstance(listed, list) or not all(isinstance(point, dict) for point in listed):
        raise PhantoraError(f"{where}: points are listed as [[list]]")
    expression = _Reader(where)
    bounds = _table(table, "bounds", where)
    try:
        limits = Bounds(**{name: expression(text, f"[bounds] {name}") for name, text in bounds.items()})
        steps = Steps(**_table(table, "steps", where)) if "steps" in table else None
    except TypeError as error:
        raise PhantoraError(f"{where}: [bounds] or [steps]: {error}") from None
    return Space(
        where=where,
        target=_words(table, "target", where),
        here=_words(table, "here", where),
        setup=_words(table, "setup", where),
        requires=_words(table, "requires", where),
        axes=axes,
        listed=tuple({name: _one(value, f"{where}: [[list]] {name}") for name, value in p.items()} for p in listed),
        let={name: expression(text, f"[let] {name}") for name, text in _table(table, "let", where).items()},
        rules=tuple(expression(text, "rule") for text in _listed(table.get("rules", []), f"{where}: rules")),
        arguments=_spellings(table, "arguments", where),
        environment=_spellings(table, "environment", where),
        options=_spellings(table, "options", where),
        steps=steps,
        bounds=limits,
        tokens=expression(table["tokens"], "tokens") if "tokens" in table else None,
        fold=_text(table, "fold", where),
    )


@dataclass(frozen=True)
class _Reader:
    where: str

    def __call__(self, found: Any, what: str) -> Expression:
        if isinstance(found, bool | int | float):
            found = repr(found)
        if not isinstance(found, str):
            raise PhantoraError(f"{self.where}: {what} must be a text with an expression")
        return Expression(found, f"{self.where}: {what}")


def _table(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise PhantoraError(f"{where}: [{key}] must be a table")
    return found


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    found = table.get(key, "")
    if not isinstance(found, str):
        raise PhantoraError(f"{where}: {key} must be a text")
    return found


def _listed(found: Any, where: str) -> list[Any]:
    if not isinstance(found, list):
        raise PhantoraError(f"{where} must be a list")
    return found


def _words(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    where = f"{where}: {key}"
    return tuple(text_of(_one(word, where)) for word in _listed(table.get(key, []), where))


def _values(found: Any, where: str) -> tuple[Value, ...]:
    return tuple(_one(value, where) for value in (found if isinstance(found, list) else [found]))


def _one(value: Any, where: str) -> Value:
    if not isinstance(value, bool | int | float | str):
        raise PhantoraError(f"{where}: {value!r} is no number, text, true or false")
    return value


def _spellings(table: Mapping[str, Any], key: str, where: str) -> dict[str, Spelling]:
    found: dict[str, Spelling] = {}
    for name, spelling in _table(table, key, where).items():
        if isinstance(spelling, dict):
            found[name] = {value: _words(spelling, value, f"{where}: [{key}] {name}") for value in spelling}
        elif isinstance(spelling, list):
            found[name] = _words({name: spelling}, name, f"{where}: [{key}]")
        elif isinstance(spelling, str):
            found[name] = spelling
        else:
            raise PhantoraError(f"{where}: [{key}] {name} must be a flag, words, or a table from values to words")
    return found
