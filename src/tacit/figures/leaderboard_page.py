"""The leaderboard as a page and a picture."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tacit.errors import UserError
from tacit.figures.leaderboard import MAIN, Line, boards, chance, entries, merged, read, written
from tacit.figures.records import Record
from tacit.figures.rows import Spread
from tacit.runs.files import write_text
from tacit.runs.wording import budget, size

LEVEL = 0.05  # of a difference that is called one
HEAD = """# Leaderboard

All methods on one ground: `strict`, so that no method can read the answer from how it was drawn
([protocols](../protocols.md)), every item ranked, the test set read once at the round that validation chose.
*Default* are a method's own settings; *best* are those of a search on validation alone, with the same budget for
every method ([search](../search.md)). Figures are means over seeds, ± their standard deviation.

Lines are in order of NDCG@10, of the best settings where there was a search. *p* is that of a paired t-test over
users between a line and
the next one, on each user's NDCG@10, mean over seeds: above .05 the order of the two may be chance. Coverage is the
share of the catalogue in anyone's first ten, novelty in bits. Bytes are those of one client over the whole run;
*pooled* methods have all data in one place. CPU is that of one run, evaluation included. ε is what a run costs a
client at most; – promises nothing. Seeds 1 / 3: the
default has one, the best three.
"""
OUTSIDE = """## How to add a row from outside

A method of your own is a class in a file of your own ([adding a method](../adding-a-method.md)). Search, run and
add it:

```text
tacit search mine:Mine --data ml-100k --trials {trials} --final-seeds 0,1,2 --out runs/mine
tacit leaderboard runs/mine --out leaderboard.md
```

The second command adds what is finished below `runs/mine` to `leaderboard.json`, beside the page, and draws page
and picture again; without any folder it only draws. A copy of this page's `{kept}` puts your row among ours. Runs
of `tacit run` and `tacit compare` are taken, too, as default settings or, with `--set`, as lines of their own. A
row counts here when it was run under `strict` without a filter, on seeds 0, 1 and 2, with no more trials than the
others, and says its command.
"""


def update(records: Sequence[Record], page: Path) -> tuple[int, int]:
    """Add finished runs to what is kept beside a page, and draw it; gives how many are new and how many there are."""
    if page.suffix in (".json", ".svg") or not page.name:
        raise UserError(
            f"--out '{page}' is no page: figures and picture stand beside it; name one such as leaderboard.md"
        )
    store = page.with_suffix(".json")
    new = entries(records)
    kept = merged(read(store), new)
    if not kept:
        raise UserError(
            f"nothing to show: {store} is not there, and no run with test figures under strict was named; "
            "tacit search METHOD --final-seeds 0,1,2 --out DIR makes some"
        )
    found = boards(kept)
    texts = {store: written(kept), page: markdown(found, page), page.with_suffix(".svg"): picture(found)}
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {page}: {error.strerror}; name another --out") from error
    for path, text in texts.items():
        write_text(path, text)
    return len(new), len(kept)


def markdown(found: dict[str, list[Line]], page: Path) -> str:
    """The whole page."""
    out = [HEAD, f"![{MAIN} of every method, default and best settings]({page.stem}.svg)", ""]
    if len(found) > 1:
        out += ["## All data sets", "", f"HR@10 / {MAIN} of what a line is ranked by.", "", *overview(found), ""]
    for data, lines in found.items():
        out += [f"## {_cell(data)}", "", *table(lines), ""]
    out += ["## The best settings", "", "Each line repeats a row's first seed, test figures included.", ""]
    for data, lines in found.items():
        commands = [line.shown[0]["command"] for line in lines]
        out += [f"{_cell(data)}:", "", "```text", *map(_line, commands), "```", ""]
    trials = max((line.trials for lines in found.values() for line in lines), default=20) or 20
    out.append(OUTSIDE.format(trials=trials, kept=page.with_suffix(".json").name))
    return "\n".join(out)


def overview(found: dict[str, list[Line]]) -> list[str]:
    """All methods by all data sets; methods in the order of the first."""
    cells: dict[str, dict[str, str]] = {}
    for data, lines in found.items():
        for line in lines:
            shown = " / ".join(_short(line.figure(name), 4) for name in ("HR@10", MAIN))
            cells.setdefault(_cell(line.label), {})[data] = shown
    out = [f"| method | {' | '.join(map(_cell, found))} |", "|:--|" + "--:|" * len(found)]
    return out + [f"| {label} | {' | '.join(at.get(data, '–') for data in found)} |" for label, at in cells.items()]


def _line(text: str) -> str:
    """Without anything that would end the line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _cell(text: str) -> str:
    """A text from elsewhere as part of a table."""
    return escape(_line(text)).replace("\\", "\\\\").replace("|", "\\|")


