"""Whether a change of the code moved a number: every method for three rounds, before and after.

python -m benchmarks.unmoved FOLDER                  runs all cases with the code at hand, a folder each
python -m benchmarks.unmoved FOLDER --against OTHER  compares two such folders; writes results/unmoved.json

Run it once in a checkout of the older code and once here. Only files that every version writes are read.
"""

import argparse
import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROUNDS = 3
LIMIT = 1e-5

# name of a case -> (method, settings, options of the run)
Case = tuple[str, dict[str, Any], dict[str, Any]]
PLAIN = [
    "cgfedrec",
    "cofedrec",
    "ease",
    "fedca",
    "fedcia",
    "fedlightgcn",
    "fedmf",
    "fedncf",
    "fedrap",
    "gfcf",
    "gpfedrec",
    "hetefedrec",
    "lightgcn",
    "localmf",
    "mf",
    "ncf",
    "oracle",
    "perfedrec",
    "pfedclr",
    "pfedgraph",
    "pfedrec",
    "popularity",
    "tally",
]
PLUGGED = ["fedmf", "fedncf", "perfedrec", "pfedrec", "fedrap", "gpfedrec"]


def cases() -> dict[str, Case]:
    """Every method as it is, PLGC over its backbones, the variants, many users a client, noise and secure sums."""
    out: dict[str, Case] = {name: (name, {}, {}) for name in PLAIN}
    out |= {f"plgc+{name}": (f"plgc+{name}", {}, {}) for name in PLUGGED}
    for variant in ("cf", "af"):
        out[f"pfedclr-{variant}"] = ("pfedclr", {"variant": variant}, {})
    for variant in ("small", "large", "exclusive", "standalone", "clustered", "direct"):
        out[f"hetefedrec-{variant}"] = ("hetefedrec", {"variant": variant}, {})
    out["hetefedrec-lightgcn"] = ("hetefedrec", {"backbone": "lightgcn"}, {})
    for backbone in ("lightgcn", "mlp", "gfcf"):
        out[f"fedcia-{backbone}"] = ("fedcia", {"backbone": backbone}, {"clients": 20})
    out["fedlightgcn-bce"] = ("fedlightgcn", {"objective": "bce"}, {})
    for name in ("fedmf", "fedncf", "pfedrec", "gpfedrec", "fedrap", "pfedclr", "fedlightgcn", "cgfedrec"):
        out[f"{name}-groups"] = (name, {}, {"clients": 50})
    for name in ("fedmf", "fedncf", "fedrap", "hetefedrec"):
        out[f"{name}-secure"] = (name, {}, {"secure": True})
    out["fedmf-ldp"] = ("fedmf", {}, {"ldp": {"kind": "laplace", "clip": 0.5, "scale": 0.1}})
    out["fedmf-dp"] = ("fedmf", {}, {"secure": True, "dp": {"clip": 1.0, "noise": 1.0}})
    for name in ("fedmf", "fedncf", "pfedrec"):
        out[f"{name}-adam"] = (name, {"optimizer": "adam", "lr": 0.01, "table_lr": 0.0, "epochs": 3, "batch": 64}, {})
    out["fedmf-own"] = ("fedmf", {"scored_with": "own"}, {})
    return out


def run_all(folder: Path, data: list[str], only: list[str]) -> None:
    """A finished run of three rounds for each case; what is there already is left."""
    import tacit

    for name in data:
        for case, (method, settings, options) in cases().items():
            out = folder / name / case
            if (only and case not in only) or (out / "summary.json").exists() or (out / "refused.txt").exists():
                continue
            shutil.rmtree(out, ignore_errors=True)
            began = time.process_time()
            try:
                tacit.run(method, data=name, rounds=ROUNDS, out=out, settings=settings, threads=1, **options)
            except ValueError as error:  # the sentence a user would read
                shutil.rmtree(out, ignore_errors=True)
                out.mkdir(parents=True)
                (out / "refused.txt").write_text(f"{error}\n")
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(out / "clients")
            print(f"{name} {case} {time.process_time() - began:.1f} CPU-seconds", flush=True)


def states(run: Path) -> dict[str, torch.Tensor]:
    """The server's last state; of a closed form the best one, for whichever of its solutions came last is of no use."""
    index = json.loads((run / "checkpoints" / "index.json").read_text())
    which = "best" if run.name in ("ease", "gfcf", "tally") else "last"
    return load_file(run / "checkpoints" / index[which] / "server.safetensors")


def difference(one: Path, other: Path) -> dict[str, Any]:
    """The largest difference of a server's leaf, relative to its largest value, and of a metric."""
    if (one / "refused.txt").exists() or (other / "refused.txt").exists():
        return {"refused": [(x / "refused.txt").exists() for x in (one, other)]}
    left, right = states(one), states(other)
    out: dict[str, Any] = {"leaves": sorted(set(left) ^ set(right)), "state": 0.0, "metrics": 0.0}
    for name in set(left) & set(right):
        if left[name].shape != right[name].shape:
            out["leaves"].append(name)
            continue
        if left[name].numel():
            a, b = left[name].double(), right[name].double()
            out["state"] = max(out["state"], float((a - b).abs().max() / max(float(a.abs().max()), 1.0)))
    sums = [json.loads((x / "summary.json").read_text()) for x in (one, other)]
    for phase in ("valid", "test"):
        for metric, value in sums[0][phase].items():
            out["metrics"] = max(out["metrics"], abs(value - sums[1][phase][metric]))
    for key in ("bytes_up", "bytes_down"):
        if sums[0][key] != sums[1][key]:
            out[key] = [s[key] for s in sums]
    return out


def main() -> None:
    """Run or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--data", default="demo,ml-100k")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    only = [name for name in asked.only.split(",") if name]
    data = asked.data.split(",")
    if asked.against is None:
        run_all(asked.folder, data, only)
        return
    found: dict[str, dict[str, Any]] = {}
    for name in data:
        for case in only or cases():
            one, other = asked.against / name / case, asked.folder / name / case
            if one.exists() and other.exists():
                found[f"{name} {case}"] = difference(one, other)
    moved = {
        k: v
        for k, v in found.items()
        if max(v.get("state", 0), v.get("metrics", 0)) > LIMIT or set(v) - {"state", "metrics", "leaves"} or v["leaves"]
    }
    text = json.dumps({"limit": LIMIT, "cases": found, "moved": sorted(moved)}, indent=1)
    (Path(__file__).parent / "results" / "unmoved.json").write_text(text + "\n")
    for case, change in moved.items():
        print(case, change)
    print(f"{len(found)} cases, {len(moved)} moved")


if __name__ == "__main__":
    main()
