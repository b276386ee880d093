import sys

import pytest

from tacit.cli import main


@pytest.fixture
def tacit(tmp_path, capsys, monkeypatch):
    """The command in this process and in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tacit", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        shown = capsys.readouterr()
        return caught.value.code or 0, shown.out, shown.err

    return call
