"""The grammar of rules: numbers, texts, names, arithmetic, comparisons, and / or / not, `a if c else b`.

Python's parser reads the text; a walk over a short list of nodes computes it. Nothing of Python's is called: no
attribute, no index, no function but those of :data:`FUNCTIONS`, no power, no text longer than
:data:`MOST_CHARACTERS`.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phantora.errors import PhantoraError

Value = bool | int | float | str
MOST_CHARACTERS = 2_000
MOST_DIGITS = 30  # of a number on the way
GRAMMAR = (
    "a rule may use numbers, texts in quotes, names, + - * / // %, < <= > >= == !=, in, and, or, not, "
    "`a if c else b`, min(), max(), ceil(), floor(), abs()"
)
FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor, "abs": abs}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _Refused(Exception):
    """Why a text is no rule, or has no value."""


@dataclass(frozen=True)
class Expression:
    """A text of the grammar; `where` is its place, for messages."""

    text: str
    where: str = "rule"

    def __post_init__(self) -> None:
        """Raises PhantoraError for what the grammar does not have."""
        try:
            self._check(self._tree)
        except _Refused as refused:
            raise PhantoraError(f"{self.where} {self.text!r}: {refused}; {GRAMMAR}") from None

    @cached_property
    def _tree(self) -> ast.expr:
        if len(self.text) > MOST_CHARACTERS:
            raise _Refused(f"is longer than {MOST_CHARACTERS} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it warns of, as 1or 2, is refused or harmless
                return ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise _Refused(f"cannot be read ({getattr(error, 'msg', error)})") from None
        except (RecursionError, MemoryError):
            raise _Refused("is nested too deeply") from None

    @cached_property
    def names(self) -> frozenset[str]:
        """Names in the expression."""
        called = {id(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        found = (node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and id(node) not in called)
        return frozenset(node.id for node in found)

    def value(self, names: Mapping[str, Value]) -> Value:
        """Raises PhantoraError for an unknown name, a division by zero, texts where numbers belong."""
        try:
            found: Value | tuple[Value, ...] = _value(self._tree, names)
        except _Refused as refused:
            raise PhantoraError(f"{self.where} {self.text!r}: {refused}") from None
        except RecursionError:
            raise PhantoraError(f"{self.where} {self.text!r} is nested too deeply") from None
        if isinstance(found, tuple):
            raise PhantoraError(f"{self.where} {self.text!r} is a list and no single value")
        return found

    def satisfied(self, names: Mapping[str, Value]) -> bool:
        """True if the rule is satisfied."""
        return bool(self.value(names))

    def number(self, names: Mapping[str, Value]) -> float:
        """The value as a number. Raises PhantoraError if it is a text."""
        found = self.value(names)
        if isinstance(found, str):
            raise PhantoraError(f"{self.where} {self.text!r} is the text {found!r} where a number belongs")
        return float(found)

    def _check(self, tree: ast.expr) -> None:
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=value):
                    if not isinstance(value, bool | int | float | str):
                        raise _Refused(f"{value!r} is no number and no text")
                    _bounded(value)
                case ast.Call(func=ast.Name(id=name), keywords=[], args=[_, *_]) if name in FUNCTIONS:
                    if any(isinstance(argument, ast.Starred) for argument in node.args):
                        raise _Refused("has a *")
                case ast.Call():
                    raise _Refused(f"{ast.unparse(node)[:40]!r} is no function of it")
                case ast.BinOp(op=op) if type(op) not in _ARITHMETIC:
                    raise _Refused(f"{type(op).__name__} is no operation of it")
                case ast.Compare(ops=ops):
                    if any(type(op) not in _COMPARISONS and not isinstance(op, ast.In | ast.NotIn) for op in ops):
                        raise _Refused("is no comparison of it")
                case ast.UnaryOp(op=op) if not isinstance(op, ast.USub | ast.UAdd | ast.Not):
                    raise _Refused(f"{type(op).__name__} is no operation of it")
                case (
                    ast.BinOp()
                    | ast.UnaryOp()
                    | ast.BoolOp()
                    | ast.IfExp()
                    | ast.Name()
                    | ast.Tuple()
                    | ast.List()
                    | ast.operator()
                    | ast.unaryop()
                    | ast.boolop()
                    | ast.cmpop()
                    | ast.expr_context()
                ):
                    pass
                case _:
                    raise _Refused(f"{ast.unparse(node)[:40]!r} is nothing of it")


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > 3.33 * MOST_DIGITS:
        raise _Refused(f"a number has more than {MOST_DIGITS} digits")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refused("a number is too large")
    return value


def _value(node: ast.AST, names: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise _Refused(f"{name!r} is not known; known are {', '.join(sorted(names))}")
            return names[name]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value(part, names) for part in parts)
        case ast.BoolOp(op=op, values=parts):
            wanted = isinstance(op, ast.Or)
            return next((True for part in parts if bool(_value(part, names)) is wanted), False) is wanted
        case ast.IfExp(test=test, body=body, orelse=other):
            return _value(body if _value(test, names) else other, names)
        case ast.UnaryOp(op=op, operand=operand):
            found = _value(operand, names)
            if isinstance(op, ast.Not):
                return not found
            return -_numeric(found) if isinstance(op, ast.USub) else _numeric(found)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _numeric(_value(left, names)), _numeric(_value(right, names))
            return _computed(lambda: _ARITHMETIC[type(op)](a, b))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compared(_value(left, names), ops, [_value(part, names) for part in comparators])
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_numeric(_value(argument, names)) for argument in arguments]
            return _computed(lambda: FUNCTIONS[name](*given))
    raise _Refused("cannot be computed")


def _numeric(value: Any) -> Any:
    if isinstance(value, str | tuple):
        raise _Refused(f"{value!r} stands where a number belongs")
    return value


def _computed(compute: Callable[[], Any]) -> Any:
    try:
        found = compute()
    except ZeroDivisionError:
        raise _Refused("divides by zero") from None
    except (OverflowError, ValueError, TypeError) as error:
        raise _Refused(f"cannot be computed ({error})") from None
    return _bounded(found)


def _compared(left: Any, ops: list[ast.cmpop], others: list[Any]) -> bool:
    for op, right in zip(ops, others, strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, tuple):
                raise _Refused("`in` wants a list on its right")
            satisfied = (left in right) is isinstance(op, ast.In)
        elif isinstance(op, ast.Eq | ast.NotEq):
            satisfied = _COMPARISONS[type(op)](left, right)
        else:
            a, b = _numeric(left), _numeric(right)
            satisfied = _COMPARISONS[type(op)](a, b)
        if not satisfied:
            return False
        left = right
    return True
