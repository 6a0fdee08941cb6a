"""Options of a run, made from the fields of :class:`phantora.spec.RunSpec` and its parts.

One field gives an option of the command line, a keyword of ``phantora.run``, a key of ``--config``, a word of a point
of a sweep, and a row of docs/trace.md. ``docs/options.py`` writes that page and ``phantora/keywords.py``.
"""

from __future__ import annotations

import difflib
import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import click

from phantora.errors import PhantoraError
from phantora.spec import COMMAND, HEADINGS, MODULE, SCRIPT, TRACE, Option, RunSpec, option_of

Function = TypeVar("Function", bound=Callable[..., Any])
_PATHS = {"FILE": click.Path(dir_okay=False), "DIR": click.Path(file_okay=False)}
_OTHER = "Other"


@dataclass(frozen=True, kw_only=True)
class Place:
    """An option, and its place in a :class:`RunSpec`."""

    option: Option
    part: str
    """Field of the run that has it; "": the run itself."""
    field: str
    kind: Any
    """Type of its value."""
    default: Any

    @property
    def name(self) -> str:
        """Name with underscores: the keyword in Python, and the parameter of click."""
        return self.option.name or self.field

    @property
    def flag(self) -> str:
        """The spelling on a command line, ``--data-loading``."""
        return "--" + self.name.replace("_", "-")

    @property
    def values(self) -> Any:
        """Type of each value of an option that may be repeated; None for others."""
        return typing.get_args(self.kind)[0] if typing.get_origin(self.kind) is tuple else None

    def of(self, spec: RunSpec) -> Any:
        """The value in `spec`."""
        return getattr(getattr(spec, self.part) if self.part else spec, self.field)


_known: dict[type[RunSpec], tuple[Place, ...]] = {}


def places(spec: type[RunSpec] = RunSpec) -> tuple[Place, ...]:
    """All options of a run, in the order of the fields; those of its parts behind its own."""
    if spec not in _known:
        _known[spec] = tuple(_places(spec, ""))
    return _known[spec]


def _places(spec: Any, part: str) -> Iterable[Place]:
    types = typing.get_type_hints(spec)
    for one in fields(spec):
        kind = types[one.name]
        if is_dataclass(kind):
            yield from _places(kind, one.name)
        elif (found := option_of(one)) is not None:
            yield Place(option=found, part=part, field=one.name, kind=kind, default=one.default)


def places_of(command: str, spec: type[RunSpec] = RunSpec) -> tuple[Place, ...]:
    """Options of one command, such as ``phantora.spec.FITS``."""
    return tuple(place for place in places(spec) if command in place.option.commands)


