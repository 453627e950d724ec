"""What modules hold and import, read and not imported."""

import ast
from collections.abc import Iterator
from functools import cache

from support.paths import ROOT


@cache
def imports(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import of a module, wherever it stands, and whether it is imported when the module is."""

    def walk(node: ast.AST, early: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, early
        early = early and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        early = early and not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):  # what may hold statements
            inner = getattr(node, name, ())
            for statement in inner if isinstance(inner, list) else ():  # a lambda's body is an expression
                yield from walk(statement, early)

    return list(walk(ast.parse(source), True))


@cache
def defined(module):
    """Names that a module of the package defines or imports at its top level; None where there is no such module."""
    folder = ROOT.joinpath(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not file.is_file():
        return None
    found = {path.stem for path in folder.iterdir()} if folder.is_dir() else set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for inner in ast.walk(node) if isinstance(node, ast.If | ast.Try) else [node]:
            if isinstance(inner, ast.Import | ast.ImportFrom):
                found |= {(alias.asname or alias.name).split(".")[0] for alias in inner.names}
            elif isinstance(inner, ast.Assign):
                found |= {
                    part.id for target in inner.targets for part in ast.walk(target) if isinstance(part, ast.Name)
                }
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                found.add(inner.target.id)
            elif hasattr(inner, "name"):
                found.add(inner.name)
    return found
