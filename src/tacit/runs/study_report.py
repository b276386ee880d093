"""What a person reads of the papers: published tables beside measured ones, and PFedCLR's study of skew."""

from collections.abc import Sequence

from rich.table import Table

from tacit.runs.experiments import Experiment, Found
from tacit.runs.paper_tables import headings, table_rows
from tacit.runs.papers_state import HEADINGS, State
from tacit.runs.report import plain
from tacit.runs.skew_study import Group, apart, every


def experiment(asked: Experiment, data: str, found: Found) -> Table:
    """Published and measured figures of one data set, one line per metric."""
    table = plain(data, narrow=True)
    first, *others = headings(asked)
    table.add_column(first)
    table.add_column("metric")
    for heading in others:
        table.add_column(heading.replace(" (", "\n("), justify="right")
    for label, *cells in table_rows(asked, data, found):
        table.add_row(label[0], "\n".join(asked.metrics), *("\n".join(cell) for cell in cells))
    return table


def papers(found: Sequence[State]) -> Table:
    """How far published tables have been run; rows by whether they agree with what is printed."""
    table = plain("published tables", narrow=True)
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if place < 2 else "right")
    for one in found:
        table.add_row(*one.texts())
    return table


def skew(found: Sequence[Group]) -> Table:
    """Skew against calibration, and how far averaging takes the users' vectors from where they go alone, by round."""
    table = plain("user embedding skew (PFedCLR, Lemmas 3.2 and 4.1), means over clients", narrow=True)
    for heading in ("round", "trained", "skew", "against it", "cosine", "left", "from alone", "valid HR@10"):
        table.add_column(heading, justify="left" if heading == "trained" else "right", no_wrap=True)
    alone = next(group for group in found if group.name == "alone")
    gaps = {group.name: apart(alone, group) for group in found}
    for number in every(len(alone.valid)):
        for place, group in enumerate(found):
            terms = group.balances[number - 1]
            cells = ["–"] * 4
            if terms is not None:
                cells = [f"{terms.skew:.3g}", f"{terms.calibration:.3g}", f"{terms.cosine:.2f}", f"{terms.left:.2f}"]
            cells.append("–" if group is alone else f"{gaps[group.name][number - 1]:.2f}")
            cells.append(f"{group.valid[number - 1]:.4f}")
            table.add_row("" if place else str(number), group.name, *cells, end_section=group is found[-1])
    return table


def lemma(found: Sequence[Group]) -> list[str]:
    """Of every group with averaging, what came of PFedCLR's Lemma 3.3, in a sentence each."""
    return [
        f"Lemma 3.3, {group.name}, after {len(group.sums)} rounds: skew has added up to {last.added:.3g}, and the "
        f"lemma allows {last.allowed:.3g} at most; {last.over:.0%} of the clients have more than that. Its premise "
        f"holds for {last.fit:.0%}: of all gaps between a client's rows and the server's, {last.grown:.0%} grew in the "
        f"last round."
        for group in found
        if group.sums and (last := group.sums[-1])
    ]


SKEW = (
    "Skew: length of what averaging adds to the gradient of a client's user vector. Against it: length of what a "
    "buffer, if there is one, puts against that in its first step. Cosine: between the two, -1 if the one points "
    "straight against the other. Left: length of their sum over that of the skew, below 1 if some of it is taken "
    "away. From alone: distance of the followed users' vectors from where they are without averaging, over their "
    "length there."
)
