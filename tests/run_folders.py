"""Run folders made up in a moment, as `tacit run` writes them."""

import json

from tacit.runs.run import Summary

METRICS = ("HR@5", "HR@10", "NDCG@5", "NDCG@10", "Recall@20", "NDCG@20", "F1@10", "MRR@10")
SECTIONS = {"18–40 interactions": 1.2, "41–700 interactions": 0.8}


def folder(
    root,
    method="fedmf",
    protocol="strict",
    seed=0,
    score=0.1,
    finished=True,
    rounds=4,
    data="demo",
    epsilon=None,
    **more,
):
    """A run with `score` as each of its metrics."""
    path = root / f"{method}-{data}-{protocol}-s{seed}{''.join(f'-{k}{v}' for k, v in more.items())}"
    path.mkdir(parents=True)
    config = {"method": method, "data": data, "protocol": protocol, "seed": seed, "settings": more, "select": "NDCG@10"}
    settings = {"dim": 16, "lr": 0.1} | more
    versions = {"tacit": "0.1.0", "python": "3.11.7"}
    run = {"config": config, "settings": settings, "versions": versions, "started": "2026-01-02T03:04:05+00:00"}
    (path / "run.json").write_text(json.dumps(run))
    with (path / "rounds.jsonl").open("w") as file:
        for number in range(1, rounds + 1):
            valid = dict.fromkeys(METRICS, score * number / rounds)
            line = {"round": number, "seconds": 0.1, "loss": 1 / number, "valid": valid, "clients": 10}
            file.write(json.dumps(line | {"bytes_up": 1000, "bytes_down": 2000, "epsilon": epsilon}) + "\n")
    test = dict.fromkeys(METRICS, score) | {"HR@5": 0.7 * score}
    sampled = {name: value + 0.01 for name, value in test.items()}
    summary = {
        "method": method,
        "data": data,
        "protocol": protocol,
        "seed": seed,
        "rounds": rounds,
        "best_round": rounds,
    }
    summary |= {"valid": test, "test": test, "test_sampled99": sampled if protocol == "strict" else None}
    summary |= {"groups": {name: dict.fromkeys(METRICS, score * x) for name, x in SECTIONS.items()}}
    pooled = method in ("ease", "mf")
    summary |= {"bytes_up": 1000 * rounds, "bytes_down": 2000 * rounds, "clients": 1 if pooled else 10, "seconds": 1.5}
    if finished:
        (path / "summary.json").write_text(json.dumps(summary | {"epsilon": epsilon, "settings": settings}))
    return path


def summary_of(seed, value):
    """The summary of a run with one test figure."""
    measured = dict.fromkeys(("bytes_up", "bytes_down", "bytes_to_rank", "clients", "client_rounds", "seconds"), 1)
    counted = dict.fromkeys(("users_evaluated", "users_too_short", "duplicates", "cpu_seconds", "peak_memory_mb"), 1)
    return Summary(
        method="m",
        data="demo",
        protocol="paper",
        seed=seed,
        rounds=1,
        best_round=1,
        valid={},
        test={"HR@10": value},
        test_sampled99=None,
        groups={},
        epsilon=None,
        scored_with="server",
        **measured,
        **counted,
    )
