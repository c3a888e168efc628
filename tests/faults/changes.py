"""Changes of the code in one place each, for mutate.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OTHER_COMPARISON = {
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
OTHER_OPERATOR = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Change:
    """A change of one place of a file.

    Attributes:
        path: The file, relative to the root of the tree.
        lines: Line numbers of the place, from 1.
        old: The text before.
        new: The text after.
        content: Text of the whole file after the change.
    """

    path: Path
    lines: range
    old: str
    new: str
    content: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:100] for text in (self.old, self.new))
        return f"{self.path}:{self.lines[0]}: {old}  ->  {new}"


def changes(root: Path, path: Path) -> Iterator[Change]:
    """Yield all changes of a file. Constants and messages outside of functions stay as they are."""
    text = (root / path).read_text()
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _in_functions(ast.parse(text)):
        place, new = _changed(node)
        if new is None:
            continue
        begin = starts[place.lineno - 1] + place.col_offset
        end = starts[place.end_lineno - 1] + place.end_col_offset
        content = data[:begin] + new.encode() + data[end:]
        lines = range(place.lineno, place.end_lineno + 1)
        yield Change(path, lines, data[begin:end].decode(), new, content.decode())


def _in_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes in the bodies of functions, without docstrings, messages and annotations."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        inside, children = True, tree.body
    elif isinstance(tree, ast.JoinedStr):
        return
    elif isinstance(tree, ast.AnnAssign):
        children = [node for node in (tree.value,) if node]
    else:
        children = list(ast.iter_child_nodes(tree))
    for node in children:
        if inside and hasattr(node, "lineno"):
            yield node
        yield from _in_functions(node, inside)


def _changed(node: ast.AST) -> tuple[ast.AST, str | None]:
    """Return the node to replace and its new source, or None if this kind is not changed."""
    if isinstance(node, ast.If):
        return node.test, f"(not ({ast.unparse(node.test)}))"
    return node, _new_source(node)


def _new_source(node: ast.AST) -> str | None:
    match node:
        case ast.Compare(ops=[first, *_]) if type(first) in OTHER_COMPARISON:
            ops = [OTHER_COMPARISON[type(first)](), *node.ops[1:]]
            return f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
        case ast.BoolOp():
            return f"({ast.unparse(ast.BoolOp(OTHER_OPERATOR[type(node.op)](), node.values))})"
        case ast.BinOp() if type(node.op) in OTHER_OPERATOR:
            new = ast.BinOp(node.left, OTHER_OPERATOR[type(node.op)](), node.right)
            return f"({ast.unparse(new)})"
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            return repr(value + 1)
        case ast.UnaryOp(op=ast.Not()):
            return f"({ast.unparse(node.operand)})"
        case ast.IfExp():
            return f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
        case ast.Raise(exc=ast.expr()) | ast.Expr(value=ast.Call()):
            return "pass"
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            return "return None"
    return None
