"""The page docs/adding-a-method.md, block by block, and the mistakes it lists."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-method.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.S)
METHOD, RANKED, *_ = (text for kind, text in BLOCKS if kind == "python")
TABLE = re.findall(r"^\| (?!mistake|---)(.*?) \| (.*?) \|$", PAGE, re.M)


def python(folder, *words):
    """Another process in a folder of its own, as a user has it: nothing but the installed package on the path."""
    paths = str(Path(tacit.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout, found.stderr


def test_the_method_is_at_most_25_lines_of_its_own():
    """Its class, without imports, blank lines and what every class has anyway: its head and its docstring."""
    (cls,) = (node for node in ast.parse(METHOD).body if isinstance(node, ast.ClassDef))
    own = [line for line in METHOD.splitlines()[cls.body[0].end_lineno : cls.end_lineno] if line.strip()]
    assert 0 < len(own) <= 25


def test_every_block_of_the_page_runs(tmp_path):
    (tmp_path / "biased.py").write_text(METHOD)
    (tmp_path / "ranked.py").write_text(RANKED)
    ran = 0
    for kind, text in BLOCKS:
        if kind == "python" and text not in (METHOD, RANKED):
            code, _, said = python(tmp_path, "-c", text)
            assert code == 0, said
            ran += 1
        for line in text.splitlines() if not kind else ():
            code, out, said = python(tmp_path, "-m", *shlex.split(line))
            assert code == 0, said
            assert "biased:BiasedMF" in out or "ranked:Ranked" in out
            ran += 1
    assert ran == 4


LEAVES = '        return super().leaves() | {"bias": shared(table=True)}\n'
MADE = '        return super().init_server(federation) | {"bias": torch.zeros(federation.n_items, 1)}\n'
MISTAKES = {
    "the module is nowhere": (METHOD, METHOD),
    "`leaves` does not name the bias": (LEAVES, "        return super().leaves()\n"),
    "`init_server` does not make it": (MADE, "        return super().init_server(federation)\n"),
    "`@dataclass` is missing": ("@dataclass(frozen=True)\n", ""),
    "an aggregation that is no sum": (
        '    individual: ClassVar[str] = "it takes the median',
        '    individual: ClassVar[str] = ""  # "',
    ),
    "scores of another shape": (
        'return dot(p["user"], table[..., :-1]) + table[..., -1][:, None]',
        "return table[..., -1][:, None]",
    ),
    "`score` without `pairs`": (METHOD[METHOD.index("\n    def pairs") :], "\n"),
}


@pytest.mark.parametrize(("mistake", "sentence"), TABLE)
def test_a_mistake_says_what_the_page_says(mistake, sentence, tmp_path):
    before, after = MISTAKES[mistake]
    assert before in METHOD or before in RANKED
    (tmp_path / "biased.py").write_text(METHOD.replace(before, after))
    (tmp_path / "ranked.py").write_text(RANKED.replace(before, after))
    name = "biassed:BiasedMF" if "module" in mistake else "biased:BiasedMF" if before in METHOD else "ranked:Ranked"
    code, _, said = python(tmp_path, "-m", "tacit", "run", name, "--data", "demo", "--rounds", "1")
    assert code == 2
    assert " ".join(said.split()).endswith(sentence)
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


def test_every_mistake_is_on_the_page():
    assert {mistake for mistake, _ in TABLE} == set(MISTAKES)
