"""`search`: settings chosen by validation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tacit.cli import options as o
from tacit.cli.screen import downloading, err, out, rounds_bar, show, stopping

if TYPE_CHECKING:
    from tacit.runs.search import Search


def search(
    names: Annotated[list[str], typer.Argument(metavar="METHOD…", help="each has the same budget")],
    data: Annotated[str, typer.Option("--data", help="data set, or several: ml-100k,filmtrust")] = "ml-100k",
    trials: Annotated[int, typer.Option("--trials", min=1, help="settings to try, the method's own first")] = 20,
    cpu_seconds: Annotated[float, typer.Option("--cpu-seconds", min=0, help="most for all trials; 0: any")] = 0,
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="most for all trials, by the clock; 0: any")] = 0,
    trial_seconds: Annotated[
        float,
        typer.Option("--trial-seconds", min=0, help="most CPU seconds of one trial; what it has found by then counts"),
    ] = 0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="processes that share the search")] = 1,
    settings: o.Settings = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", help="where to look instead: key=low:high, key=low:high:log, key=a,b,c; repeatable"),
    ] = None,
    plug: o.Plug = None,
    protocol: o.ProtocolName = "strict",
    rounds: o.Rounds = None,
    seeds: Annotated[str, typer.Option("--seeds", help="a trial runs on each of these, e.g. 0,1,2")] = "0",
    clients: o.Clients = 0,
    min_interactions: o.AtLeast = 0,
    select: o.Select = "NDCG@10",
    evaluate_every: o.Every = 1,
    evaluate_users: o.EvaluateUsers = None,
    patience: o.Patience = 0,
    threads: o.Threads = 0,
    ldp: o.Noise = None,
    folder: Annotated[Path, typer.Option("--out", help="the search's folder; one begun there is continued")] = Path(
        "runs/search"
    ),
    save: Annotated[Path | None, typer.Option("--save", help="write default and best as an experiment file")] = None,
    final: Annotated[
        str, typer.Option("--final-seeds", help="then run default and best with test figures on these, e.g. 0,1,2")
    ] = "",
    finals: Annotated[
        Literal["both", "best"],
        typer.Option("--finals", help="… or the best alone, where the default's rounds cost much"),
    ] = "both",
    as_json: o.AsJson = False,
    progress_kind: o.ProgressKind = "auto",
) -> None:
    """Search for a method's settings by validation alone; the test set is not read. Stopped, the same call goes on."""
    from tacit.config import parse_pairs
    from tacit.data import sources
    from tacit.errors import UserError
    from tacit.runs import search_report as report
    from tacit.runs.files import to_json
    from tacit.runs.search import Budget, prepared, settle
    from tacit.runs.search_final import run_finals
    from tacit.runs.search_space import parse_ranges
    from tacit.runs.search_work import carry_out

    final_seeds = o.numbers(final, "--final-seeds") if final else []
    if finals == "best" and not final_seeds:
        raise UserError("--finals says what --final-seeds runs; name these too, as in --final-seeds 0,1,2")
    if save:
        report.check_save(save)
    names, of_plug = o.plugged(names, plug)
    places = [name.strip() for name in data.split(",") if name.strip()]
    with downloading() as progress:
        for name in places:
            sources.load(name, min_interactions, progress)
    searches = prepared(
        names,
        places,
        folder,
        parse_pairs(settings or []) | of_plug,
        parse_ranges(ranges or []),
        o.numbers(seeds),
        workers=workers,
        protocol=protocol,
        rounds=rounds,
        clients=clients,
        min_interactions=min_interactions,
        select=select,
        evaluate_every=evaluate_every,
        evaluate_users=evaluate_users,
        patience=patience,
        threads=threads,
        ldp=ldp,
    )
    budget = Budget(trials, cpu_seconds, minutes, trial_seconds)
    failed: dict[str, str] = {}
    loud = progress_kind in ("bar", "lines") or (progress_kind == "auto" and err.is_terminal)
    with stopping(f"the same command continues what is in {folder}"):
        for one in searches:
            name = f"{one.asked.method} on {one.asked.data}"
            try:
                settle(one)
                with rounds_bar(progress_kind, trials if one.space else 1) as watching:
                    carry_out(one, budget, workers, watching, _say if loud else None)
                if final_seeds:
                    with rounds_bar(progress_kind, (1 + (finals == "both")) * len(final_seeds)) as watching:
                        run_finals(one, final_seeds, watching, finals)
            except Exception as error:  # one of several that fails is reported, and the others go on
                if len(searches) == 1:
                    raise
                failed[name] = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            else:
                _show(one)
    if save:
        report.save(searches, save)
        out.print(f"default and best settings → {save}; tacit experiment {save} runs them with test figures")
    for name, reason in failed.items():
        err.print(f"tacit: {name}: {reason}", soft_wrap=True)
    if as_json:
        print(to_json([report.summary(one) | {"command": _command(one)} for one in searches]))
    if failed:
        raise typer.Exit(1)


def _say(line: str) -> None:
    err.print(line, soft_wrap=True)


def _show(one: "Search") -> None:
    from tacit.runs import search_report as report
    from tacit.runs.search_final import figures as of_finals
    from tacit.runs.search_final import lost, outdated

    show(report.table(one))
    for trial in one.trials:
        if trial.reason:
            out.print(f"trial {trial.number} failed: {trial.reason}")
    if not one.space:
        out.print(f"{one.asked.method} has no settings to search: its own were run once.")
    if shares := report.importance(one):
        out.print("what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    for kind, figures in of_finals(one).items():
        out.print(
            f"{kind}: test HR@10 {figures['HR@10']:.4f}, NDCG@10 {figures['NDCG@10']:.4f}, "
            f"mean over {figures['seeds']} seed{'s' * (figures['seeds'] != 1)}"
        )
    if outdated(one):
        out.print("a later trial is better than the best that was run with test figures; --final-seeds runs it")
    for run, reason in lost(one).items():
        out.print(f"{run} failed: {reason}", soft_wrap=True)
    if command := _command(one):
        out.print(f"the best again, with test figures: {command}", soft_wrap=True)


def _command(one: "Search") -> str:
    from tacit.figures.command import repeating

    best = one.best
    return repeating({"config": one.run_of(best).model_dump(mode="json")}) if best else ""
