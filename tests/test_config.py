from dataclasses import dataclass, fields

import pytest

from tacit.config import build, config, parse_pairs
from tacit.core.trained import Trained
from tacit.errors import UserError
from tacit.methods import find, known
from tacit.methods.fedncf import FedNCF
from tacit.methods.references import EASE


def test_the_defaults_are_the_honest_protocol():
    made = config(method="fedmf")
    assert (made.protocol, made.data, made.seed, made.select) == ("strict", "ml-100k", 0, "NDCG@10")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"protocol": "strikt"}, r"protocol='strikt' is invalid: .*'strict', 'paper', 'symmetric'"),
        ({"rounds": 0}, r"rounds=0 is invalid: it must be at least 1"),
        ({"seed": -1}, r"seed=-1 is invalid: it must be at least 0"),
        ({"seed": "x"}, r"seed='x' is invalid: .*whole number"),
        ({"clients": -1}, r"clients=-1 is invalid"),
        ({"chunk": 0}, r"chunk=0 is invalid"),
        ({"select": "NDCG@11"}, r"unknown metric 'NDCG@11'; did you mean 'NDCG@10'\? known: F1@10"),
        ({"sede": 3}, r"unknown option 'sede'; did you mean 'seed'\?"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        config(method="fedmf", **options)
    assert "\n" not in str(caught.value)


def test_settings_from_the_command_line_get_the_types_of_the_fields():
    made = build(FedNCF, {"dim": "8", "lr": "0.5", "optimizer": "sgd", "layers": "16,8"})
    assert made == FedNCF(dim=8, lr=0.5, optimizer="sgd", layers=(16, 8))


@pytest.mark.parametrize("layers", ["16,8", "(16, 8)", "[16,8]", [16, 8], (16, 8)])
def test_tuples_can_be_written_in_any_usual_way(layers):
    assert build(FedNCF, {"layers": layers}).layers == (16, 8)


def test_a_single_value_is_a_tuple_too():
    assert build(EASE, {"ridge": "500"}).ridge == (500.0,)
    assert build(FedNCF, {"layers": ""}).layers == ()


@dataclass(frozen=True)
class Choosy(Trained):
    name = "choosy"
    limit: float | None = 1.0
    on: bool = False


def test_none_and_truth_values():
    assert build(Choosy, {"limit": "none", "on": "true"}) == Choosy(limit=None, on=True)
    assert build(Choosy, {"limit": "2", "on": "0"}) == Choosy(limit=2.0, on=False)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dmi": "8"}, r"unknown setting of fedncf 'dmi'; did you mean 'dim'\? known: aggregated, batch, dim"),
        ({"dim": "abc"}, r"dim=abc is invalid for fedncf: .*whole number"),
        ({"dim": "1.5"}, r"dim=1.5 is invalid for fedncf: .*whole number"),
        ({"optimizer": "adamw"}, r"optimizer=adamw is invalid for fedncf: .*'sgd' or 'adam'"),
        ({"layers": "8,x"}, r"layers=8,x is invalid for fedncf: .*whole number"),
        ({"name": "x"}, r"unknown setting of fedncf 'name'"),
        ({"dim": 0}, r"dim=0 is invalid for fedncf: it must be at least 1"),
        ({"batch": "-1"}, r"batch=-1 is invalid for fedncf: it must be at least 0"),
        ({"negatives": "-1"}, r"negatives=-1 is invalid"),
        ({"rounds": "0"}, r"rounds=0 is invalid"),
        ({"lr": "nan"}, r"lr=nan is invalid"),
        ({"fraction": "0"}, r"fraction=0 is invalid for fedncf: it must be above 0"),
        ({"init": "0"}, r"init=0 is invalid for fedncf: it must be above 0"),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        build(FedNCF, settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", known())
def test_every_default_passes_as_a_setting(name):
    cls = find(name)
    assert build(cls, {f.name: getattr(cls(), f.name) for f in fields(cls)}) == cls()


def test_pairs_from_the_command_line():
    assert parse_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(UserError, match=f"'{wrong}' is not a setting; write key=value"):
            parse_pairs([wrong])


def test_methods_are_found_by_name_and_by_path():
    assert find("fedncf") is FedNCF
    assert find("tacit.methods.fedncf:FedNCF") is FedNCF


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fedmff", r"unknown method 'fedmff'; did you mean 'fedmf'\? known: cgfedrec, "),
        ("zzz", r"unknown method 'zzz'; known: cgfedrec, "),
        ("nowhere:Thing", r"cannot import method 'nowhere:Thing'"),
        ("tacit.methods.fedncf:Nothing", r"cannot import method"),
        (".here:Thing", r"cannot import method"),
        (":Thing", r"cannot import method"),
        ("math:pi", r"'math:pi' is not a method"),
        ("collections:Counter", r"'collections:Counter' is not a method"),
    ],
)
def test_a_method_that_cannot_be_found_is_one_sentence(name, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        find(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("clip=0.5,scale=0.01", {"kind": "laplace", "clip": 0.5, "scale": 0.01}),
        ("kind=gaussian,clip=1,epsilon=8,delta=1e-6", {"kind": "gaussian", "clip": 1, "epsilon": 8, "delta": 1e-6}),
        ("kind=unclipped-laplace,scale=0.5", {"kind": "unclipped-laplace", "scale": 0.5}),
        ({"kind": "unclipped-gaussian", "scale": 2}, {"kind": "unclipped-gaussian", "scale": 2.0}),
    ],
)
def test_noise_can_be_asked_for_in_words_and_in_a_file(asked, expected):
    made = config(method="fedmf", ldp=asked).ldp
    written = {"clip": None, "scale": None, "epsilon": None, "delta": 1e-5} | expected
    assert made.model_dump() == written
    assert config(method="fedmf", ldp=made.model_dump()).ldp == made


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("scale=1", "laplace needs clip="),
        ("clip=1", "laplace needs either scale=.* or epsilon="),
        ("kind=gaussian,clip=1,scale=1,epsilon=1", "gaussian needs either scale=.* or epsilon="),
        ("kind=unclipped-laplace,clip=1,scale=1", "unclipped-laplace has a scale and nothing else"),
        ("kind=unclipped-laplace,epsilon=1", "no finite ε follows without clipping"),
        ("kind=laplase,clip=1,scale=1", "unknown mechanism 'laplase'; did you mean 'laplace'"),
        ("clip=0,scale=1", "ldp.clip='0' is invalid: it must be above 0"),
        ("clip=inf,scale=1", "ldp.clip='inf' is invalid: .*finite"),
        ("clip=1,scale=nan", "ldp.scale='nan' is invalid: .*finite"),
        ("clip=1,scale=1,delta=1", "ldp.delta='1' is invalid: it must be below 1"),
        ("clip", "'clip' is not a setting; write key=value, as in --ldp kind=laplace"),
        ("clip=1,scale=1,rounds=3", "ldp.rounds='3' is invalid"),
    ],
)
def test_noise_that_makes_no_sense_is_one_sentence(asked, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        config(method="fedmf", ldp=asked)
    assert "\n" not in str(caught.value)
