"""Every published table that was run, in full, a page a paper; and how far each has been run, for the page of results.

python tools/tables.py

reads the runs that are kept in docs/results/data and writes docs/results/tables and the list of docs/results/index.md.
What the figures mean is said by hand, on the paper's own page.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tacit.runs import archive, experiments, paper_tables, papers_state
from tacit.runs.published import names

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs/results/data"
PAGES = ROOT / "docs/results/tables"
INDEX = ROOT / "docs/results/index.md"
PICTURES = ROOT / "docs/images/papers"
PAPERS = {"cgfedrec": "CGFedRec", "fedcia": "FedCIA", "hetefedrec": "HeteFedRec", "pfedclr": "PFedCLR", "plgc": "PLGC"}
LIST = re.compile(r"^\| table \| data \|.*?(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


def pages(kept: Path = KEPT) -> dict[Path, str]:
    """What every page says."""
    found, damaged = papers_state.states(kept)
    if damaged:
        raise SystemExit("\n".join(damaged))
    index = INDEX.read_text(encoding="utf-8")
    written = {PAGES / f"{stem}.md": _page(stem, paper, kept, _of(stem, found)) for stem, paper in PAPERS.items()}
    return written | {INDEX: LIST.sub(lambda _: papers_state.markdown(found), index)}


def _of(stem: str, found: list[papers_state.State]) -> list[papers_state.State]:
    """The lines of a paper's own tables, tables before figures."""
    return sorted((state for state in found if state.name.startswith(f"{stem}-")), key=lambda state: _order(state.name))


def _page(stem: str, paper: str, kept: Path, found: list[papers_state.State]) -> str:
    head = f"""# {paper}: every table that was run

Written by `python tools/tables.py` from the runs in `docs/results/data`; what they mean, and what was run before runs
were kept, is on the [page of {paper}](../{stem}.md). *Reproduced* is within a tenth of what is printed, under the
paper's own protocol; *above* and *below* are beyond that; a dash is a run that is not there. CPU seconds are those of a
round, on machines that differ from run to run.

{papers_state.markdown(found)}
"""
    own = sorted((name for name in names() if name.startswith(f"{stem}-")), key=_order)
    sections = [text for name in own for text in _sections(name, kept)]
    return "\n".join([head, *sections])


def _order(name: str) -> tuple[bool, list[str]]:
    """Tables before figures, 9 before 13."""
    return "figure" in name, [part.zfill(3) for part in re.split(r"(\d+)", name)]


def _sections(name: str, kept: Path) -> Iterator[str]:
    places = list(papers_state.places(kept, name))
    for rounds, place in places:
        with archive.opened(place) as runs:
            asked = experiments.altered(experiments.read(Path(name)), rounds=rounds)
            found = experiments.collect(asked, runs)
        begun = [data for data in asked.data if paper_tables.begun(data.name, found)]
        missing = [data.name for data in asked.data if data not in begun]
        if not begun:
            continue
        change = {"data": begun, "note": asked.note.strip()}
        if rounds is not None:
            change["title"] = f"{asked.title}; {rounds} rounds"
        text = paper_tables.markdown(asked.model_copy(update=change), found).strip()
        text = re.sub(r"^#", "##", text, flags=re.MULTILINE)
        extra = "" if rounds is None else f" --rounds {rounds}"
        text += f"\n\nFrom `tacit experiment {name}{extra}`."
        if missing:
            text += f" In the file and not run: {', '.join(missing)}."
        for picture in _pictures(name) if rounds == places[0][0] else []:
            text += f"\n\n![{picture.stem}](../../images/papers/{picture.name})"
        yield text + "\n"


def _pictures(name: str) -> list[Path]:
    """Those that tools/pictures.py has drawn of an experiment: with its own rounds, if it was run with them."""
    kinds = ("published", "learning-curves", "sweep")
    return sorted(path for kind in kinds for path in PICTURES.glob(f"{name}-{kind}-*.svg"))


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
