import json
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit import rng
from tacit.core.payload import Each, Payload, Rows, Shared, Sparse
from tacit.errors import UserError
from tacit.privacy.mechanisms import MECHANISMS, Gaussian, Mechanism, named

STILL = 1e-12  # a scale at which noise does not show


def each(*values, **options):
    return Each(torch.tensor(values, dtype=torch.float64), **options)


def payload(**fields):
    (count,) = {len(f.value) for f in fields.values() if not isinstance(f, Shared | Sparse)} or {1}
    return Payload(torch.arange(count), fields)


def norm(up, base, kind):
    """(C,) the norm of everything but the weight, against what the server had sent."""
    power = 1 if kind == "laplace" else 2
    total = torch.zeros(len(up.ids), dtype=torch.float64)
    for name in set(up.fields) - {"weight"}:
        total += (up[name] - base.get(name, 0)).double().reshape(len(up.ids), -1).abs().pow(power).sum(1)
    return total.pow(1 / power)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("gaussian", [[0.6, 0.8], [0.3, 0.0]]), ("laplace", [[3 / 7, 4 / 7], [0.3, 0.0]])],
)
def test_fields_are_clipped_together_as_changes_where_the_server_sent_them(kind, expected):
    """(3, 4) has the norms 5 and 7; (0.3, 0) is within the bound and stays."""
    up = payload(table=each([13.0], [10.3]), taste=each([4.0], [0.0]))
    down = Payload(up.ids, {"table": Shared(torch.tensor([10.0], dtype=torch.float64))})
    out = named(kind, STILL, clip=1.0)(up, down, seed=0, round=1)
    sent = torch.cat([out["table"] - 10.0, out["taste"]], 1)
    torch.testing.assert_close(sent, torch.tensor(expected, dtype=torch.float64), atol=2e-6, rtol=0)


def test_every_client_is_clipped_by_itself_against_its_own_base():
    up = payload(table=each([1.0, 5.0], [7.0, 7.0]))
    down = Payload(up.ids, {"table": each([1.0, 1.0], [7.0, 6.0])})
    out = named("gaussian", STILL, clip=2.0)(up, down, 0, 1)
    expected = torch.tensor([[1.0, 3.0], [7.0, 7.0]], dtype=torch.float64)
    torch.testing.assert_close(out["table"], expected, atol=5e-6, rtol=0)


