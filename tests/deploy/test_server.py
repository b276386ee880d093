import dataclasses
import json
import logging
import time

import pytest
import torch

from deploy.direct import Direct, items_file, shards
from tacit.config import config
from tacit.deploy.fleet import Terms
from tacit.deploy.node import Node
from tacit.deploy.server import Asked, prepare, remove, run
from tacit.errors import UserError
from tacit.evaluation.metrics.accuracy import HR
from tacit.runs.folder import RunFolder
from tacit.runs.run import run as simulate
from tacit.testing import comparable
from toys import few_users

SETTINGS = {"dim": 4, "epochs": 1, "init": 0.1}
NOT_THE_SAME = {"data", "groups", "bytes_up", "bytes_down", "duplicates", "bytes_kept", "gap"}


def asked(tmp_path, method="fedmf", settings=SETTINGS, rounds=3, nodes=3, **options):
    made = config(method=method, data="nodes", rounds=rounds, settings=settings)
    items = items_file(tmp_path / "items.csv", few_users(24))
    return Asked(made, items, nodes, terms=Terms(deadline=5, **options), wait=2)


def nodes(tmp_path):
    return {
        f"n{i}": Node(own, tmp_path / f"n{i}", f"n{i}", threads=1) for i, own in enumerate(shards(few_users(24), 3))
    }


def go(tmp_path, link, what, watch=None, out="run"):
    folder, job = prepare(what, tmp_path / out)
    return run(what, folder, job, link, watch)


def states(path):
    return [RunFolder.open(path).load(which)[0] for which in ("last", "best")]


@pytest.mark.parametrize("name", ["fedmf", "pfedclr"])
def test_a_run_over_nodes_is_the_simulated_run(tmp_path, monkeypatch, name):
    settings = SETTINGS | {"fraction": 0.6}
    found = go(tmp_path, Direct(nodes(tmp_path)), asked(tmp_path, name, settings))
    monkeypatch.setattr("tacit.runs.assembly.load", lambda *_: few_users(24))
    expected = simulate(name, data="nodes", rounds=3, settings=settings, threads=1, out=tmp_path / "simulated")
    for one, other in zip(states(tmp_path / "run"), states(tmp_path / "simulated"), strict=True):
        assert set(one) == set(other)
        assert all(torch.allclose(one[n], other[n], atol=1e-5, rtol=1e-5) for n in one)
    ours, theirs = ({k: v for k, v in comparable(s).items() if k not in NOT_THE_SAME} for s in (found, expected))
    theirs["test"] = {name: theirs["test"][name] for name in theirs["valid"]}  # nodes do without the rest
    for metrics in ("valid", "test", "test_sampled99"):
        assert ours.pop(metrics) == pytest.approx(theirs.pop(metrics), abs=1e-6)
    assert ours == theirs


def test_a_run_from_before_there_was_an_option_goes_on(tmp_path):
    what = asked(tmp_path)
    folder, job = prepare(what, tmp_path / "run")
    folder.unlock()
    path = folder.path / "run.json"
    written = json.loads(path.read_text())
    del written["config"]["metrics"]
    path.write_text(json.dumps(written))
    folder.unlock()
    again, same = prepare(what, tmp_path / "run")
    assert same.id == job.id
    again.unlock()
    written["config"]["seed"] = 5
    path.write_text(json.dumps(written))
    with pytest.raises(UserError, match="a run with another config"):
        prepare(what, tmp_path / "run")


class Own(HR):
    pass


