"""What a person reads: tables and sentences, from finished runs."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tacit.data.protocols import SHARES
from tacit.data.summary import Summary as DataSummary
from tacit.evaluation.metrics import Metrics
from tacit.privacy.attacks import ATTACKS
from tacit.runs.audit import POPULARITY, Audit
from tacit.runs.compare import Row
from tacit.runs.diagnose import RANKED, Clusters, Diagnosis, Line
from tacit.runs.poison import Poisoning
from tacit.runs.run import Recommendation, Summary
from tacit.runs.wording import FILE_ORDER, budget, size

_EQUAL = (
    ": which of them came first is not known, and strict takes them in a seeded random order per user, so that what is "
    "withheld is one of the latest, not always the last"
)
CLUSTERED = (("server", "items"), ("clients", RANKED))  # the tables whose separability is shown


def columns(protocol: str) -> list[tuple[str, bool]]:
    """The metrics a protocol is read by, and whether each is of the sampled ranking."""
    if protocol == "strict":
        return [("HR@10", False), ("NDCG@10", False), ("HR@10", True), ("NDCG@10", True)]
    if protocol in SHARES:
        return [("Recall@20", False), ("NDCG@20", False), ("F1@10", False), ("MRR@10", False)]
    return [("HR@5", False), ("NDCG@5", False), ("HR@10", False), ("NDCG@10", False)]


def comparison(rows: Sequence[Row]) -> Table:
    """Metrics ± deviation, bytes per client and seconds, one row per method."""
    first = rows[0].runs[0]
    shown = columns(first.protocol)
    seeds = len(rows[0].runs)
    title = f"{first.data} · {first.protocol} · test" + (f" · {seeds} seeds" if seeds > 1 else f" · seed {first.seed}")
    table = plain(title, narrow=True)
    table.add_column("method", no_wrap=True)
    for metric, sampled in shown:
        kind = "1 of 100" if sampled else _kind(first.protocol)
        table.add_column(f"{metric}\n{kind}", justify="right", no_wrap=True)
    for heading in ("up per\nclient", "down per\nclient", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    stated = any(run.epsilon is not None for row in rows for run in row.runs)
    if stated:
        table.add_column("ε", justify="right", no_wrap=True)
    best = [max(row.mean(metric, sampled) for row in rows) for metric, sampled in shown]
    for row in rows:
        cells = []
        for (metric, sampled), top in zip(shown, best, strict=True):
            value, spread = row.mean(metric, sampled), row.deviation(metric, sampled)
            text = f"{value:.4f}" + (f"\n±{spread:.4f}" if spread is not None else "")
            cells.append(Text(text, style="bold" if value == top else ""))
        run = row.runs[0]
        table.add_row(
            row.method + (" *" if run.settings.get("history") == "known" else ""),
            *cells,
            *(("pooled", "") if run.clients == 1 else (size(b / run.clients) for b in (run.bytes_up, run.bytes_down))),
            f"{sum(r.seconds for r in row.runs) / len(row.runs):.1f} s",
            *([budget(max((r.epsilon for r in row.runs if r.epsilon is not None), default=None))] if stated else []),
        )
    return table


def beside(rows: Sequence[Row], names: Sequence[str]) -> Table:
    """Metrics by name, and how far users of different activity are apart; – where a run is older than a metric."""
    main = next(metric for metric, sampled in columns(rows[0].runs[0].protocol) if metric.startswith("NDCG"))
    table = plain("beside accuracy")
    table.add_column("method", no_wrap=True)
    for name in (*(name.rpartition(":")[2] for name in names), f"gap of\n{main}"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        figures = [*map(row.values, names), [run.gap[main] for run in row.runs if main in run.gap]]
        table.add_row(row.method, *(f"{sum(found) / len(found):.4g}" if found else "–" for found in figures))
    return table


def remarks(rows: Sequence[Row]) -> list[str]:
    """What the table does not say by itself."""
    out = []
    first = rows[0].runs[0]
    oracle = next((row for row in rows if row.method == "oracle"), None)
    sampled = first.protocol == "strict"
    if oracle is not None and first.protocol not in SHARES:
        level = oracle.mean("HR@10", sampled)
        beaten = [r.method for r in rows if r is not oracle and r.mean("HR@10", sampled) < level]
        if beaten and level > 0.2:
            out.append(
                f"The protocol '{first.protocol}' leaks the answer: the oracle has no model at all and reaches "
                f"HR@10 {level:.3f}, above {', '.join(beaten)}. Figures of methods that remember which items were "
                "never drawn as negatives mean nothing here; --protocol strict is honest."
            )
    if first.protocol == "fileorder":
        out.append(FILE_ORDER)
    if any(row.runs[0].settings.get("history") == "known" for row in rows):
        out.append("* scored with the validation item as input, which a device knows at test time.")
    if noise := next((run.ldp for row in rows for run in row.runs if run.ldp), None):
        out.append(
            f"ε at δ = {noise['delta']:g} is what the uploads of all rounds tell of a client at most, of the one that "
            "took part most often; ∞: noise without clipping bounds nothing; –: nothing is promised."
        )
    if noise := next((run.dp for row in rows for run in row.runs if run.dp), None):
        out.append(
            f"ε at δ = {noise['delta']:g} is what the sums of all rounds tell of a client at most: nobody sees its "
            "uploads, and the clients' noise adds up to that of the sum."
        )
    if own := next((run for row in rows for run in row.runs if run.settings.get("epsilon") and not run.dp), None):
        out.append(
            f"ε at δ = {own.settings['delta']:g} is what all that is released tells of a user at most. The server adds "
            "the noise and has seen the uploads; with --secure the clients add it, and nobody sees them."
        )
    if first.users_too_short:
        out.append(
            f"{first.users_too_short:,} users have fewer than 3 interactions: they are trained on, not evaluated."
        )
    if first.duplicates:
        out.append(f"{first.duplicates:,} repeated (user, item) rows were folded into one.")
    return out


def groups(summary: Summary) -> Table:
    """The main metrics by users' activity and by the method's own groups, these with what a client sends in a round."""
    shown = [metric for metric, sampled in columns(summary.protocol) if not sampled]
    table = plain(f"{summary.method} by users' activity")
    table.add_column("users with")
    for metric in (*shown, *(("down a round", "up a round") if summary.group_bytes else ())):
        table.add_column(metric, justify="right")
    for name, metrics in summary.groups.items():
        cells = [f"{metrics[m]:.4f}" for m in shown]
        if own := summary.group_bytes.get(name):
            name = f"a {name} model: {own['clients']:,}"
            cells += [size(own["down"]), size(own["up"])]
        table.add_row(name, *cells)
    if summary.gap:
        table.add_section()
        table.add_row("gap by activity", *(f"{summary.gap[m]:.4f}" for m in shown))
    return table


def diagnostics(found: Sequence[Line]) -> Table:
    """How tables use their dimensions: means over the tables of a group."""
    table = plain("singular values of item tables, means over tables", narrow=True)
    headings = (
        "round",
        "table",
        "users, by\ninteractions",
        "tables",
        "abundance",
        "variance",
        "of the co-\nvariance's",
    )
    for heading in (*headings, "largest", "smallest"):
        table.add_column(heading, justify="left" if heading in headings[1:3] else "right", no_wrap=True)
    for d in (line for line in found if isinstance(line, Diagnosis)):
        cells = (f"{d.abundance:.2f}", *(f"{x:.3g}" for x in (d.variance, d.collapse, d.spectrum[0], d.spectrum[-1])))
        table.add_row(str(d.round), f"{d.of}: {d.table}", _who(d.group), str(d.tables), *cells)
    return table


def clusters(found: Sequence[Line]) -> Table | None:
    """How a server's clusters of items hold from round to round and separate its table and those clients rank with."""
    rounds = {line.round: line for line in found if isinstance(line, Clusters)}
    if not rounds:
        return None
    apart = {(d.round, d.of, d.group): d for d in found if isinstance(d, Diagnosis) and (d.of, d.table) in CLUSTERED}
    groups = list(dict.fromkeys(group for _, of, group in apart if of == "clients" and group != "everyone"))
    table = plain("clusters of items: agreement from round to round, and separability of tables by them", narrow=True)
    headings = ["round", "clusters", "since\nround", "\nagreement", "\nkept", "server's\ntable", "clients'\ntables"]
    headings += ["\nlowest", "\nhighest", *(f"users of\n{_who(group)}" for group in groups)]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for round, line in rounds.items():
        server, clients = apart.get((round, "server", "everyone")), apart[round, "clients", "everyone"]
        figures = [line.agreement, line.kept, server and server.separability]
        figures += [clients.separability, clients.lowest, clients.highest]
        for group in groups:
            figures.append(d.separability if (d := apart.get((round, "clients", group))) else None)
        cells = ("–" if x is None else f"{x:.3f}" for x in figures)
        table.add_row(str(round), str(len(set(line.labels))), str(line.before or "–"), *cells)
    return table