def test_a_base_of_another_shape_is_none():
    up = payload(table=each([3.0, 4.0]))
    down = Payload(up.ids, {"table": Shared(torch.zeros(5))})
    out = named("gaussian", STILL, clip=1.0)(up, down, 0, 1)
    torch.testing.assert_close(out["table"], torch.tensor([[0.6, 0.8]], dtype=torch.float64), atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", ["laplace", "gaussian", "unclipped-laplace", "unclipped-gaussian"])
def test_noise_is_the_written_formula(kind):
    up = payload(table=each([0.1, 0.2, 0.0], [0.0, 0.0, 0.0]))
    mechanism = named(kind, 0.5, clip=0.0 if "un" in kind else 1.0)
    out = mechanism(up, Payload(up.ids, {}), seed=7, round=3)
    words = rng.bits(7, "ldp/table", 3, np.array([0, 1]), 3)
    drawn = rng.laplace_of(words) if "laplace" in kind else rng.normal_of(words)
    np.testing.assert_allclose(out["table"].numpy(), up["table"].numpy() + 0.5 * drawn, rtol=0, atol=1e-12)


def touched(base, own=None):
    """Two clients that touched rows (1, 3) and (2); the second has padding."""
    rows, real = torch.tensor([[1, 3], [2, 0]]), torch.tensor([[True, True], [True, False]])
    value = torch.arange(8, dtype=torch.float32).view(2, 2, 2) / 10
    return Rows(value, rows, real, base if own is None else own)


def test_touched_rows_become_a_whole_table_with_noise_on_every_row():
    base = torch.full((5, 2), 3.0)
    up, down = payload(items=touched(base)), Payload(torch.arange(2), {"items": Shared(base)})
    out = named("laplace", 0.1, clip=1000.0)(up, down, 0, 1)
    assert isinstance(out.fields["items"], Each)
    assert out["items"].shape == (2, 5, 2)
    assert out["items"].dtype == torch.float32
    assert out.nbytes() == up.nbytes()
    noise = out["items"] - up["items"]
    assert (noise != 0).all()
    assert noise.abs().max() < 2  # 20 scales
    still = named("laplace", STILL, clip=1000.0)(up, down, 0, 1)
    torch.testing.assert_close(still["items"], up["items"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("per_client", [False, True])
def test_rows_over_a_base_that_the_server_did_not_send_are_clipped_whole(per_client):
    """A client's own table is the base: its untouched rows differ from the server's, and must be bounded too."""
    sent, own = torch.zeros(5, 2), torch.full((2, 5, 2), 9.0)
    up = payload(items=touched(sent, own))
    field = Each(sent.expand(2, 5, 2)) if per_client else Shared(sent)
    out = named("gaussian", STILL, clip=0.5)(up, Payload(up.ids, {"items": field}), 0, 1)
    torch.testing.assert_close(norm(out, {}, "gaussian"), torch.full((2,), 0.5).double(), atol=1e-5, rtol=0)
    loose = named("gaussian", STILL, clip=1e6)(up, Payload(up.ids, {"items": field}), 0, 1)
    torch.testing.assert_close(loose["items"], up["items"], atol=1e-5, rtol=0)


def test_the_weight_tells_nothing_when_clipped_and_is_the_papers_when_not():
    up = payload(table=each([1.0], [2.0]), weight=each(10.0, 200.0, private=False))
    down = Payload(up.ids, {})
    assert named("laplace", 1.0, clip=1.0)(up, down, 0, 1)["weight"].tolist() == [1.0, 1.0]
    assert named("unclipped-laplace", 1.0)(up, down, 0, 1)["weight"].tolist() == [10.0, 200.0]


def test_what_is_not_marked_private_is_covered_all_the_same():
    up = payload(table=each([3.0], [0.0]), extra=each([4.0], [0.0], private=False))
    out = named("gaussian", STILL, clip=1.0)(up, Payload(up.ids, {}), 0, 1)
    assert out["extra"][0].item() == pytest.approx(0.8, abs=1e-5)
    assert out["table"][0].item() == pytest.approx(0.6, abs=1e-5)
    plain = named("unclipped-gaussian", 1.0)(up, Payload(up.ids, {}), 0, 1)
    assert torch.equal(plain["extra"], up["extra"])


@pytest.mark.parametrize("kind", ["laplace", "unclipped-laplace"])
def test_an_upload_of_nothing_stays_nothing(kind):
    up = Payload(torch.arange(3), {})
    assert named(kind, 1.0, clip=1.0)(up, up, 0, 1).fields == {}


def test_what_cannot_be_covered_is_refused_in_a_sentence():
    mechanism = named("laplace", 1.0, clip=1.0)
    cells = Sparse(torch.tensor([0]), torch.tensor([1]), torch.tensor([1.0]), (3, 3))
    for field, words in (
        (cells, r"'x' of the upload is sparse.* tally .*--set epsilon=8"),
        (Each(torch.tensor([3])), r"'x' of the upload is of type int64"),
        (Each(torch.tensor([True]), private=False), r"'x' of the upload is of type bool"),
        (Shared(torch.ones(2)), r"'x' of the upload is one value for all clients"),
    ):
        with pytest.raises(UserError, match=words):
            mechanism(Payload(torch.arange(1), {"x": field}), Payload(torch.arange(1), {}), 0, 1)
    with pytest.raises(UserError, match="sparse"):
        named("unclipped-laplace", 1.0)(Payload(torch.arange(1), {"x": cells}), Payload(torch.arange(1), {}), 0, 1)


numbers = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e300, -1e300, 1e-300]))


