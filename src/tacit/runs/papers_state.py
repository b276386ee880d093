"""How far the published tables have been run, and what came out: a line a table and data set."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import UserError
from tacit.runs import archive, experiments
from tacit.runs.experiments import Experiment, Found
from tacit.runs.paper_tables import verdicts
from tacit.runs.published import names

WORDS = ("reproduced", "above", "below", "mixed")
HEADINGS = ("table", "data", "rows run", "strict", "seeds", *WORDS, "nothing to compare")


@dataclass(frozen=True)
class State:
    """An experiment on a data set."""

    name: str
    data: str
    rows: int
    run: int  # rows with a finished run under any protocol
    strict: int | None  # … under strict; None where the file does not ask for it
    seeds: tuple[int, int]  # fewest and most behind a row
    words: Counter[str]  # of its rows

    def texts(self) -> list[str]:
        """The cells of a table."""
        few, many = self.seeds
        counts = [str(self.words[word] or "") for word in (*WORDS, "")]
        of_strict = "" if self.strict is None else str(self.strict)
        done = f"{self.run} of {self.rows}"
        return [self.name, self.data, done, of_strict, str(few) if few == many else f"{few}–{many}", *counts]


def states(where: Path) -> tuple[list[State], list[str]]:
    """Of every experiment that comes with tacit and has something finished in `where`, a folder or a kept file each.

    With other rounds than the file's it has a place of its own, NAME-rounds-N, and a line of its own. Beside these,
    a sentence about every place that cannot be read.
    """
    found, damaged = [], []
    for name in names():
        for rounds, place in places(where, name):
            asked = experiments.altered(experiments.read(Path(name)), rounds=rounds)
            label = name if rounds is None else f"{name}, {rounds} rounds"
            try:
                with archive.opened(place) as runs:
                    found += _of(label, asked, experiments.collect(asked, runs))
            except UserError as error:
                damaged.append(str(error))
    return found, damaged


def places(where: Path, name: str) -> Iterator[tuple[int | None, Path]]:
    """(rounds, place) of an experiment's runs, the file's own rounds first; a kept file before a folder."""
    there: dict[int | None, Path] = {}
    for place in sorted(where.glob(f"{name}*"), key=lambda path: path.suffix != ".json"):
        called = re.fullmatch(re.escape(name) + r"(?:-rounds-(\d{1,9}))?(?:\.json)?", place.name)
        if called and (rounds := int(called[1]) if called[1] else None) != 0:
            there.setdefault(rounds, place)
    yield from sorted(there.items(), key=lambda item: item[0] or 0)


def markdown(found: list[State]) -> str:
    """As a table."""
    lines = [list(HEADINGS), *(one.texts() for one in found)]
    made = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([made[0], f"|{'---|' * len(HEADINGS)}", *made[1:]])


def _of(name: str, asked: Experiment, found: Found) -> list[State]:
    out = []
    for place in asked.data:
        rows = [row for row in experiments.rows(asked) if not row[1].data or place.name in row[1].data]
        words: Counter[str] = Counter()
        counts, strict = [], 0
        for label, line, _, number in rows:
            cells = {p: cell for p in asked.protocols if (cell := found.get((label, place.name, p))) and cell.runs}
            if not cells:
                continue
            counts += [len(cell.runs) for cell in cells.values()]
            strict += "strict" in cells
            words[_word([v[0] for v in verdicts(asked, place.name, found, (label, line, number)) if v])] += 1
        if counts:
            seeds = min(counts), max(counts)
            strict_of = strict if "strict" in asked.protocols else None
            out.append(State(name, place.name, len(rows), words.total(), strict_of, seeds, words))
    return out


def _word(of_metrics: list[str]) -> str:
    """One word for a row: reproduced where all of its metrics are; empty where nothing is to compare with."""
    apart = {word for word in of_metrics if word != "reproduced"}
    if not apart:
        return "reproduced" if of_metrics else ""
    return apart.pop() if len(apart) == 1 and apart <= {"above", "below"} else "mixed"
