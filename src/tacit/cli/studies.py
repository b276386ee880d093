"""`experiment`, `results` and `skew`: published tables and figures, measured again."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import options as o
from tacit.cli.screen import downloading, err, out, rounds_bar, show, stopping

if TYPE_CHECKING:
    from tacit.runs.experiments import Experiment

File = Annotated[Path, typer.Argument(metavar="NAME", help="pfedclr-table2, or a file of your own")]
Length = Annotated[int | None, typer.Option("--rounds", min=1, help="run this many rounds instead of the file's")]
Where = Annotated[Path | None, typer.Option("--out", help="folder of its runs; by default runs/NAME")]


def experiment(
    file: File,
    only: Annotated[list[str] | None, typer.Option("--row", help="only this row, by its label; repeatable")] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="run on this data set only, the file's or any other")
    ] = None,
    protocol: Annotated[list[str] | None, typer.Option("--protocol", help="only this protocol; repeatable")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="seeds instead of the file's, e.g. 0,1,2")] = None,
    rounds: Length = None,
    folder: Where = None,
    keep: Annotated[bool, typer.Option("--keep", help="keep checkpoints of finished runs")] = False,
    threads: o.Threads = 0,
    progress_kind: o.ProgressKind = "auto",
) -> None:
    """Run a published table, or resume it, and print published and measured figures side by side."""
    from tacit.data import sources
    from tacit.runs import experiments

    asked = experiments.altered(experiments.read(file), filter(sources.names().__contains__, data or []), rounds)
    where = folder or _place(file, rounds)
    plan = experiments.planned(asked, only or [], data or [], protocol or [], o.numbers(seeds) if seeds else [])
    if threads:
        plan = [replace(p, asked=p.asked.model_copy(update={"threads": threads})) for p in plan]
    with downloading() as progress:
        for name in dict.fromkeys(p.data for p in plan):
            sources.load(name, 0, progress)
    with stopping(f"finished runs are kept in {where}"), rounds_bar(progress_kind, len(plan)) as watching:
        experiments.carry_out(plan, where, lambda p: watching(p.folder), keep)
    _show(asked, where)


def results(
    file: Annotated[
        Path | None, typer.Argument(metavar="[NAME]", help="pfedclr-table2, or a file of your own; all without it")
    ] = None,
    rounds: Length = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="folder of its runs, or a file of --save; by default runs/NAME")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown tables")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="keep the finished runs in this small file")] = None,
    data: Annotated[list[str] | None, typer.Option("--data", help="also this data set that the file has not")] = None,
) -> None:
    """Collect the finished runs of an experiment: published figures, ours, and whether they agree.

    Without a name: how far every published table has been run, and how many of its rows are reproduced.
    """
    from tacit.errors import UserError
    from tacit.runs import archive, experiments, paper_tables

    if file is None:
        if rounds or save or data:
            raise UserError(
                "--rounds, --save and --data are of one experiment; name it, as in tacit results pfedclr-table2"
            )
        _overview(folder or Path("runs"), as_markdown)
        return
    asked = experiments.read(file)
    if folder and not folder.exists():
        raise UserError(f"there is no {folder}; name the folder of the experiment's runs, or a file of --save")
    place = folder or _place(file, rounds)
    if place.is_dir() and (saved := place / f"{_place(file, rounds).name}.json").is_file():
        place = saved  # a folder of such files
    with archive.opened(place) as where:
        asked = experiments.altered(asked, [*(data or []), *experiments.others(asked, where)], rounds)
        if as_markdown:
            print(paper_tables.markdown(asked, experiments.collect(asked, where)))
        else:
            _show(asked, where)
        if save:
            err.print(f"{archive.pack(where, save)} in all → {save}", soft_wrap=True)


def skew(
    folder: Annotated[Path, typer.Option("--out", help="a new folder for its runs, skew.jsonl and trajectories.csv")],
    data: o.DataName = "filmtrust",
    min_interactions: o.AtLeast = 10,
    rounds: Annotated[int, typer.Option("--rounds", min=2)] = 100,
    users: Annotated[int, typer.Option("--users", min=1, help="how many users to follow")] = 4,
    protocol: o.ProtocolName = "paper",
    seed: o.Seed = 0,
    threads: o.Threads = 0,
) -> None:
    """Study user embedding skew: users' vectors with and without averaging, and how PFedCLR counters it, by round."""
    from tacit.data import sources
    from tacit.runs import skew_study, study_report

    with downloading() as progress:
        sources.load(data, min_interactions, progress)
    with stopping(f"what was finished is in {folder}"), rounds_bar() as watching:
        options = {"min_interactions": min_interactions, "protocol": protocol, "seed": seed, "threads": threads}
        groups = skew_study.study(folder, data, users, rounds, watching, **options)
    show(study_report.skew(groups))
    out.print(study_report.SKEW)
    for sentence in study_report.lemma(groups):
        out.print(sentence)
    out.print(f"every round is in {folder / 'skew.jsonl'}, the paths in {folder / 'trajectories.csv'}")


def _overview(folder: Path, as_markdown: bool) -> None:
    from tacit.errors import UserError
    from tacit.runs import papers_state, study_report

    if folder.is_file():
        raise UserError(f"{folder} is a file, of one table; name that too, as in tacit results NAME --out {folder}")
    found, damaged = papers_state.states(folder)
    for sentence in damaged:
        err.print(f"tacit: left out: {sentence}", soft_wrap=True)
    if not found:
        raise UserError(f"nothing of a published table is finished in {folder}; tacit experiment NAME runs one")
    if as_markdown:
        print(papers_state.markdown(found))
    else:
        show(study_report.papers(found))


def _place(file: Path, rounds: int | None) -> Path:
    return Path("runs") / (file.stem if rounds is None else f"{file.stem}-rounds-{rounds}")


def _show(asked: "Experiment", where: Path) -> None:
    from tacit.runs import experiments, paper_tables, study_report

    found = experiments.collect(asked, where)
    out.print(asked.title, style="bold")
    for place in asked.data:
        done = paper_tables.begun(place.name, found)
        if done:
            show(study_report.experiment(asked, place.name, found))
        else:
            out.print(f"{place.name}: {paper_tables.NOTHING}")
    if asked.note:
        out.print(asked.note)
