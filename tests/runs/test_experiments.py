import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from run_folders import summary_of
from tacit.data.sources import load
from tacit.errors import UserError
from tacit.runs import experiments, paper_tables
from tacit.runs.assembly import method_of
from tacit.runs.cells import Cell
from tacit.runs.published import OWN, located, names

TOML = """
title = "A small table"
source = "nobody"
metrics = ["HR@10", "NDCG@10"]
protocols = ["paper", "strict"]
seeds = [0, 1]
figures = ["up", "cpu"]
note = "Below the table."

[options]
rounds = 2
threads = 1

[settings]
dim = 4

[[data]]
name = "demo"

[[run]]
label = "FedMF"
method = "fedmf"
published.demo = [
    { source = "A", "HR@10" = 0.5, "NDCG@10" = 0.25 },
    { source = "B", "HR@10" = 0.75 },
]

[[run]]
label = "popular"
method = "popularity"

[[run]]
label = "rates"
method = "fedmf"
sweep = { setting = "lr", values = [0.1, 0.5] }
published.demo = [{ "HR@10" = 0.1 }, { "HR@10" = 0.2 }]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TOML)
    return path


def test_a_file_is_every_row_data_set_protocol_and_seed(file):
    made = experiments.read(file)
    plan = experiments.planned(made)
    assert len(plan) == 4 * 2 * 2  # rows, protocols, seeds
    assert len({p.folder for p in plan}) == len(plan)
    first = plan[0]
    assert (first.label, first.asked.method, first.asked.rounds) == ("FedMF", "fedmf", 2)
    assert first.asked.settings == {"dim": 4}
    popular = next(p for p in plan if p.label == "popular")
    assert popular.asked.settings == {}  # it has no such setting
    swept = [p for p in plan if p.label.startswith("rates")]
    assert {p.asked.settings["lr"] for p in swept} == {0.1, 0.5}
    assert {p.label for p in swept} == {"rates lr=0.1", "rates lr=0.5"}


def test_what_a_method_left_to_the_data_is_found_again(tmp_path):
    """tally chooses settings by the data: its finished runs are of the file that left them open."""
    path = tmp_path / "open.toml"
    path.write_text(
        'title = "t"\nmetrics = ["HR@10"]\nprotocols = ["strict"]\n[[data]]\nname = "demo"\n'
        '[[run]]\nlabel = "tally"\nmethod = "tally"\nsettings = { blend = [1.0] }\n'
    )
    made = experiments.read(path)
    experiments.carry_out(experiments.planned(made), tmp_path / "runs")
    assert len(experiments.collect(made, tmp_path / "runs")["tally", "demo", "strict"].runs) == 1
    experiments.carry_out(experiments.planned(made), tmp_path / "runs")  # and is not refused as another one


def test_a_part_of_it_can_be_asked_for(file):
    made = experiments.read(file)
    assert {p.label for p in experiments.planned(made, only=["rates"])} == {"rates lr=0.1", "rates lr=0.5"}
    assert {p.label for p in experiments.planned(made, only=["rates lr=0.5"])} == {"rates lr=0.5"}
    assert {p.asked.protocol for p in experiments.planned(made, protocols=["strict"])} == {"strict"}
    assert {p.asked.seed for p in experiments.planned(made, seeds=[7])} == {7}
    with pytest.raises(UserError, match="unknown row 'fedmff'; did you mean 'FedMF'\\? known: FedMF, popular"):
        experiments.planned(made, only=["fedmff"])


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('title = "A small table"', "", "'title' is invalid"),
        ('"HR@10", "NDCG@10"', '"HR@7"', "unknown metric 'HR@7'"),
        ('"up", "cpu"', '"weight"', "unknown figure 'weight'"),
        ("dim = 4", "dim = 0", "dim=0 is invalid for fedmf"),
        ('method = "popularity"', 'method = "popular"', "unknown method 'popular'"),
        ("published.demo = [{", "published.other = [{", "data set 'other', which the file does not list"),
        ("seeds = [0, 1]", "seeds = [0, 1", "is not TOML"),
        ("note =", "remark =", "'remark' is invalid"),
        ("rounds = 2", "rounds = 0", "rounds=0 is invalid"),
        ('name = "demo"', 'name = "demo"\nunder.stric = { patience = 4 }', "'data.0.under.stric.*' is invalid"),
        ('name = "demo"', 'name = "demo"\nunder.strict = { patients = 4 }', "unknown option 'patients'"),
        ('"HR@10" = 0.75', '"HR@10" = "high"', "'FedMF': published HR@10 = 'high' is not a number"),
        ('"HR@10" = 0.75', '"HR@10" = nan', "published HR@10 = nan is not a number"),
        ('"HR@10" = 0.75', '"HR@10" = -0.75', "published HR@10 = -0.75 is not a number from 0 on"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_runs(file, old, new, complaint):
    file.write_text(TOML.replace(old, new))
    with pytest.raises(UserError, match=complaint):
        experiments.read(file)


def test_runs_are_carried_out_once_and_collected(file, tmp_path):
    made = experiments.read(file)
    out = tmp_path / "runs"
    plan = experiments.planned(made, only=["FedMF", "popular"], seeds=[0])
    experiments.carry_out(plan, out)
    written = {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")}
    assert len(written) == 4
    assert not list(out.glob("*/checkpoints"))
    experiments.carry_out(plan, out)
    assert written == {p: p.stat().st_mtime_ns for p in out.glob("*/summary.json")}, "a finished run was run again"

    found = experiments.collect(made, out)
    cell = found["FedMF", "demo", "strict"]
    assert [s.seed for s in cell.runs] == [0]
    assert cell.figure("HR@10") == (cell.runs[0].test["HR@10"], None)
    assert cell.figure("HR@10", "sampled") == (cell.runs[0].test_sampled99["HR@10"], None)
    assert found["rates lr=0.1", "demo", "paper"].figure("HR@10") is None
    text = paper_tables.markdown(made, found)
    (row,) = [line for line in text.splitlines() if line.startswith("| FedMF")]
    cells = [c.strip() for c in row.strip("|").split("|")]
    assert cells[1] == "0.5000 A, 0.7500 B / 0.2500 A"
    paper = found["FedMF", "demo", "paper"].runs[0]
    assert cells[2] == f"{paper.test['HR@10']:.4f} / {paper.test['NDCG@10']:.4f}"
    assert cells[3].startswith(f"{cell.runs[0].test_sampled99['HR@10']:.4f}")
    assert cells[4].startswith(f"{cell.runs[0].test['HR@10']:.4f}")
    items_mb = paper.bytes_up / (2 * paper.clients) / 1e6
    gaps = paper.test["HR@10"] / 0.5 - 1, paper.test["NDCG@10"] / 0.25 - 1
    assert cells[5] == " / ".join(f"below, {gap:.0%}" for gap in gaps).replace("-", "−")
    assert cells[6] == f"{items_mb:.3f}"
    assert cells[-1] == "1"
    assert "Below the table." in text
    empty = paper_tables.markdown(made, experiments.collect(made, tmp_path / "elsewhere"))
    assert paper_tables.NOTHING in empty
    search = made.model_copy(update={"shown": "valid"})
    assert paper_tables.headings(search)[2:4] == ["paper, validation", "strict, validation"]
    cells = paper_tables.table_rows(search, "demo", found)[0]
    assert cells[3] == [f"{cell.runs[0].valid[m]:.4f}" for m in made.metrics]
    assert cell.runs[0].valid["HR@10"] != cell.runs[0].test["HR@10"]
    assert paper_tables.NOTHING not in text
    assert "| FedMF" not in empty


def test_metrics_are_named_in_any_case_and_older_runs_are_without_some(file, tmp_path):
    named = TOML.replace('"HR@10", "NDCG@10"]', '"hr@10", "coverage"]')
    file.write_text(named.replace('source = "B", "HR@10"', 'source = "B", "hr@10"'))
    made = experiments.read(file)
    assert made.metrics == ["HR@10", "Coverage@10"]
    out = tmp_path / "runs"
    experiments.carry_out(experiments.planned(made, only=["FedMF"], protocols=["paper"], seeds=[0]), out)
    summary = next(out.glob("*/summary.json"))
    written = json.loads(summary.read_text())
    cells = paper_tables.table_rows(made, "demo", experiments.collect(made, out))[0]
    assert cells[1] == ["0.5000 A, 0.7500 B", "–"]
    assert cells[2] == [f"{written['test'][name]:.4f}" for name in made.metrics]
    del written["test"]["Coverage@10"], written["gap"]
    summary.write_text(json.dumps(written))
    cells = paper_tables.table_rows(made, "demo", experiments.collect(made, out))[0]
    assert cells[2] == [f"{written['test']['HR@10']:.4f}", "–"]


def test_a_run_of_another_table_is_taken_from_there(file, tmp_path):
    made = experiments.read(file)
    plan = experiments.planned(made, only=["FedMF"], protocols=["paper"], seeds=[0])
    experiments.carry_out(plan, tmp_path / "runs/one")
    first = tmp_path / "runs/one" / plan[0].folder
    told = json.loads((first / "summary.json").read_text())
    (first / "summary.json").write_text(json.dumps(told | {"seconds": 12345.0}))  # to be told from a run of its own
    again = experiments.read(_changed(file, 'label = "FedMF"', 'label = "The same"'))
    plan = experiments.planned(again, only=["The same"], protocols=["paper"], seeds=[0])
    experiments.carry_out(plan, tmp_path / "runs/two")
    cell = experiments.collect(again, tmp_path / "runs/two")["The same", "demo", "paper"]
    assert [run.seconds for run in cell.runs] == [12345.0]
    assert first.exists()
    assert [path.name for path in (tmp_path / "runs/two").iterdir()] == ["the-same-demo-paper-s0"]


@pytest.mark.parametrize("change", ["settings", "version", "data", "damage", "unfinished"])
def test_another_run_is_not_taken(file, tmp_path, change):
    made = experiments.read(file)
    plan = experiments.planned(made, only=["FedMF"], protocols=["paper"], seeds=[0])
    experiments.carry_out(plan, tmp_path / "runs/one")
    first = tmp_path / "runs/one" / plan[0].folder
    run, summary = (json.loads((first / name).read_text()) for name in ("run.json", "summary.json"))
    (first / "summary.json").write_text(json.dumps(summary | {"seconds": 12345.0}))
    if change == "version":
        (first / "run.json").write_text(json.dumps(run | {"versions": {"tacit": "0.0.1"}}))
    if change == "data":
        (first / "run.json").write_text(json.dumps(run | {"fingerprint": "of other data"}))
    if change == "damage":
        (first / "run.json").write_text("{")
    if change == "unfinished":
        (first / "summary.json").unlink()
    if change == "settings":
        plan = experiments.planned(
            experiments.read(_changed(file, "dim = 4", "dim = 5")), only=["FedMF"], protocols=["paper"], seeds=[0]
        )
    experiments.carry_out(plan, tmp_path / "runs/two")
    (path,) = (tmp_path / "runs/two").glob("*/summary.json")
    assert json.loads(path.read_text())["seconds"] < 1000


def test_a_run_with_other_settings_does_not_count(file, tmp_path):
    made = experiments.read(file)
    out = tmp_path / "runs"
    experiments.carry_out(experiments.planned(made, only=["FedMF"], protocols=["paper"], seeds=[0]), out)
    other = experiments.read(_changed(file, "dim = 4", "dim = 5"))
    assert experiments.collect(made, out)["FedMF", "demo", "paper"].runs
    assert not experiments.collect(other, out)["FedMF", "demo", "paper"].runs
    with pytest.raises(UserError, match="holds a run with other options"):
        experiments.carry_out(experiments.planned(other, only=["FedMF"], protocols=["paper"], seeds=[0]), out)


def test_rounds_asked_for_by_number_are_those_that_the_method_has_anyway(file, tmp_path):
    made = experiments.read(_changed(file, "rounds = 2", "evaluate_every = 1"))
    out = tmp_path / "runs"
    experiments.carry_out(experiments.planned(made, only=["popular"], protocols=["paper"], seeds=[0]), out)
    for rounds, count in ((1, 1), (2, 0)):
        same = experiments.read(_changed(file, "rounds = 2", f"rounds = {rounds}\nevaluate_every = 1"))
        assert len(experiments.collect(same, out)["popular", "demo", "paper"].runs) == count


def test_seeds_are_averaged():
    runs = [summary_of(seed, value) for seed, value in enumerate((0.2, 0.4, 0.9))]
    value, spread = Cell(tuple(runs)).figure("HR@10")
    assert value == pytest.approx(0.5)
    assert spread == pytest.approx(0.3605551)


def test_budgets_are_a_figure_and_may_be_infinite():
    none, finite, endless = (
        Cell(tuple(replace(summary_of(seed, 0.1), epsilon=epsilon) for seed in range(2)))
        for epsilon in (None, 2.5, math.inf)
    )
    assert none.cost("epsilon") is None
    assert finite.cost("epsilon") == (2.5, 0.0)
    assert endless.cost("epsilon") == (math.inf, None)
    made = experiments.Experiment(
        title="t", metrics=["HR@10"], figures=["epsilon"], data=[{"name": "demo"}],
        run=[{"label": "a", "method": "fedmf"}, {"label": "b", "method": "fedmf"}],
    )  # fmt: skip
    assert "ε" in paper_tables.headings(made)
    found = {("a", "demo", "paper"): endless, ("b", "demo", "paper"): none}
    assert [cells[-2] for cells in paper_tables.table_rows(made, "demo", found)] == [["∞"], ["–"]]


def test_what_papers_print_of_a_figure_stands_behind_ours():
    made = experiments.Experiment(
        title="t", metrics=["HR@10"], figures=["client", "cpu"], data=[{"name": "demo"}],
        run=[
            {"label": "a", "method": "fedmf", "published": {"demo": [{"client": 0.5}]}},
            {"label": "b", "method": "fedmf"},
        ],
    )  # fmt: skip
    assert paper_tables.headings(made)[-3:] == ["client MiB (published)", "CPU s", "seeds"]
    kept = replace(summary_of(0, 0.1), bytes_kept=2.0**18, bytes_down=3 * 2**20, client_rounds=4)
    found = {("a", "demo", "paper"): Cell((kept,))}
    one, other = paper_tables.table_rows(made, "demo", found)
    assert one[-3:-1] == [["1.0000 (0.5000)"], ["1.000"]]
    assert other[-3:-1] == [["–"], ["–"]]
    assert Cell((summary_of(0, 0.1),)).cost("client") is None  # a summary that does not know


def test_a_client_of_pfedclr_holds_a_table_a_vector_and_the_buffer(tmp_path):
    """Table 6: 4 (M + 1) d bytes of FedMF and 4 (M + d) r above them; the copy for ranking alone does not count."""
    made = experiments.Experiment(
        title="t", metrics=["HR@10"], figures=["client", "server"], protocols=["paper"], data=[{"name": "demo"}],
        options={"rounds": 1, "threads": 1}, settings={"dim": 4, "epochs": 1},
        run=[
            {"label": "FedMF", "method": "fedmf"},
            {"label": "PFedCLR", "method": "pfedclr", "settings": {"rank": 3}},
            {"label": "FedRAP", "method": "fedrap"},
        ],
    )  # fmt: skip
    experiments.carry_out(experiments.planned(made), tmp_path)
    found = experiments.collect(made, tmp_path)
    M = load("demo").n_items
    plain, pfedclr, fedrap = (found[label, "demo", "paper"] for label in ("FedMF", "PFedCLR", "FedRAP"))
    assert plain.cost("client")[0] * 2**20 == pytest.approx(4 * (M + 1) * 4)
    assert (pfedclr.cost("client")[0] - plain.cost("client")[0]) * 2**20 == pytest.approx(4 * (M + 4) * 3)
    assert fedrap.cost("client")[0] > 1.9 * plain.cost("client")[0]
    assert plain.cost("server")[0] * 2**20 == pfedclr.cost("server")[0] * 2**20 == pytest.approx(4 * M * 4)


def test_every_file_of_the_project_can_be_read():
    files = sorted(OWN.glob("*.toml"))
    assert files
    for path in files:
        assert experiments.planned(experiments.read(path))


@pytest.mark.parametrize(
    ("name", "data", "row", "settings", "options"),
    [
        ("fedcia-table1", "ml-1m", "GF-CF alone", {"directions": 128, "beta": 25.0}, {"select": "F1@10"}),
        ("fedcia-table1", "amazon-beauty", "FedCIA GF-CF", {"ideal": 1.0, "beta": 40.0}, {"patience": 10}),
        ("fedcia-table1", "ml-100k", "FedCIA LightGCN", {"layers": 5}, {"clients": 100}),
        ("fedcia-public", "ml-100k", "MF alone", {"dim": 512, "lr": 0.1, "epochs": 1}, {"select": "F1@10"}),
        ("pfedclr-table1", "filmtrust", "FedMF", {"optimizer": "adam", "epochs": 10, "aggregated": 0.6}, {}),
        ("pfedclr-table1", "filmtrust", "GPFedRec", {}, {"rounds": 100}),
        ("pfedclr-table8", "ml-100k", "GPFedRec", {}, {"ldp": None}),
        ("pfedclr-table8", "ml-100k", "PFedCLR", {"fraction": 1.0, "aggregated": 0.6}, {}),
        ("plgc-printed", "ml-100k", "FedMF + PLGC", {"dim": 32, "batch": 2048, "epochs": 10, "plgc_every": 1}, {}),
        ("cgfedrec-table2", "ml-100k", "CGFedRec", {"traverse": False}, {"rounds": 100, "patience": 0}),
    ],
)
def test_files_have_the_settings_that_papers_and_public_code_name(name, data, row, settings, options):
    for one in experiments.planned(experiments.read(Path(name)), [row], [data], seeds=[0]):
        made = method_of(one.asked)
        assert {key: getattr(made, key) for key in settings} == settings
        assert {key: getattr(one.asked, key) for key in options} == options


def test_hetefedrecs_tables_share_rule_and_split():
    files = [experiments.read(Path(f"hetefedrec-{part}")) for part in ("table2", "tables4-5", "table6", "table7")]
    first, *others = [(one.protocols, one.options, one.settings) for one in files]
    assert first[0] == ["fileorder"]
    assert first[2]["server"] == "sgd"
    assert all(one == first for one in others)
    swept = experiments.read(Path("hetefedrec-figure8"))
    alpha = first[2].pop("decorrelation")
    assert (swept.protocols, swept.options, swept.settings) == first
    assert alpha in swept.run[0].sweep.values


def test_an_experiment_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = OWN / "pfedclr-table2.toml"
    assert "pfedclr-table2" in names()
    for way in ("pfedclr-table2", "pfedclr-table2.toml", "experiments/pfedclr-table2.toml"):
        assert located(Path(way)) == own
    (tmp_path / "pfedclr-table2.toml").write_text("")
    assert located(Path("pfedclr-table2.toml")) == Path("pfedclr-table2.toml")
    with pytest.raises(UserError, match="did you mean 'pfedclr-table2'"):
        experiments.read(Path("pfedclr-table22"))
    with pytest.raises(UserError, match=r"mine.toml cannot be read"):
        experiments.read(Path("mine.toml"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [("[0.1, 0.1]", "two rows are called 'FedMF lr=0.1'"), ("[]", "sweeps lr over no values")],
)
def test_a_sweep_has_each_value_once(tmp_path, values, sentence):
    file = tmp_path / "mine.toml"
    file.write_text(
        'title = "t"\nmetrics = ["HR@10"]\n[[data]]\nname = "demo"\n[[run]]\nlabel = "FedMF"\nmethod = "fedmf"\n'
        f'sweep = {{ setting = "lr", values = {values} }}\n'
    )
    with pytest.raises(UserError, match=sentence):
        experiments.read(file)


def test_options_of_one_protocol_stand_between_those_of_the_data_and_those_of_a_row(file):
    told = 'name = "demo"\noptions = { patience = 1, evaluate_every = 2 }\nunder.strict = { patience = 4, rounds = 3 }'
    other = _changed(file, 'name = "demo"', told)
    other.write_text(other.read_text().replace('label = "popular"', 'label = "popular"\noptions = { patience = 9 }'))
    plan = experiments.planned(made := experiments.read(other), seeds=[0])
    asked = {(p.label, p.asked.protocol): (p.asked.patience, p.asked.evaluate_every, p.asked.rounds) for p in plan}
    assert asked["FedMF", "paper"] == (1, 2, 2)
    assert asked["FedMF", "strict"] == (4, 2, 3)
    assert asked["popular", "strict"] == (9, 2, 3)
    plan = experiments.planned(experiments.altered(made, rounds=5), seeds=[0])
    assert {p.asked.rounds for p in plan} == {5}


def test_other_data_and_rounds_than_the_files():
    asked = experiments.read(Path("pfedclr-table2"))
    plan = experiments.planned(experiments.altered(asked, ["demo"], 2), data=["demo"])
    assert len({p.label for p in plan}) == len(asked.run)
    assert {(p.data, p.asked.rounds) for p in plan} == {("demo", 2)}
    assert not any("rounds" in p.asked.settings for p in plan)


def _changed(file, old, new):
    path = file.with_name("other.toml")
    path.write_text(TOML.replace(old, new))
    return path