def likeness_remarks(found: Sequence[Line]) -> list[str]:
    """How alike the tables of clients are, where they differ."""
    return [
        f"Round {d.round}, {d.of}: {d.table}. Two clients' rows of one item have a cosine of {d.coordinates:.3f}, "
        f"their similarities of all pairs of items a correlation of {d.relations:.3f}; the mean of their tables keeps "
        f"{d.retained:.3f} of the distances between items (FedCIA, Eq. 4)."
        for d in found
        if isinstance(d, Diagnosis) and d.coordinates is not None
    ]


def cluster_remarks(found: Sequence[Line]) -> list[str]:
    """What the numbers are."""
    if not any(isinstance(line, Clusters) for line in found):
        return []
    out = [
        "Agreement with the clusters recorded before: adjusted Rand index, 1 if they are the same, 0 if by chance. "
        "Kept: share of items that stayed in their cluster. Separability of the server's table and of those that "
        "clients rank with: silhouette of the rows by cosine under the server's labels, 1 if clusters lie far apart, 0 "
        "if they overlap, below 0 if items are nearer to another cluster than to their own; the mean over clients, the "
        "lowest, the highest, and the means of users by interactions."
    ]
    if all(line.before is None for line in found if isinstance(line, Clusters)):
        out.append("Agreement needs rounds to compare: tacit run --diagnose records them.")
    return out