def table(lines: Sequence[Line]) -> list[str]:
    """One data set: a line a method, the best first."""
    heads = ["", "method", "HR@10, default", f"{MAIN}, default", "HR@10, best", f"{MAIN}, best", "p", "coverage"]
    heads += ["novelty", "up", "down", "CPU s", "ε", "trials", "seeds"]
    out = [f"| {' | '.join(heads)} |", "|--:|:--|" + "--:|" * (len(heads) - 2)]
    for place, line in enumerate(lines, 1):
        p = chance(line, lines[place]) if place < len(lines) else None
        moved = ["pooled", ""] if line.pooled else [size((line.figure(name) or (0.0,))[0]) for name in ("up", "down")]
        cells = [
            str(place),
            _cell(line.label),
            *(_text(line.figure(name, "default")) for name in ("HR@10", MAIN)),
            *(_text(line.figure(name, "best")) for name in ("HR@10", MAIN)),
            _chance(p),
            _short(line.figure("Coverage@10"), 3),
            _short(line.figure("Novelty@10"), 2),
            *moved,
            _short(line.figure("cpu_seconds"), 1),
            budget(line.epsilon),
            str(line.trials or "–"),
            _seeds(line),
        ]
        out.append(f"| {' | '.join(cells)} |")
    return out


def _seeds(line: Line) -> str:
    """Of what a line is ranked by; of its default beside them, where these are others."""
    shown, default = len(line.shown), len(line.runs.get("default", ()))
    return str(shown) if default in (0, shown) else f"{default} / {shown}"


def _cut(label: str) -> str:
    """As much of a label as there is room for."""
    label = _line(label)
    return label if len(label) <= ROOM else label[: ROOM - 1] + "…"


def _text(figure: Spread | None) -> str:
    if figure is None:
        return "–"
    value, deviation = figure
    return f"{value:.4f}" + ("" if deviation is None else f" ±{deviation:.4f}")


def _short(figure: Spread | None, digits: int) -> str:
    return "–" if figure is None else f"{figure[0]:.{digits}f}"


def _chance(p: float | None) -> str:
    if p is None:
        return "–"
    text = "<.001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 1 else "1"
    return text if p < LEVEL else f"({text})"


WIDE, LEFT, ROW, TOP = 730, 206, 20, 46  # pixels: page, names, a line, above the first
ROOM = 28  # letters of a label


def picture(found: dict[str, list[Line]]) -> str:
    """A panel a data set: hollow default, filled best, whiskers a deviation over seeds."""
    parts, y = [], 0
    for data, lines in found.items():
        top = max([_upper(line.figure(MAIN, kind)) for line in lines for kind in ("default", "best")] + [1e-9])
        parts.append(_panel(data, lines, y, top))
        y += TOP + ROW * len(lines) + 34
    said = "; ".join(
        f"{data}: " + ", ".join(f"{x.label} {(x.figure(MAIN) or (0.0,))[0]:.4f}" for x in lines[:3])
        for data, lines in found.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {y}" width="{WIDE}" height="{y}" role="img" '
        f'aria-labelledby="t" font-family="system-ui, sans-serif" font-size="12" fill="#1a1c1f">\n'
        f'<title id="t">Test {MAIN}, the best of each data set: {escape(_line(said))}</title>\n'
        f'<rect width="{WIDE}" height="{y}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _upper(figure: Spread | None) -> float:
    return 0.0 if figure is None else figure[0] + (figure[1] or 0.0)


def _panel(data: str, lines: Sequence[Line], y: int, top: float) -> str:
    def at(value: float) -> float:
        return LEFT + (WIDE - LEFT - 24) * value / top

    bottom = y + TOP + ROW * len(lines)
    out = [
        f'<text x="8" y="{y + 22}" font-weight="700" font-size="14">{escape(_line(data))}</text>',
        f'<text x="{WIDE - 24}" y="{y + 22}" text-anchor="end" fill="#555">'
        f"test {MAIN}: ○ default, ● best, ± deviation</text>",
    ]
    out += [
        f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{y + TOP - 12}" y2="{bottom}" stroke="#e2e2e2"/>'
        f'<text x="{at(tick):.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{tick:g}</text>'
        for tick in _ticks(top)
    ]
    for place, line in enumerate(lines):
        middle = y + TOP + ROW * place
        colour = "#777777" if line.pooled or line.method in ("popularity", "oracle") else "#1f5fa8"
        out.append(f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(_cut(line.label))}</text>')
        default, best = line.figure(MAIN, "default"), line.figure(MAIN, "best")
        if default and best:
            out.append(
                f'<line x1="{at(default[0]):.1f}" x2="{at(best[0]):.1f}" y1="{middle}" y2="{middle}" stroke="#c5c9cf"/>'
            )
        for figure, fill in ((default, "#ffffff"), (best or (None if default else line.figure(MAIN)), colour)):
            if figure:
                if figure[1]:
                    low, high = at(max(0.0, figure[0] - figure[1])), at(figure[0] + figure[1])
                    out.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="{colour}"/>')
                out.append(f'<circle cx="{at(figure[0]):.1f}" cy="{middle}" r="4" fill="{fill}" stroke="{colour}"/>')
    return "\n".join(out)


def _ticks(top: float) -> list[float]:
    """Four or so round values from 0."""
    step = next(s for n in range(-5, 2) for s in (1 * 10.0**n, 2 * 10.0**n, 5 * 10.0**n) if top / s <= 6)
    return [round(step * k, 6) for k in range(int(top / step) + 1)]
