import os
import signal
import subprocess
import sys
import time

import pytest

TACIT = [sys.executable, "-m", "tacit"]
HEAVY = ("torch", "polars", "sklearn", "scipy", "flwr", "cryptography")


def call(*words, **environment):
    return subprocess.run(
        [*TACIT, *words], capture_output=True, text=True, check=False, env=os.environ | environment, encoding="latin-1"
    )


@pytest.mark.parametrize("words", [["--help"], ["data", "list"], ["keys", "--help"], ["run", "--help"], ["--version"]])
def test_a_light_command_loads_nothing_heavy(words):
    probe = (
        "import sys; from tacit.cli import main\n"
        f"sys.argv = ['tacit', *{words!r}]\n"
        "try: main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_the_library_is_there_when_it_is_asked_for():
    probe = (
        "import sys, tacit; assert 'torch' not in sys.modules; assert {'run', 'compare'} <= set(dir(tacit))\n"
        "from tacit import compare, recommend, resume, run; assert run is tacit.run and callable(compare)\n"
        "assert 'torch' in sys.modules; assert not hasattr(tacit, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize("command", ["", "run", "server", "data import"])
def test_help_shows_no_escapes(command):
    done = call(*command.split(), "--help")
    assert done.returncode == 0
    assert "\\" not in done.stdout
    if command == "server":
        assert "[required]" in done.stdout
        assert "[default: 8477]" in done.stdout


def test_the_version():
    assert call("--version").stdout.startswith("tacit 0.")


def test_a_closed_pipe_ends_quietly():
    for words in (["methods"], ["--help"], ["data", "list"]):
        process = subprocess.Popen([*TACIT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait()


def test_a_terminal_of_few_letters():
    for words in (["methods"], ["data", "show", "demo"], ["run", "nothing→"]):
        done = call(*words, PYTHONIOENCODING="latin-1")
        assert "Traceback" not in done.stderr
        assert done.returncode == (2 if "run" in words else 0)


@pytest.mark.parametrize("moment", [0.03, 0.15, 0.5, 1.0])
def test_ctrl_c_while_it_starts(tmp_path, moment):
    words = ["run", "fedmf", "--data", "demo", "--rounds", "1000", "--out", str(tmp_path / "run")]
    probe = f"import sys; from tacit.cli import main; sys.argv = ['tacit', *{words!r}]; print('up', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
