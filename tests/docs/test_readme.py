"""README.md: its ten lines of a frame in and a frame out run as they stand."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

README = (Path(__file__).parents[2] / "README.md").read_text()
(BLOCK,) = re.findall(r"### A frame in, a frame out\n+```python\n(.*?)```", README, re.S)


def orders():
    """Forty customers of two tastes, ten things each."""
    draw = np.random.default_rng(0)
    lines = [
        (f"c{customer}", f"{'AB'[customer % 2]}-{sku}", f"thing {sku}", f"2026-01-{place + 1:02}")
        for customer in range(40)
        for place, sku in enumerate(draw.permutation(16)[:10])
    ]
    return pd.DataFrame(lines, columns=["customer", "sku", "name", "at"])


def test_ten_lines_from_a_frame_to_frames(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mine = orders()
    mine.to_csv("orders.csv", index=False)
    names = {}
    exec(compile(BLOCK, "README.md", "exec"), names)
    assert len([line for line in BLOCK.splitlines() if line.strip() and not line.startswith("import")]) <= 10
    everyone = names["everyone"]
    assert isinstance(everyone, pd.DataFrame)
    assert list(everyone.columns) == ["user", "rank", "item", "title", "score"]
    assert everyone["user"].nunique() == 40
    owned = set(zip(mine["customer"], mine["sku"], strict=True))
    assert not owned & set(zip(everyone["user"], everyone["item"], strict=True))
    printed = capsys.readouterr().out
    assert "B-" in printed  # c17 has the second taste
    assert "fedmf" in printed
    assert (
        names["model"]
        .recommend(user="c17", k=5)
        .frame()
        .equals(everyone[everyone["user"] == "c17"][["item", "title", "score"]].head(5).reset_index(drop=True))
    )
