QUICK = ("--rounds", "1", "--threads", "1", "--no-sanity")


def test_text_from_data_is_printed_as_text(tacit, tmp_path):
    rows = [f"[red]u{u},[/x]{(u % 5) * 9 + (u + n) % 11},{n},a [/x] [bold]title[/bold] :smile: {n}"
            for u in range(30) for n in range(6)]  # fmt: skip
    (tmp_path / "mine.csv").write_text("\n".join(["user,item,time,title", *rows]))
    assert tacit("data", "import", "mine.csv", "--name", "mine")[0] == 0
    folder = tmp_path / "[/x][red]run"
    code, out, err = tacit("run", "popularity", "--data", "mine", *QUICK, "--out", folder)
    assert (code, err) == (0, "")
    assert "[/x][red]run" in "".join(out.split("\n"))
    assert "[red]u" in out
    assert "a [/x] [bold]title[/bold] :smile:" in out
    code, out, _ = tacit("recommend", folder, "--user", "[red]u7")
    assert code == 0
    assert "for user [red]u7" in out
    code, _, err = tacit("recommend", folder, "--user", "[/x]")
    assert code == 2
    assert "no user '[/x]'" in err


def test_methods_show_their_text_and_their_own_settings(tacit):
    code, out, _ = tacit("methods")
    assert code == 0
    row = next(line for line in out.splitlines() if " fedncf " in line)
    assert "Score MLP([p_u, q_i])" in row
    assert "layers=32,16,8" in row
    assert "trained" in row
    assert "Perifanis" in row
    assert "negatives=" not in out
    assert "reference" in next(line for line in out.splitlines() if " ease " in line)


def test_one_method_shows_all_its_settings(tacit):
    code, out, _ = tacit("methods", "fedncf")
    assert code == 0
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "per positive, redrawn every round" in lines["negatives"]
    assert "32,16,8" in lines["layers"]
    assert "sgd or adam" in lines["optimizer"]
    assert "plgc_beta" in tacit("methods", "plgc+fedmf")[1]
    assert "plgc_beta" in tacit("methods", "plgc")[1]
    code, _, err = tacit("methods", "fedncff")
    assert code == 2
    assert "did you mean 'fedncf'?" in err