def audits(found: Sequence[Audit]) -> Table:
    """What the attacks found, one row per run and protection."""
    k = found[0].k
    table = plain("what a curious server infers about who interacted with what", narrow=True)
    for heading in ("method", "protection"):
        table.add_column(heading)
    table.add_column("ε of\na round", justify="right", no_wrap=True)
    for name in ATTACKS:
        table.add_column("AUC\n" + name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    table.add_column("between\nclients\n(best)", justify="right", no_wrap=True)
    table.add_column(f"first {k}\nright\n(best)", justify="right", no_wrap=True)
    for a in found:
        if not a.attacks:
            table.add_row(a.method, a.protection, "", *["–"] * (len(ATTACKS) + 2))
            continue
        best = (max(s.between for s in a.attacks.values()), max(s.precision for s in a.attacks.values()))
        guess = a.attacks.get(POPULARITY)
        each = ["" if guess else f"{a.attacks[name].auc:.3f}" for name in ATTACKS]
        if guess:
            each[0] = f"{guess.auc:.3f}"
        cost = "" if guess else budget(a.epsilon_round)
        table.add_row(a.method, a.protection, cost, *each, *(f"{value:.3f}" for value in best))
    return table


def audit_remarks(found: Sequence[Audit]) -> list[str]:
    """What the numbers are."""
    seen = next((a for a in found if a.rounds), found[0])
    out = [
        f"{seen.clients:,} clients, {seen.rounds} rounds. AUC: one of a client's training items scores above another "
        "item, 0.5 is guessing; popularity's needs no upload. Between clients: one that has an item scores above one "
        f"that has not; popularity is worth nothing there. First {found[0].k} right: share of a client's items among "
        "those that the attack puts first.",
    ]
    if any("secure" in a.protection for a in found):
        out.append(
            "Under a secure sum the server has one upload for all: the attack is on the sum, the same for everybody."
        )
    return out + list(dict.fromkeys(f"{a.method}, {a.protection}: {a.refused}." for a in found if a.refused))


def poisonings(found: Sequence[Poisoning]) -> Table:
    """ER@10 and the honest users' NDCG@10, one row per attack, one column per defence."""
    table = plain("a rare item pushed into everybody's first ten: ER@10 and honest users' NDCG@10", narrow=True)
    defences = list(dict.fromkeys(p.defence for p in found))
    for heading in ("method", "attackers", "attack"):
        table.add_column(heading, no_wrap=True)
    for name in defences:
        table.add_column(name, justify="right", no_wrap=True)
    cells: dict[tuple[str, int, str], dict[str, str]] = {}
    for p in found:
        cells.setdefault((p.method, p.attackers, p.attack), {})[p.defence] = f"{p.exposure:.1%}  {p.ndcg:.4f}"
    for (method, count, attack), row in cells.items():
        table.add_row(method, f"{count:,}" if count else "", attack, *(row.get(name, "") for name in defences))
    return table


def poison_remarks(found: Sequence[Poisoning]) -> list[str]:
    """What the numbers are."""
    p = found[-1]
    return [
        f"The target has {p.interactions} interactions; {p.clients:,} clients take part. ER@10: share of the honest "
        "users without it in whose first ten it is. Boosted: as far as a server's checks allow. Honest norm: no longer "
        "than the upload of an honest client. Fake users: made-up histories, trained on as honest ones are."
    ]


def recommendations(user: str | None, recent: Sequence[str], found: Sequence[Recommendation]) -> Table:
    """A list for one user, or somebody new, beside what it touched last."""
    who = "somebody new, who has" if user is None else f"user {user}, who last chose"
    table = plain(f"for {who} {'; '.join(recent)}")
    table.add_column("", justify="right")
    table.add_column("recommended", min_width=50)
    table.add_column("score", justify="right")
    for place, line in enumerate(found, 1):
        title = Text(line.title + (" ✓ chosen next" if line.held_out else ""), style="green" if line.held_out else "")
        table.add_row(str(place), title, f"{line.score:.3f}")
    return table


def data_figures(summary: DataSummary) -> list[str]:
    """A data set in a few lines, with a histogram of interactions per user."""
    lines = [
        f"{summary.users:,} users · {summary.items:,} items · {summary.interactions:,} interactions "
        f"({100 * summary.density:.2f}% of all pairs)",
        f"interactions per user: {summary.min_per_user} at least, {summary.median_per_user:g} median, "
        f"{summary.mean_per_user:.1f} mean, {summary.max_per_user} at most",
        "no times: splits use a seeded random order per user"
        if summary.equal_times is None
        else f"{100 * summary.equal_times:.0f}% of neighbouring interactions share a time stamp"
        + (_EQUAL if summary.equal_times > 0.5 else ""),
        f"the most popular tenth of the items has {100 * summary.top_tenth:.0f}% of the interactions (Gini "
        f"{summary.gini:.2f}); the log degrees of an interaction's user and item correlate by {summary.degrees:.2f}",
        f"{summary.duplicates:,} repeated (user, item) rows folded into one",
        f"{summary.users_below_3:,} users with fewer than 3 interactions: trained on, never held out",
        "",
    ]
    most = max((count for _, _, count in summary.histogram), default=1)
    for low, high, count in summary.histogram:
        bar = "█" * round(40 * count / most) or ("▏" if count else "")
        lines.append(f"{f'{low:,}–{high:,}' if high > low else f'{low:,}':>13} │{bar} {count:,}")
    return lines


def one_line(metrics: Metrics, names: Sequence[str]) -> str:
    """A few metrics in a row."""
    return "  ".join(f"{name} {metrics[name]:.4f}" for name in names if name in metrics)


def _who(group: str) -> str:
    """A group of users below a heading that says what its numbers are."""
    return group.removesuffix(" interactions")


def _kind(protocol: str) -> str:
    return "1 of 100" if protocol in ("paper", "symmetric") else "all items"


def plain(title: str, narrow: bool = False) -> Table:
    """`narrow` fits eight columns into a terminal of 80."""
    padding = 0 if narrow else (0, 1)
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=padding)
