"""Phrases that no native engineer would write stay out of messages, docstrings and pages."""

import re

import pytest
from documents import DOCS, ROOT

PHRASES = [
    r"gone on with",
    r"does not do for",
    r"no second word",
    r"to be no hindrance",
    r"as wide as a client can bear",
    r"a line a (round|node|run|metric|user)",
    r"\bso many (rounds|users|clients|nodes|seconds)\b",
    r"\banew\b",
]
FILES = [
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    if "reference" not in path.parts
]


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_is_nowhere(phrase):
    found = [str(path.relative_to(ROOT)) for path in FILES if re.search(phrase, path.read_text(encoding="utf-8"))]
    assert not found
