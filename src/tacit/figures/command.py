"""The command that repeats a run, from what its run.json says."""

import shlex
from typing import Any

# option of a run -> what it is called on the command line, and its default, which is left out
FLAGS: dict[str, tuple[str, Any]] = {
    "data": ("--data", "ml-100k"),
    "protocol": ("--protocol", "strict"),
    "rounds": ("--rounds", None),
    "seed": ("--seed", 0),
    "clients": ("--clients", 0),
    "min_interactions": ("--min-interactions", 0),
    "select": ("--select", "NDCG@10"),
    "metrics": ("--metrics", []),
    "evaluate_every": ("--evaluate-every", 1),
    "evaluate_users": ("--evaluate-users", None),
    "patience": ("--patience", 0),
    "mapped": ("--mapped", False),
    "secure": ("--secure", False),
    "dp": ("--dp", None),
    "ldp": ("--ldp", None),
    "bound": ("--bound", 0.0),
    "robust": ("--robust", ""),
}
ALWAYS = ("data", "protocol", "seed")  # said also where they are the defaults


def repeating(run: dict[str, Any]) -> str:
    """`tacit run …` as it would be typed; for a run over nodes the server's command."""
    asked = run.get("config", {})
    over_nodes = "nodes" in run
    words = ["tacit", "server" if over_nodes else "run", str(asked.get("method", ""))]
    for name, (flag, default) in FLAGS.items():
        value = asked.get(name, default)
        if (value == default and name not in ALWAYS) or (over_nodes and name == "data"):
            continue
        words += [flag] if value is True else [flag, _text(value)]
    for key, value in asked.get("settings", {}).items():
        words += ["--set", f"{key}={_text(value)}"]
    return shlex.join(words) + (" --catalogue FILE --out DIR" if over_nodes else "")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={_text(part)}" for key, part in value.items() if part is not None)
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
