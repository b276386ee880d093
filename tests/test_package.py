"""What is shipped: a wheel in an environment of its own, and nothing that another system lacks."""

import ast
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tacit"
MISSING_ON_WINDOWS = {"resource", "fcntl", "termios", "tty", "pty", "pwd", "grp", "syslog"}


def test_nothing_is_imported_that_windows_lacks():
    """At the top of a module, that is: within a function, or behind a question for the platform, it may be."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not MISSING_ON_WINDOWS.intersection(names), path


def test_the_metadata_say_where_and_what():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"Documentation", "Source", "Issues", "Changelog"} <= set(project["urls"])
    assert any(c.startswith("Topic ::") for c in project["classifiers"])
    assert "federated learning" in project["keywords"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built offline from a copy of what is under version control."""
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--wheel-dir", place, ROOT],
        check=True,
    )  # fmt: skip
    return next(place.glob("tacit-*.whl"))


@pytest.mark.slow
def test_the_wheel_has_everything(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tacit/py.typed", "tacit/experiments/pfedclr-table2.toml", "tacit/cli/app.py"} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "experiments"))]


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_of_its_own(wheel, tmp_path):
    """The dependencies are this environment's, by a .pth file; tacit itself is the wheel's alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    inside = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    installing = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*installing, wheel], check=True)
    outside = [p for p in sys.path if p.endswith("site-packages")]
    (inside / "dependencies.pth").write_text("\n".join(outside))
    here = tmp_path / "here"
    here.mkdir()
    free = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TACIT_DATA")}

    def call(*words):
        found = subprocess.run(
            [python.with_name("tacit"), *words], cwd=here, env=free, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    where = subprocess.run(
        [python, "-c", "import tacit; print(tacit.__file__)"], cwd=here, env=free, capture_output=True, text=True
    ).stdout
    assert str(inside) in where
    assert "recommended" in call("run", "--data", "demo", "--threads", "1")
    shown = call("experiment", "pfedclr-table2", "--data", "demo", "--rounds", "2")
    assert "demo" in shown
    assert "CLR" in shown
