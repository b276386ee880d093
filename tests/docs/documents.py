"""The pages of docs/ as a test sees them: files to write, Python to run, commands to type, in order."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHELL = ("|", "&", ">", "2>")
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.S | re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str  # bash, python, csv, …
    file: str  # the file it is saved as, if it has a title
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each `tacit …` line, without what is the shell's."""
        lines = [part for line in self.text.replace("\\\n", " ").splitlines() for part in line.split(" && ")]
        typed = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("tacit ")]
        return [words[: next((n for n, word in enumerate(words) if word in SHELL), None)] for words in typed]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]
