import ast
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent

# room -> the rooms it may import; everything may import itself
BELOW = {
    "errors": set(),
    "registry": {"errors"},
    "rng": {"errors"},
    "data": {"errors", "rng"},
    "core": {"errors", "rng", "data"},
    "methods": {"errors", "registry", "rng", "data", "core", "privacy"},  # a method may state its own privacy budget
    "privacy": {"errors", "registry", "rng", "data", "core"},
    "evaluation": {"errors", "registry", "rng", "data", "core"},
    "config": {"errors", "registry", "data", "core", "evaluation", "privacy"},
}
BELOW["runs"] = set(BELOW)
BELOW["testing"] = BELOW["runs"] | {"runs"}
BELOW["deploy"] = BELOW["figures"] = BELOW["runs"] | {"runs"}
BELOW["serving"] = BELOW["deploy"] | {"deploy", "figures"}
BELOW["studio"] = BELOW["serving"] | {"serving"}
BELOW["cli"] = set(BELOW) | {"runs", "deploy", "studio"}
BELOW["__init__"] = {"errors", "data", "runs"}  # what `import tacit` offers
BELOW["__main__"] = {"cli"}


def room_of(file, root):
    return file.relative_to(root).with_suffix("").parts[0]


def imported(source, package):
    """The rooms of tacit that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            parts = package[: len(package) - node.level + 1]
            names = [".".join([*parts, node.module or alias.name]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"tacit.{alias.name}" for alias in node.names] if node.module == "tacit" else [node.module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "tacit":
                yield (parts[1] if len(parts) > 1 else "__init__"), node.lineno


def violations(root):
    found = []
    for file in sorted(root.rglob("*.py")):
        room = room_of(file, root)
        package = ["tacit", *file.relative_to(root).parts[:-1]]
        for other, line in imported(file.read_text(), package):
            if other != room and other not in BELOW[room]:
                found.append(f"{file.relative_to(root)}:{line} imports {other}")
    return found


def test_imports_point_one_way():
    assert violations(ROOT) == []


def test_every_room_has_its_place():
    rooms = {room_of(file, ROOT) for file in ROOT.rglob("*.py")}
    assert rooms <= set(BELOW), "give a new room its place in BELOW"


def test_the_rooms_allow_no_circle():
    for room, others in BELOW.items():
        for other in others - {room}:
            assert room not in BELOW.get(other, set()), f"{room} and {other} may import each other"


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/fleet.py", "from tacit.methods import find"),
        ("core/fleet.py", "from tacit import methods"),
        ("core/fleet.py", "import tacit.methods.fedmf"),
        ("core/fleet.py", "from ..methods import find"),
        ("core/fleet.py", "from .. import methods"),
        ("core/fleet.py", "def late():\n    from tacit.runs.run import run"),
        ("methods/fedmf.py", "from tacit.evaluation.metrics import KS"),
        ("methods/fedmf.py", "from tacit.config import build"),
        ("methods/fedmf.py", "import tacit"),
        ("evaluation/metrics.py", "from tacit.methods import find"),
        ("runs/run.py", "from tacit.studio import page"),
        ("data/splits.py", "from tacit.core.payload import Payload"),
        ("config.py", "from tacit.methods import find"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, file, line):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/fleet.py", "from tacit import rng"),
        ("core/fleet.py", "from .payload import Payload\nimport torch"),
        ("methods/fedmf.py", "from tacit.methods.fedncf import FedNCF"),
        ("studio/app.py", "from tacit.runs.folder import RunFolder"),
        ("cli.py", "from tacit import methods\nfrom tacit.config import config"),
    ],
)
def test_a_right_import_is_not(tmp_path, file, line):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert violations(tmp_path) == []