def changed(spec: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """`spec` with the values of the options that `values` names; None leaves an option as it is. Other names are not
    looked at. Raises PhantoraError for a value that its option cannot have."""
    parts: dict[str, dict[str, Any]] = {}
    for place in places(type(spec)):
        if (value := values.get(place.name)) is not None:
            parts.setdefault(place.part, {})[place.field] = _checked(place, value)
    own = parts.pop("", {})
    inner = {part: replace(getattr(spec, part), **found) for part, found in parts.items()}
    return replace(spec, **own, **inner)


def run_spec(command: str, target: Sequence[str], options: Mapping[str, Any], *, is_command: bool = False) -> RunSpec:
    """The run of a command line's `target`, with the `options` of click; ``module`` among them. Options that `command`
    does not have are not looked at: it may have others of the same name. Raises PhantoraError."""
    kind = COMMAND if is_command else MODULE if options.get("module") else SCRIPT
    known = {place.name for place in places_of(command)}
    spec = RunSpec(target[0], tuple(target[1:]), kind) if target else RunSpec("")
    return changed(spec, {name: value for name, value in options.items() if name in known})


def _checked(place: Place, value: Any) -> Any:
    """A value from a program, as its field has it."""
    about, kind = place.option, place.values or _plain(place.kind)
    if place.values is not None:
        if kind is int and isinstance(value, str):
            value = _whole(place, value)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _wrong(place, value, "a sequence")
        return tuple(_typed(place, kind, one) for one in value)
    value = _typed(place, kind, value)
    if value == place.default:
        return value
    if about.choices and value not in about.choices:
        raise _wrong(place, value, " or ".join(about.choices))
    if (about.low is not None and value < about.low) or (about.high is not None and value > about.high):
        raise _wrong(place, value, _bounds(about))
    return value


def _whole(place: Place, text: str) -> tuple[int, ...]:
    """``0,5``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PhantoraError(f"{place.flag} {text!r} is not a list of ranks such as 0,5") from None


def _typed(place: Place, kind: type, value: Any) -> Any:
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if kind is str and type(value) is int:
        return str(value)
    if kind is float and type(value) is int:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(place, value, {str: "a text", int: "a whole number", float: "a number"}.get(kind, "true or false"))
    return value


def _wrong(place: Place, value: Any, expected: str) -> PhantoraError:
    return PhantoraError(f"{place.flag} {value!r}: give {expected}")


def _bounds(about: Option) -> str:
    low, high = about.low, about.high
    return f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"


def _plain(kind: Any) -> Any:
    """``float | None`` is float."""
    return next((one for one in typing.get_args(kind) if one is not type(None)), kind)


# ---------------------------------------------------------------------- the command line


class HeadedOption(click.Option):
    """An option below one of :data:`phantora.spec.HEADINGS` in the help."""

    def __init__(self, *arguments: Any, heading: str = _OTHER, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.heading = heading


class HeadedCommand(click.Command):
    """A command that shows its own options first, then those of a run below their headings."""

    own = "Options"
    """Heading of its own options."""

    def sections(self, context: click.Context) -> dict[str, list[tuple[str, str]]]:
        """The rows of the help below each heading."""
        rows: dict[str, list[tuple[str, str]]] = {self.own: [], **{heading: [] for heading in HEADINGS}, _OTHER: []}
        for parameter in self.get_params(context):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(context)) is not None:
                last = _OTHER if "--help" in parameter.opts else self.own
                rows[parameter.heading if isinstance(parameter, HeadedOption) else last].append(row)
        return {heading: found for heading, found in rows.items() if found}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options below their headings."""
        for heading, rows in self.sections(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class ScriptCommand(HeadedCommand):
    """A command that ends with a script and its arguments, or with ``-- COMMAND``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; records whether a ``--`` stands before the target."""
        whole = list(args)
        rest = super().parse_args(ctx, args)
        target: tuple[str, ...] = ctx.params.get("target") or ()
        before = whole[: len(whole) - len(target)]
        ctx.meta[COMMAND] = bool(target) and bool(before) and before[-1] == "--"
        return rest


def spellings(flag: str) -> tuple[str, ...]:
    """torchrun takes ``--nproc-per-node`` and ``--nproc_per_node``."""
    return tuple(dict.fromkeys((flag, "--" + flag[2:].replace("-", "_"))))


def click_option(place: Place, default: Any = None, unset: str = "") -> HeadedOption:
    """The option on a command line. `default` takes the place of the field's; `unset` reports one in words."""
    about, many = place.option, place.values
    default = place.default if default is None else default
    text, metavar = about.help, about.metavar or None
    if words := unset or about.unset:
        text = f"{text}  [default: {words}]"
        default = None
    default = None if default in ("", ()) else default
    more: dict[str, Any] = {"default": default, "show_default": default is not None}
    declared = [*_letters(about), *_names(place), place.name]
    if place.kind is bool:
        if place.default:
            declared = [f"{place.flag}/--no-{place.flag[2:]}", place.name]
        more = {"is_flag": True, "default": default, "show_default": bool(place.default)}
    elif many is int:
        more["show_default"] = False
    elif many is str:
        more |= {"multiple": True, "show_default": False}
        text += " May be repeated."
    else:
        more["type"] = _click_type(about, _plain(place.kind))
    if about.choices:
        metavar = None
    return HeadedOption(declared, heading=about.heading, help=text, metavar=metavar, hidden=about.hidden, **more)


def _letters(about: Option) -> list[str]:
    return [flag for flag in about.flags if not flag.startswith("--")]


def _names(place: Place) -> list[str]:
    torchrun = place.part == "launch"
    return [
        *(spellings(place.flag) if torchrun else (place.flag,)),
        *(f for f in place.option.flags if f.startswith("--")),
    ]


def _click_type(about: Option, kind: Any) -> Any:
    if about.choices:
        return click.Choice(about.choices)
    if kind not in (int, float):
        return _PATHS.get(about.metavar)
    if about.low is None and about.high is None:
        return kind
    return (click.IntRange if kind is int else click.FloatRange)(min=about.low, max=about.high)  # type: ignore[arg-type]


def run_options(
    command: str,
    *,
    defaults: Mapping[str, Any] | None = None,
    unset: Mapping[str, str] | None = None,
    spec: type[RunSpec] = RunSpec,
) -> Callable[[Function], Function]:
    """Decorates a click command with the options of a run that `command` takes. `defaults` are other defaults by name,
    `unset` others in words."""

    def decorate(function: Function) -> Function:
        for place in reversed(places_of(command, spec)):
            made = click_option(place, (defaults or {}).get(place.name), (unset or {}).get(place.name, ""))
            if isinstance(function, click.Command):
                function.params.insert(0, made)
            else:
                function.__dict__.setdefault("__click_params__", []).append(made)
        return function

    return decorate


# ---------------------------------------------------------------------- words


def words(spec: RunSpec, always: Collection[str] = ()) -> tuple[str, ...]:
    """The words behind ``phantora trace`` that describe `spec`: options that are not at their defaults or are named in
    `always`, and the target."""
    found: list[str] = []
    for place in places(type(spec)):
        value = place.of(spec)
        if value == place.default and place.name not in always:
            continue
        if place.kind is bool:
            found.append(place.flag if value else f"--no-{place.flag[2:]}")
        elif place.values is int:
            found += (place.flag, ",".join(map(str, value)))
        else:
            for one in value if place.values is not None else (value,):
                found += (place.flag, str(one))
    return (*found, *(target_words(spec) if spec.target else ()))


def target_words(spec: RunSpec) -> tuple[str, ...]:
    """The target and its arguments, as they stand behind the options."""
    head = {SCRIPT: (), MODULE: ("-m",), COMMAND: ("--",)}[spec.kind]
    return (*head, spec.target, *spec.arguments)


def _parser(spec: type[RunSpec]) -> ScriptCommand:
    module = click.Option(["-m", "--module"], is_flag=True)
    target = click.Argument(["target"], nargs=-1, type=click.UNPROCESSED)
    return ScriptCommand(
        TRACE,
        params=[*map(click_option, places(spec)), module, target],
        add_help_option=False,
        context_settings={"allow_interspersed_args": False},
    )


def spec_of(words: Sequence[str], base: RunSpec | None = None) -> RunSpec:
    """The run that `words` describe behind ``phantora trace``, as changes to `base`. Words without a target keep the
    target of `base`. Raises PhantoraError."""
    base = RunSpec("") if base is None else base
    if not words:
        return base
    try:
        context = _parser(type(base)).make_context(TRACE, list(words))
    except click.UsageError as error:
        raise PhantoraError(error.format_message()) from error
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    spec = changed(base, given)
    if not (target := context.params["target"]):
        return spec
    kind = COMMAND if context.meta[COMMAND] else MODULE if context.params["module"] else SCRIPT
    return replace(spec, target=target[0], arguments=tuple(target[1:]), kind=kind)


# ---------------------------------------------------------------------- Python


NO_KEYWORD = ("null",)
"""Options of `phantora trace` without a keyword: such a run has no log."""


def keyword_type(place: Place) -> str:
    """Type of the keyword in Python, as source text."""
    if place.option.type:
        return place.option.type
    if place.values is not None:
        return f"Sequence[{place.values.__name__}]"
    kind = _plain(place.kind).__name__
    return f"{kind} | None" if place.default is None else kind


_OWN: dict[str, frozenset[str]] = {}
"""Keywords by command that are no options of the run, of the functions for Python."""


def with_keywords(
    command: str, without: Collection[str] = (), spec: type[RunSpec] = RunSpec
) -> Callable[[Function], Function]:
    """Decorates a function whose ``**options`` are the options of `command` but for `without`: its signature and its
    text name them."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        _OWN[command] = frozenset(signature.parameters) - {"options"}
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        chosen = [place for place in places_of(command, spec) if place.name not in {*signature.parameters, *without}]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(place.name, keyword, default=_shown(place), annotation=keyword_type(place))
            for place in chosen
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        lines = "\n".join(f"    {place.name}: {place.option.help}" for place in chosen)
        function.__doc__ = f"{inspect.getdoc(function)}\n\nOptions of the run:\n{lines}\n"
        return function

    return decorate


def _shown(place: Place) -> Any:
    return None if place.option.unset and "None" in keyword_type(place) else place.default


def with_options(spec: RunSpec, command: str, options: Mapping[str, Any]) -> RunSpec:
    """`spec` with the keywords `options` of a call. Raises TypeError for a keyword that `command` does not have, and
    PhantoraError for a wrong value."""
    known = {place.name for place in places_of(command, type(spec))}
    if unknown := sorted(options.keys() - known):
        close = difflib.get_close_matches(unknown[0], known | _OWN.get(command, frozenset()), 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"{command}: unknown options {', '.join(unknown)}{hint}")
    return changed(spec, options)


FUNCTIONS: dict[str, tuple[str, Collection[str]]] = {
    "RunOptions": (TRACE, NO_KEYWORD),
    "FitsOptions": ("fits", ()),
    "PlanOptions": ("plan", ()),
    "CompareOptions": ("compare", ()),
    "SweepOptions": ("sweep", ()),
    "CalibrateOptions": ("calibrate", ()),
    "ReplayOptions": ("replay", ("output", "host")),
}
"""Classes of keywords: the command whose options they are, and the names that the function has by itself."""


def keywords_module(spec: type[RunSpec] = RunSpec) -> str:
    """Source of ``phantora/keywords.py``."""
    found = [_KEYWORDS]
    for name, (command, left_out) in FUNCTIONS.items():
        chosen = [place for place in places_of(command, spec) if place.name not in left_out]
        found.append(f'class {name}(TypedDict, total=False):\n    """Options of ``phantora {command}``."""\n\n')
        found.append("\n".join(f"    {place.name}: {keyword_type(place)}" for place in chosen) + "\n\n\n")
    return "".join(found).rstrip("\n") + "\n"


_KEYWORDS = '''"""Types of the keywords of ``phantora.run`` and others (docs/options.py writes this file)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict


'''

# ---------------------------------------------------------------------- the page


def page(command: HeadedCommand, spec: type[RunSpec] = RunSpec) -> str:
    """Source of docs/trace.md: the options of `command`, ``phantora trace``."""
    found = {place.name: place for place in places(spec)}
    context = click.Context(command, info_name="phantora trace")
    parts = [_PAGE]
    tables: dict[str, list[str]] = {heading: [] for heading in (*HEADINGS, _OTHER)}
    for parameter in command.params:
        if isinstance(parameter, HeadedOption) and (row := parameter.get_help_record(context)) is not None:
            tables[parameter.heading].append(_row(parameter, found.get(parameter.name or ""), row[0]))
    for heading, rows in tables.items():
        if rows:
            head = "| option | default | meaning | also of |\n| --- | --- | --- | --- |"
            parts.append("\n".join([f"## {heading}", "", head, *rows]) + "\n")
    return "\n".join(parts)


def _row(parameter: HeadedOption, place: Place | None, spelled: str) -> str:
    text, _, default = (parameter.help or "").removesuffix("]").partition("  [default: ")
    if not default and place is not None and place.kind is not bool and place.default not in (None, "", ()):
        default = f"`{place.default}`" + (f" {place.option.unit}" if place.option.unit else "")
    elif not default and isinstance(parameter.default, str):
        default = f"`{parameter.default}`"
    others = [name for name in place.option.commands if name != TRACE] if place is not None else []
    cells = (f"`{spelled}`", default, text, ", ".join(f"`{name}`" for name in others))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_PAGE = """# Options of a run

Options of `phantora trace`, from `phantora/spec.py`. The last column names other commands that have the option,
with the same meaning. In Python they are keywords of `phantora.run`, `fits`, `plan`, `sweep` and `calibrate`:
`--data-loading 12ms` is `data_loading="12ms"`. In a file of `--config` they are keys of `[trace]`
([configuration](configuration.md)).
"""
