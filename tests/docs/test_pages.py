"""Every command and every Python block of the pages runs, in order; of other pages, every option exists."""

import shlex
import sys

import click
import pytest
import typer
from documents import DOCS, ROOT, blocks

from tacit.cli import main
from tacit.cli.app import app

QUICK = ["how-it-works.md", "adding-a-mechanism.md", "adding-a-data-set.md"]
LONG = ["index.md", "privacy.md", "papers.md", "search.md"]
ELSEWHERE = {  # page -> the test that runs it
    "adding-a-method.md": "tests/docs/test_adding_a_method.py",
    "adding-a-metric.md": "tests/evaluation/metrics/test_metrics.py",
    "deploy.md": "benchmarks/operate.py",
}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in LONG)])
def test_a_page_does_what_it_says(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = 0
    for block in blocks(DOCS / name):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(block.text, name, "exec"), {"__name__": "__page__"})
            ran += 1
        elif block.kind == "bash":
            for line in block.text.splitlines():
                words = shlex.split(line, comments=True)
                if not words:
                    continue
                assert words[0] == "tacit", line
                monkeypatch.setattr(sys, "argv", words)
                with pytest.raises(SystemExit) as caught:
                    main()
                assert not caught.value.code, f"{line}: {capsys.readouterr().err}"
                ran += 1
    assert ran


def test_every_page_with_code_is_tried_somewhere():
    with_code = {p.name for p in DOCS.glob("*.md") if any(b.kind in ("python", "bash") for b in blocks(p))}
    assert with_code == {*QUICK, *LONG, *ELSEWHERE}
    for test in ELSEWHERE.values():
        assert (ROOT / test).is_file()


def _parsed(words, command, context=None):
    """Let click read the words without carrying anything out; an unknown option or command raises."""
    with command.make_context("tacit", list(words), parent=context, resilient_parsing=False) as made:
        if isinstance(command, click.Group) and made._protected_args:
            _, child, rest = command.resolve_command(made, [*made._protected_args, *made.args])
            _parsed(rest, child, made)


def test_every_command_anywhere_can_be_typed():
    """README, results and decisions too: what takes hours is read by the command line's own parser."""
    group = typer.main.get_command(app)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    tried = 0
    for page in pages:
        for block in blocks(page):
            for words in block.commands:
                try:
                    _parsed(words, group)
                except click.ClickException as error:
                    pytest.fail(f"{page.name}: tacit {' '.join(words)}: {error.format_message()}")
                tried += 1
    assert tried > 50
