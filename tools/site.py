"""The pages of the site that are made of something else: the API reference, from docstrings, and the list of decisions.

Sources are parsed, never imported: this takes a second and needs none of tacit's dependencies.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

# page -> its title and its parts: a module, and what of it; nothing named: all that is public
PAGES: dict[str, tuple[str, list[tuple[str, tuple[str, ...]]]]] = {
    "running": (
        "Running and using",
        [
            ("tacit.runs.run", ("run", "resume", "Recommendation")),
            ("tacit.runs.train", ("train",)),
            ("tacit.runs.model", ("Model", "Recommendations", "load", "recommend")),
            ("tacit.runs.compare", ("compare", "Rows", "Row")),
            ("tacit.runs.search", ("search", "Search", "Trial", "Budget")),
            ("tacit.runs.summary", ("Summary",)),
            ("tacit.runs.lines", ("lines",)),
            ("tacit.config", ("RunConfig", "Ldp", "Dp")),
            ("tacit.errors", ("UserError",)),
        ],
    ),
    "methods": (
        "Methods",
        [
            ("tacit.core.method", ("Method", "Moment")),
            ("tacit.core.trained", ("Trained", "Phase")),
            ("tacit.core.closed_form", ("ClosedForm",)),
            ("tacit.core.plug", ("Plug",)),
            ("tacit.core.capabilities", ()),
            ("tacit.core.leaves", ()),
            ("tacit.core.settings", ("Search", "Setting", "settings_of")),
            ("tacit.core.payload", ()),
            ("tacit.core.aggregate", ()),
            ("tacit.core.scorers", ()),
        ],
    ),
    "evaluation": (
        "Metrics and protocols",
        [
            ("tacit.evaluation.metrics.metric", ()),
            ("tacit.evaluation.metrics", ("find", "names", "selecting")),
            ("tacit.evaluation.protocol", ()),
            ("tacit.data.splits", ()),
        ],
    ),
    "privacy": (
        "Privacy",
        [
            ("tacit.privacy.mechanisms", ()),
            ("tacit.privacy.accountant", ()),
            ("tacit.privacy.shared_noise", ()),
            ("tacit.privacy.secure_fleet", ()),
        ],
    ),
    "data": (
        "Data",
        [
            ("tacit.data.frames", ("Data",)),
            ("tacit.data.interactions", ()),
            ("tacit.data.sources", ()),
            ("tacit.data.cohort", ("Federation", "Cohort", "Batch")),
        ],
    ),
    "testing": ("Tests for extensions", [("tacit.testing", ())]),
}


def main() -> None:
    """Write docs/reference and docs/decisions/index.md."""
    folder = DOCS / "reference"
    folder.mkdir(exist_ok=True)
    for page, (title, parts) in PAGES.items():
        text = [f"# {title}", ""]
        for module, names in parts:
            text += described(module, names)
        (folder / f"{page}.md").write_text("\n".join(text), encoding="utf-8")
    lines = ["# Decisions", "", "Where there was a real alternative: what was chosen, why, and what it costs.", ""]
    for path in sorted((DOCS / "decisions").glob("0*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        number = path.name[:4].lstrip("0")
        lines.append(f"- [{number}. {title.removeprefix(f'{number}. ')}]({path.name})")
    (DOCS / "decisions" / "index.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def described(module: str, names: tuple[str, ...]) -> list[str]:
    """A module's classes and functions, each with its signature and docstring."""
    base = ROOT / "src" / Path(*module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if missing := [name for name in names if name not in found]:
        raise SystemExit(f"{module} has no {', '.join(missing)}; correct PAGES of {Path(__file__).name}")
    chosen = names or tuple(name for name in found if not name.startswith("_"))
    out = [f"## `{module}`", "", ast.get_docstring(tree) or "", ""]
    for name in chosen:
        node = found[name]
        out += [f"### `{name}`", "", *_block(_head(node)), _text(node)]
        for member in _members(node):
            out += [f"#### `{name}.{member.name}`", "", *_block(_head(member)), _text(member)]
    return out


def _members(node: ast.stmt) -> Iterator[ast.FunctionDef]:
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and ast.get_docstring(member):
                yield member


def _head(node: ast.ClassDef | ast.FunctionDef) -> str:
    """A signature, and of a class its fields, as they stand in the source."""
    if isinstance(node, ast.FunctionDef):
        marks = [f"@{ast.unparse(d)}\n" for d in node.decorator_list]
        returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        line = f"def {node.name}({ast.unparse(node.args)}){returned}"
        if len(line) > 88:
            line = f"def {node.name}(\n{_arguments(node.args)}){returned}"
        return "".join(marks) + line
    bases = ", ".join(map(ast.unparse, node.bases))
    fields = [f"    {ast.unparse(part)}" for part in node.body if isinstance(part, ast.AnnAssign)]
    fields = [field for field in fields if not field.strip().startswith("_")]
    return "\n".join([f"class {node.name}({bases})" if bases else f"class {node.name}", *fields])


def _arguments(given: ast.arguments) -> str:
    """One a line."""
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    parts = [_argument(one, value) for one, value in zip(plain, defaults, strict=True)]
    if given.vararg or given.kwonlyargs:
        parts.append(f"*{ast.unparse(given.vararg)}" if given.vararg else "*")
    parts += [_argument(one, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    parts += [f"**{ast.unparse(given.kwarg)}"] if given.kwarg else []
    return "".join(f"    {part},\n" for part in parts)


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + (f" = {ast.unparse(default)}" if default is not None else "")


def _block(code: str) -> list[str]:
    return ["```python", code, "```", ""]


def _text(node: ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").replace("<", "&lt;") + "\n"


if __name__ == "__main__":
    main()