def test_a_metric_that_nodes_do_not_have_cannot_select(tmp_path):
    what = asked(tmp_path)
    own = config(**what.config.model_dump() | {"select": f"{__name__}:Own@10"})
    with pytest.raises(UserError, match=r"--select .*:Own@10 is invalid here"):
        prepare(dataclasses.replace(what, config=own), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_order_of_a_file_is_no_protocol_for_nodes(tmp_path):
    what = asked(tmp_path)
    own = config(**what.config.model_dump() | {"protocol": "fileorder"})
    with pytest.raises(UserError, match=r"'fileorder' repeats the order of one file.*--protocol strict"):
        prepare(dataclasses.replace(what, config=own), tmp_path / "run")


def test_a_server_that_is_killed_goes_on_and_ends_the_same(tmp_path):
    class Killed(BaseException):
        pass

    what = asked(tmp_path, "pfedclr", SETTINGS)
    expected = go(tmp_path, Direct(nodes(tmp_path / "a")), what, out="through")
    link = Direct(nodes(tmp_path / "b"))

    def ask_and_die(messages, seconds, calls=[0]):  # noqa: B006
        for reply in Direct.ask(link, messages, seconds):
            calls[0] += 1
            if calls[0] == 11:  # three hellos, three trainings and validations, and in the middle of round 2
                raise Killed
            yield reply

    link.ask = ask_and_die
    with pytest.raises(Killed):
        go(tmp_path, link, what)
    again = Direct({n: Node(node.data, node.vault.path, threads=1) for n, node in link.named.items()})
    found = go(tmp_path, again, what)
    for one, other in zip(states(tmp_path / "run"), states(tmp_path / "through"), strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)
    ours, theirs = (comparable(s) for s in (found, expected))
    assert ours.pop("bytes_up") == pytest.approx(theirs.pop("bytes_up"), rel=1e-3)  # replies hold the seconds they took
    assert ours == theirs
    assert go(tmp_path, Direct({}), what) == found, "a finished run is only read"


def test_a_round_with_too_few_replies_is_tried_again(tmp_path):
    link, what = Direct(nodes(tmp_path / "a")), asked(tmp_path, least=1.0)
    calls = []

    def sometimes(reply):
        calls.append(reply)
        return None if len(calls) == 4 else reply  # hello, round 1 and its validation, and no reply in round 2

    link.spoil = {"n1": sometimes}
    found = go(tmp_path, link, what)
    expected = go(tmp_path, Direct(nodes(tmp_path / "b")), what, out="through")
    assert dataclasses.replace(found, bytes_up=0, bytes_down=0).test == expected.test
    for one, other in zip(states(tmp_path / "run"), states(tmp_path / "through"), strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)
    link = Direct(nodes(tmp_path / "c"))
    link.spoil = {"n1": lambda reply: reply if b'"here"' in reply[:40] else None}
    with pytest.raises(UserError, match="16 of 24 clients replied; start the nodes"):
        go(tmp_path, link, what, out="failed")


@pytest.mark.parametrize("secure", [False, True])
def test_the_quorum_is_waited_for(tmp_path, monkeypatch, caplog, secure):
    """Two of three nodes are away for longer than ten tries take; with a secure sum, one."""
    monkeypatch.setattr("tacit.deploy.gathering.SAY", 1.0)
    link = Direct(nodes(tmp_path / "a"))
    what = dataclasses.replace(asked(tmp_path, least=0.6), wait=0)
    what = dataclasses.replace(what, config=what.config.model_copy(update={"secure": secure}))
    looks = []

    def there():
        looks.append(1)
        link.gone = ({"n2"} if secure else {"n1", "n2"}) if 2 < len(looks) < 30 else set()
        return Direct.nodes(link)

    link.nodes = there
    with caplog.at_level(logging.WARNING, "tacit.server"):
        go(tmp_path, link, what)
    assert "waiting for nodes" in caplog.text
    assert "not n" in caplog.text
    through = go(tmp_path, Direct(nodes(tmp_path / "b")), what, out="through")
    assert through.rounds == 3
    one, other = (states(tmp_path / out)[0] for out in ("run", "through"))
    assert all(torch.equal(one[n], other[n]) for n in one)


class Waiting(Direct):
    """A link on which silence takes as long as it is waited for; `mute` nodes greet, `dumb` ones not even that."""

    mute: frozenset = frozenset()
    dumb: frozenset = frozenset()

    def ask(self, messages, seconds):
        names = list(self.named)
        greeting = b'"hello"' in next(iter(messages.values()))[:40]
        silent = [i for i in messages if names[i] in self.dumb or (names[i] in self.mute and not greeting)]
        yield from Direct.ask(self, {i: blob for i, blob in messages.items() if i not in silent}, seconds)
        if silent:
            time.sleep(max(seconds[i] for i in silent) if isinstance(seconds, dict) else seconds)


@pytest.mark.parametrize("kind", ["mute", "dumb"])
def test_a_node_that_stays_silent_does_not_stall_every_round(tmp_path, kind):
    what = asked(tmp_path, rounds=6, nodes=2)
    what = dataclasses.replace(what, terms=dataclasses.replace(what.terms, deadline=3, greeting=3), wait=60)
    link = Waiting(nodes(tmp_path))
    setattr(link, kind, frozenset({"n1"}))
    began = time.monotonic()
    found = go(tmp_path, link, what)
    assert found.rounds == 6
    assert time.monotonic() - began < 25, "a deadline for each round and each validation would be 36 s"


def test_a_node_that_is_silent_for_a_while_is_heard_again(tmp_path):
    what = asked(tmp_path, rounds=8, nodes=3)
    what = dataclasses.replace(what, terms=dataclasses.replace(what.terms, deadline=0.3, greeting=0.3), wait=60)
    link = Waiting(nodes(tmp_path))

    def watch(progress, plan):
        link.mute = frozenset({"n1"} if progress.round in (1, 2) else ())
        time.sleep(0.6)

    go(tmp_path, link, what, watch)
    clients = [r["clients"] for r in RunFolder.open(tmp_path / "run").rounds()]
    assert clients[0] == clients[-1] == 24
    assert clients[1] == 16


@pytest.mark.parametrize(("method", "ldp"), [("hetefedrec", None), ("fedmf", "kind=laplace,clip=0.5,epsilon=4")])
def test_a_late_node_is_told_why_it_waits(tmp_path, caplog, method, ldp):
    everyone = nodes(tmp_path)
    link = Direct({name: everyone[name] for name in ("n0", "n2")})
    settings = SETTINGS if method == "fedmf" else {"epochs": 1}
    made = config(method=method, data="nodes", rounds=3, settings=settings, ldp=ldp)
    what = dataclasses.replace(asked(tmp_path, nodes=2), config=made)
    with caplog.at_level(logging.WARNING, "tacit"):
        go(tmp_path, link, what, lambda *_: link.named.update(n1=everyone["n1"]))
    said = [r.getMessage() for r in caplog.records if r.name == "tacit.node"]
    assert len(said) == 1
    assert "waits for the next run" in said[0]
    assert ("--ldp" if ldp else "hetefedrec") in said[0]


def test_a_removed_node_is_neither_asked_nor_waited_for(tmp_path, caplog):
    what = asked(tmp_path, least=1.0)
    link = Direct(nodes(tmp_path))

    class Stop(Exception):
        pass

    def stop(progress, plan):
        raise Stop

    with pytest.raises(Stop):
        go(tmp_path, link, what, stop)
    with pytest.raises(UserError, match=r"there is no node 'n7' in .*; there is n0, n1, n2"):
        remove(tmp_path / "run", "n7")
    assert remove(tmp_path / "run", "n1") == 2
    found = go(tmp_path, link, what)
    assert "'n1' was removed from this run" in caplog.text
    assert [r["clients"] for r in RunFolder.open(tmp_path / "run").rounds()] == [24, 16, 16]
    assert found.users_evaluated == 16


def test_a_folder_of_another_run_is_refused(tmp_path):
    go(tmp_path, Direct(nodes(tmp_path)), asked(tmp_path, rounds=1))
    with pytest.raises(UserError, match="a run with another config"):
        go(tmp_path, Direct({}), asked(tmp_path, rounds=1, settings=SETTINGS | {"dim": 5}))


def test_without_enough_nodes_nothing_starts(tmp_path):
    with pytest.raises(UserError, match="fewer than 4 nodes after 2 s"):
        go(tmp_path, Direct(nodes(tmp_path)), asked(tmp_path, nodes=4))


def test_a_centralised_method_is_refused(tmp_path):
    with pytest.raises(UserError, match="all data in one place"):
        prepare(asked(tmp_path, "mf", {}), tmp_path / "run")


def test_a_node_that_comes_late_takes_part_from_then_on(tmp_path):
    everyone = nodes(tmp_path)
    link = Direct({name: everyone[name] for name in ("n0", "n2")})

    def watch(progress, plan):
        link.named["n1"] = everyone["n1"]

    found = go(tmp_path, link, asked(tmp_path, nodes=2), watch)
    assert [r["clients"] for r in RunFolder.open(tmp_path / "run").rounds()] == [16, 24, 24]
    assert found.clients == found.users_evaluated == 24


def test_the_budget_of_noise_is_stated(tmp_path):
    what = asked(tmp_path, rounds=2)
    made = config(method="fedmf", data="nodes", rounds=2, settings=SETTINGS, ldp="kind=laplace,clip=0.5,epsilon=4")
    found = go(tmp_path, Direct(nodes(tmp_path)), dataclasses.replace(what, config=made))
    assert found.epsilon == pytest.approx(4, rel=0.01)
    assert found.ldp["epsilon_round"] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(("file", "text"), [("nodes.json", '{"members": [{"na'), ("nodes.json", '{"members": [{}]}')])
def test_a_damaged_list_of_nodes_is_a_sentence(tmp_path, file, text):
    what = asked(tmp_path)
    folder, job = prepare(what, tmp_path / "run")
    (folder.path / file).write_text(text)
    with pytest.raises(UserError, match=r"nodes\.json cannot be read .*; restore it from a copy, or start a new run"):
        run(what, folder, job, Direct({}))


def test_a_damaged_count_of_what_was_asked_is_a_sentence(tmp_path):
    what = asked(tmp_path)
    folder, job = prepare(what, tmp_path / "run")
    (folder.path / "asked.jsonl").write_text("1\n2\n\0\0")
    with pytest.raises(UserError, match=r"asked\.jsonl is damaged, and with it how often clients were asked"):
        run(what, folder, job, Direct(nodes(tmp_path)))
