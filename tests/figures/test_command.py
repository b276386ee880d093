import contextlib
import shlex

from tacit.cli import app
from tacit.config import RunConfig, config
from tacit.figures.command import FLAGS, repeating


def test_defaults_that_are_left_out_are_those_of_a_run():
    fields = RunConfig.model_fields
    assert {name: default for name, (_, default) in FLAGS.items()} == {
        name: list(value) if isinstance(value := fields[name].get_default(), tuple) else value for name in FLAGS
    }
    where = {"method", "settings", "checkpoint_every", "threads", "chunk", "tested"}  # a trial is repeated with a test
    assert set(fields) - set(FLAGS) == where, "a new option of a run belongs into the command that repeats it"


def test_the_command_asks_for_the_same_run(monkeypatch):
    asked = config(
        method="fedmf", data="demo", seed=3, rounds=7, settings={"dim": 8, "lr": 0.05}, secure=True, dp="clip=1,noise=2"
    )
    words = shlex.split(repeating({"config": asked.model_dump(mode="json")}))
    got = {}

    def start(configuration, *_):
        got["asked"] = configuration
        raise SystemExit

    monkeypatch.setattr("tacit.runs.run.start", start)
    monkeypatch.setattr("sys.argv", words)
    with contextlib.suppress(SystemExit):
        app.call()
    assert got["asked"].model_copy(update={"settings": {}}) == asked.model_copy(update={"settings": {}})
    assert {k: str(v) for k, v in got["asked"].settings.items()} == {"dim": "8", "lr": "0.05"}


def test_a_run_over_nodes_names_the_server():
    run = {
        "config": {"method": "fedmf", "data": "items", "seed": 0, "protocol": "strict"},
        "nodes": {"together": False},
    }
    assert repeating(run) == "tacit server fedmf --protocol strict --seed 0 --catalogue FILE --out DIR"
