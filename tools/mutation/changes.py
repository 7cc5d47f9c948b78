"""Defines the small changes that are possible in a module, and the code that is never changed.

The operators do not change docstrings, messages, annotations, `__repr__`, logging, `assert`, code under
`TYPE_CHECKING`, or decorators. Such code affects no behaviour or needs no tests. In this repository, `assert`
is only for the type checker.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import attrs

__all__ = ["Change", "changes_of"]

Node: TypeAlias = ast.expr | ast.stmt

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NEGATIONS: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGERS: Final = frozenset({"_log", "log", "logger", "_logger", "logging", "warnings"})
# The arguments of these functions are types or have no order, or swapping them would fail at once.
_UNSWAPPED: Final = frozenset(
    {"cast", "isinstance", "issubclass", "getattr", "hasattr", "super", "TypeVar", "min", "max"}
)
# Most higher numbers are limits or times, and their exact values do not matter.
_SMALL: Final = 10
# The default that these functions get is not used, or only tested for being false.
_DEFAULTING: Final = frozenset({"get", "pop", "next"})
# What stands in the brackets after them are types.
_GENERIC: Final = frozenset({"dict", "frozenset", "list", "set", "tuple", "type"})
_SILENT: Final = frozenset({"__repr__", "__str__"})


@attrs.frozen
class Change:
    """One way to break a module.

    Attributes:
        node: The node that is replaced, with its position in the source.
        function: The qualified name of the enclosing function or class, or `<module>`.
        replacement: The new source text of the node.
        operator: The kind of the change.
    """

    node: Node
    function: str
    replacement: str
    operator: str


def changes_of(tree: ast.Module) -> list[Change]:
    """Return every change that the operators can make, in the order of the source.

    Args:
        tree: A module.
    """
    finder = _Finder()
    finder.block(tree.body)
    return finder.found


class _Finder:
    """Walks through a syntax tree, and records the possible changes."""

    def __init__(self) -> None:
        self.found: list[Change] = []
        self._scope: list[str] = []
        self._last: ast.stmt | None = None

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Record possible changes to the statements of a block, and to the code inside them."""
        for statement in body:
            self._statement(statement)
            self._walk(statement)

    def _note(self, node: Node, operator: str, replacement: str) -> None:
        self.found.append(Change(node, ".".join(self._scope) or "<module>", replacement, operator))

    def _walk(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in _SILENT:
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef():
                self._scope.append(node.name)
                self.block(node.body)
                self._scope.pop()
            case ast.AnnAssign():
                alias = "TypeAlias" in ast.unparse(node.annotation)
                if node.value is not None and not alias and not _is_none(node.value):
                    self._walk(node.value)
            case _ if not _is_left_alone(node):
                if isinstance(node, ast.expr):
                    self._expression(node)
                self._condition(node)
                self._children(node)
            case _:
                pass

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside, self._last = self._last, node.body[-1]
        self._scope.append(node.name)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None and not _is_none(default):
                self._walk(default)
        self.block(node.body)
        self._scope.pop()
        self._last = outside

    def _children(self, node: ast.AST) -> None:
        for _, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            if items and all(isinstance(item, ast.stmt) for item in items):
                self.block(items)
                continue
            for item in items:
                if isinstance(item, ast.AST) and not (_is_none(item) and _means_absent(node)):
                    self._walk(item)

    def _statement(self, node: ast.stmt) -> None:
        """Record statements that can be removed, and jump statements that can be changed."""
        match node:
            case ast.Break():
                self._note(node, "jump", "continue")
            case ast.Continue():
                self._note(node, "jump", "break")
                self._note(node, "removed", "pass")
            case ast.Expr(value=ast.Call() as call) if not _is_silent(call):
                self._note(node, "removed", "pass")
            case ast.Delete() | ast.AugAssign() | ast.Raise():
                self._note(node, "removed", "pass")
            case ast.Return() if node is not self._last:
                self._note(node, "removed", "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if self._scope[-1:] != ["__init__"]:
                self._note(node, "removed", "pass")
            case _:
                pass

    def _condition(self, node: ast.AST) -> None:
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                self._negated(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    self._negated(test)
            case ast.match_case(guard=ast.expr() as test):
                self._negated(test)
            case _:
                pass

    def _negated(self, test: ast.expr) -> None:
        match test:
            case ast.Compare(ops=[op]) if isinstance(op, _NEGATIONS):
                return  # swapping the operands changes nothing
            case ast.UnaryOp(op=ast.Not()) | ast.Constant():
                return
            case _:
                self._note(test, "negated", f"(not {_text(test)})")

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.Compare():
                for index, op in enumerate(node.ops):
                    changed = copy.copy(node)
                    changed.ops = [*node.ops[:index], _COMPARISONS[type(op)](), *node.ops[index + 1 :]]
                    self._note(node, "comparison", f"({ast.unparse(changed)})")
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                self._note(node, "and/or", f"({ast.unparse(ast.BoolOp(other, node.values))})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._note(node, "negated", _text(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._note(node, "arithmetic", _text(operand))
            case ast.BinOp() if type(node.op) in _ARITHMETIC and not _is_joined(node):
                changed_op = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
                self._note(node, "arithmetic", f"({ast.unparse(changed_op)})")
            case ast.Constant():
                for replacement in _constants(node.value):
                    self._note(node, "constant", replacement)
            case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)):
                for bound in (lower, upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        self._note(bound, "arithmetic", f"({ast.unparse(bound)} + 1)")
            case ast.Call():
                self._call(node)
            case _:
                pass

    def _call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _NAMES:
            changed = ast.Call(ast.Name(_NAMES[name]), node.args, node.keywords)
            self._note(node, "min/max", ast.unparse(changed))
        first, second = node.args[:2] if len(node.args) > 1 else (None, None)
        if first is None or second is None or name in _UNSWAPPED:
            return
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            return
        if not _is_text(first) and not _is_text(second) and ast.dump(first) != ast.dump(second):
            changed = ast.Call(node.func, [second, first, *node.args[2:]], node.keywords)
            self._note(node, "arguments", ast.unparse(changed))


def _text(node: ast.expr) -> str:
    atom = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript)
    return ast.unparse(node) if atom else f"({ast.unparse(node)})"


def _constants(value: object) -> Iterator[str]:
    match value:
        case bool():
            yield str(not value)
        case int() if value <= _SMALL:
            yield str(value + 1)
            if value:
                yield str(value - 1)
        case int() | float() if value:  # 0.0 is equal to both replacements
            yield from ("0", str(value * 1000))
        case None:
            yield "0"
        case _:
            pass


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.pattern():
            return True
        case ast.Subscript(value=ast.Name(id=name)):
            return name in _GENERIC
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.Expr(value=ast.Constant()):
            return True
        case ast.keyword(arg="repr"):
            return True
        case ast.Call():
            return _is_silent(node)
        case _:
            return False


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _means_absent(node: ast.AST) -> bool:
    """Return True if the node behaves the same with another false value in place of None."""
    match node:
        case ast.Compare() | ast.Assign(targets=[ast.Subscript()]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _DEFAULTING
        case _:
            return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_joined(node: ast.BinOp) -> bool:
    """Return True if the operator joins text, tuples or lists: any other operator would fail."""
    joined = ast.Tuple | ast.List | ast.JoinedStr | ast.ListComp
    return any(
        isinstance(side, joined) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _is_silent(node: ast.Call) -> bool:
    """Return True if a call only informs a person or the type checker."""
    match node.func:
        case ast.Attribute(value=ast.Name(id=name)) if name in _LOGGERS:
            return True
        case ast.Name(id="TypeVar" | "NewType" | "print"):
            return True
        case _:
            return False
