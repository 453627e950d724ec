"""What modules of the package hold, read and not imported."""

import ast

from support.paths import ROOT


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