@st.composite
def uploads(draw):
    """What the server sent, and two uploads that may differ in everything."""
    clients, items, dim = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def tensor(*shape):
        count = math.prod(shape)
        return torch.tensor(draw(st.lists(numbers, min_size=count, max_size=count)), dtype=torch.float64).view(shape)

    base = torch.linspace(-1, 1, items * dim, dtype=torch.float64).view(items, dim)
    ids = torch.arange(clients)
    down = Payload(ids, {"items": Shared(base), "head": Each(torch.ones(clients, 2, dtype=torch.float64))})
    ups = []
    for _ in range(2):
        count = draw(st.integers(1, items))
        rows = torch.stack([torch.tensor(draw(st.permutations(range(items)))[:count]) for _ in ids])
        real = torch.tensor([[draw(st.booleans()) for _ in range(count)] for _ in ids])
        fields = {
            "items": Rows(tensor(clients, count, dim), rows, real, base),
            "head": Each(tensor(clients, 2)),
            "taste": Each(tensor(clients, dim)),
            "other": Each(tensor(clients), private=False),
            "weight": Each(tensor(clients), private=False),
        }
        ups.append(Payload(ids, fields))
    return down, *ups


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@settings(max_examples=150, deadline=None)
@given(uploads(), st.floats(1e-3, 1e3))
def test_two_uploads_of_a_client_are_at_most_twice_the_bound_apart(kind, made, clip):
    """The same noise on both: what is left between them is what the noise has to hide."""
    down, one, other = made
    mechanism = named(kind, 0.1, clip=clip)
    first, second = (mechanism(up, down, 0, 1) for up in (one, other))
    apart = norm(first, {n: second[n] for n in second.fields}, kind)
    assert (apart <= 2 * clip * (1 + 1e-9) + 1e-9).all()
    assert torch.equal(first["weight"], second["weight"])
    assert set(first.fields) == set(one.fields)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_float32_does_not_pass_the_bound_either(kind):
    draw = torch.Generator().manual_seed(0)
    up = Payload(torch.arange(50), {"x": Each(torch.randn(50, 4000, generator=draw))})
    mechanism = named(kind, STILL, clip=0.7)
    clipped = mechanism(up, Payload(up.ids, {}), 0, 1)
    assert (norm(clipped, {}, kind) <= 0.7).all()
    assert (norm(clipped, {}, kind) > 0.7 * (1 - 1e-5)).all()


def many(value, kind, scale, clip, clients=300_000, round=1):
    """The first value that many clients with the same data send; the rest of each upload is zero."""
    up = Payload(torch.arange(clients), {"x": Each(torch.tensor([value, 0.0]).double().expand(clients, 2))})
    return named(kind, scale, clip=clip)(up, Payload(up.ids, {}), 11, round)["x"][:, 0].numpy()


@pytest.mark.parametrize(
    ("kind", "cdf"), [("laplace", stats.laplace(0.4, 2.0).cdf), ("gaussian", stats.norm(0.4, 2.0).cdf)]
)
def test_noise_has_its_distribution(kind, cdf):
    assert stats.kstest(many(0.4, kind, 2.0, 1.0, clients=50_000), cdf).pvalue > 0.01
    system = named(kind, 2.0, clip=1.0, source="system")
    up = Payload(torch.arange(50_000), {"x": Each(torch.full((50_000, 1), 0.4).double())})
    one, other = (system(up, Payload(up.ids, {}), 0, 1)["x"][:, 0].numpy() for _ in range(2))
    assert not np.isin(one, other).any()  # no seed repeats it
    assert stats.kstest(one, cdf).pvalue > 1e-6  # not repeatable: false alarms must be rare


def test_clients_rounds_fields_and_seeds_have_noise_of_their_own():
    up = payload(a=each([0.0] * 500, [0.0] * 500), b=each([0.0] * 500, [0.0] * 500))
    mechanism = named("laplace", 1.0, clip=1.0)
    drawn = [mechanism(up, up, seed, round) for seed, round in ((0, 1), (0, 2), (1, 1))]
    found = np.concatenate([x[n].numpy().ravel() for x in drawn for n in "ab"])
    assert len(np.unique(found)) == len(found) == 6000


@pytest.mark.parametrize("rounds", [1, 2])
def test_laplace_reveals_less_than_it_claims(rounds):
    """Two clients that differ in all they can, 300,000 times each: no threshold on what they send tells more than ε."""
    mechanism = named("laplace", 2.0, clip=1.0, delta=1e-9)
    claimed = mechanism.epsilon(rounds)
    assert claimed == pytest.approx(rounds * 1.0, abs=1e-6)
    one, other = (
        np.minimum.reduce([many(value, "laplace", 2.0, 1.0, round=r) for r in range(1, rounds + 1)])
        for value in (1000.0, -1000.0)
    )  # the most telling event: every round above a threshold
    estimates = []
    for threshold in np.linspace(-4, 6, 41):
        p, q = ((x > threshold).mean() for x in (one, other))
        error = 4 * math.sqrt((1 / p + 1 / q) / len(one))
        assert math.log(p / q) - error < claimed
        estimates.append(math.log(p / q))
    assert max(estimates) > 0.9 * claimed  # and the claim is not idle


