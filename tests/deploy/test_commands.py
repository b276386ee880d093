import pytest

from tacit.config import config
from tacit.core.bounds import BOUND
from tacit.deploy.commands import guarded


@pytest.mark.parametrize("method", ["fedmf", "fedncf", "pfedrec", "fedrap", "pfedclr", "hetefedrec", "gpfedrec"])
def test_a_server_bounds_what_a_stranger_may_change(method):
    assert guarded(config(method=method)).bound == BOUND


@pytest.mark.parametrize(
    "options",
    [
        {"method": "tally"},  # sums, whose cells are checked
        {"method": "popularity"},
        {"method": "fedmf", "secure": True},  # no single upload is seen
        {"method": "fedmf", "ldp": "kind=laplace,clip=0.5,scale=0.1"},  # clipped by the clients
        {"method": "fedmf", "robust": "trimmed"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_what_cannot_be_bounded_or_is_already_stays_as_asked(options):
    assert guarded(config(**options)).bound == 0
