import os
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's own cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TACIT_CACHE", str(folder))
    return folder


@pytest.fixture
def raw_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the raw data sets, made known through TACIT_DATA."""
    folder = Path(os.environ.get("TACIT_DATA") or SHARED)
    if not folder.is_dir():
        pytest.skip("no raw data: set TACIT_DATA to a folder with ml-100k/, ml-1m/, …")
    monkeypatch.setenv("TACIT_DATA", str(folder))
    return folder
