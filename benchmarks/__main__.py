"""Measure everything in one go, print it and write it down: `python -m benchmarks [--quick | --full]`."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import engine
from benchmarks.cores import cores
from benchmarks.engine import Effort
from benchmarks.measure import FEDMF, federation, machine
from benchmarks.methods import costs

RESULTS = Path(__file__).parent / "results"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="little work, to see that everything runs")
    how.add_argument("--full", action="store_true", help="time every client in the plain loop, not a sample of 60")
    parser.add_argument("--data", default="ml-100k", help="data set (default: %(default)s)")
    parser.add_argument("--large", default="ml-1m", help="larger data set to compare with (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: benchmarks/results)")
    args = parser.parse_args(argv)

    effort = Effort(1, 8, (0.5, 1.0)) if args.quick else Effort(plain_clients=0 if args.full else 60)
    method = dataclasses.replace(FEDMF, epochs=2) if args.quick else FEDMF
    console = Console()
    console.print("against a plain loop")  # no moving status: its thread would keep workers from being processes
    small = federation(args.data)
    measured = machine()
    plain = engine.against_plain(method, small, effort)
    console.print("two cores against one")
    on_two = cores(small, effort.repeats, **({"epochs": 2} if args.quick else {}))
    console.print("more clients")
    linearity = engine.linearity(method, small, effort)
    console.print(f"{args.large} against {args.data}")
    larger = engine.larger(method, small, federation(args.large), effort)
    console.print("methods")
    methods = costs(data=args.data, repeats=effort.repeats)

    settings = {"method": "fedmf", "data": args.data, "large": args.large, "protocol": "strict"}
    settings |= dataclasses.asdict(method)
    figures = {"plain": plain, "cores": on_two, "larger": larger, "linearity": linearity}
    write(args.out / "engine.json", {"machine": measured, "settings": settings, "repeats": effort.repeats} | figures)
    write(args.out / "methods.json", {"machine": measured, "data": args.data, "methods": methods})
    console.print(report(settings, figures, methods))
    console.print(f"written to {args.out}/engine.json and methods.json")


def write(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, its folder made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def report(settings: dict[str, Any], figures: dict[str, Any], methods: dict[str, Any]) -> Table:
    """The figures for reading."""
    plain, larger = figures["plain"], figures["larger"]
    data, large = settings["data"], settings["large"]
    table = Table(title=f"fedmf · {data} · strict · {plain['clients']} clients", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("a training round")
    table.add_column("cost", justify="right")
    table.add_column("", justify="left")
    table.add_row("engine, one thread", f"{plain['engine_cpu']:.2f} CPU-s")
    table.add_row("plain loop", f"{plain['plain_cpu']:.1f} CPU-s", f"{plain['plain_clients']} clients timed")
    table.add_row("plain loop / engine", f"{plain['ratio']:.1f}", f"same batches differ by {plain['difference']:.0e}")
    for name, row in figures["cores"].items():
        walls = f"{row['one_wall']:.2f} s / {row['two_wall']:.2f} s, {row['possible']:.2f} possible now"
        table.add_row(f"{name}, one core / two", f"{row['gain']:.2f}", walls)
    times = f"{larger['interactions_ratio']:.1f}× interactions"
    table.add_row(f"{large} / {data}", f"{larger['ratio']:.1f}", f"{larger['large_cpu']:.1f} CPU-s, {times}")
    memory = larger["memory"]
    rest = f"{memory['data_mb']:.0f} MB before the round"
    table.add_row(f"peak memory on {large}", f"{memory['round_mb']:.0f} MB", rest)
    for row in figures["linearity"]:
        cost = f"{row['us_per_interaction']:.1f} µs"
        table.add_row(f"{row['share']:.0%} of the clients", cost, "CPU an interaction")
    for name, row in methods.items():
        how = ", ".join(f"{key} {row['settings'][key]}" for key in ("dim", "epochs", "batch") if key in row["settings"])
        table.add_row(f"{name}, {row['clients']} clients", f"{row['cpu']:.2f} CPU-s", how)
    return table


if __name__ == "__main__":
    main()