def test_gaussian_reveals_less_than_it_claims():
    mechanism = named("gaussian", 2.0, clip=1.0, delta=0.05)
    claimed = mechanism.epsilon(1)
    assert 1.0 < claimed < 2.0
    one, other = (many(value, "gaussian", 2.0, 1.0) for value in (50.0, -50.0))
    gaps = [(one > t).mean() - math.exp(claimed) * (other > t).mean() for t in np.linspace(-4, 6, 41)]
    assert max(gaps) < 0.05 + 0.005
    assert max(gaps) > 0.04


def test_without_clipping_nothing_is_promised():
    mechanism = named("unclipped-laplace", 100.0)
    assert mechanism.epsilon(0) == 0.0
    assert mechanism.epsilon(1) == math.inf


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_noise_for_a_target(kind):
    made = MECHANISMS.find(kind).for_target(clip=0.5, epsilon=3.0, rounds=20)
    assert made.clip == 0.5
    assert 2.97 < made.epsilon(20) <= 3.0


@dataclass(frozen=True)
class Uniform(Gaussian):
    """Noise that is bounded, as somebody outside the package may write it; its ε is not finite."""

    name: ClassVar[str] = "uniform"

    def noise(self, words):
        return words / 2.0**64 - 0.5

    @staticmethod
    def cost(ratio, rounds, delta):
        return math.inf


KINDS = ["gaussian", "laplace", "unclipped-gaussian", "unclipped-laplace"]


def test_a_mechanism_is_found_by_its_name_or_its_place():
    assert list(MECHANISMS.known()) == KINDS
    up = payload(table=each([0.1, 0.2], [0.0, 0.0]))
    for kind in [*KINDS, f"{__name__}:Uniform"]:
        made = named(kind, 0.5, clip=1.0, delta=1e-6)
        assert made.stated() == {"kind": kind, "scale": 0.5, "clip": 1.0, "delta": 1e-6, "source": "seed"}
        again = named(**json.loads(json.dumps(made.stated())))
        assert again == made
        assert type(again) is type(made)
        drawn = [m(up, Payload(up.ids, {}), 3, 1)["table"] for m in (made, again)]
        assert torch.equal(*drawn)
        assert (drawn[0] != up["table"]).all()
    with pytest.raises(UserError, match="unknown mechanism 'gausian'; did you mean 'gaussian'"):
        named("gausian", 1.0)
    with pytest.raises(UserError, match=r"is not a mechanism: it must be a subclass of tacit\.privacy"):
        named("tacit.privacy.mechanisms:Registry", 1.0)


def test_a_mechanism_says_what_it_needs():
    for cls in MECHANISMS.known().values():
        assert issubclass(cls, Mechanism)
        if cls.name.startswith("unclipped"):
            cls.check(clip=None, scale=1.0, epsilon=None)
        else:
            cls.check(clip=1.0, scale=None, epsilon=1.0)
        with pytest.raises(UserError, match=f"ldp: {cls.name} "):
            cls.check(clip=None, scale=None, epsilon=None)


# the first values of two clients' fields, seed 5, round 2, as they have always been
DRAWN = {
    "laplace": [-0.5605575, -0.4044059, 0.0039592, 0.3175875],
    "gaussian": [-0.2317792, -0.52648, 0.356155, 0.2511097],
}


@pytest.mark.parametrize("kind", DRAWN)
def test_the_noise_of_a_seed_stays_what_it_is(kind):
    base = torch.linspace(-1, 1, 10).view(5, 2)
    up = payload(items=touched(base), taste=Each(torch.ones(2, 3)))
    down = Payload(up.ids, {"items": Shared(base)})
    out = named(kind, 0.25, clip=0.5)(up, down, 5, 2)
    found = [*out["items"][:, 1, 0].tolist(), *out["taste"][:, 0].tolist()]
    assert found == pytest.approx(DRAWN[kind], abs=1e-6)
