import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from tacit.errors import UserError
from tacit.privacy.fixed_point import FixedPoint
from tacit.privacy.secure_sum import (
    STAGES,
    Answer,
    BadMessage,
    Client,
    Confirmed,
    Delivery,
    Invitation,
    Keys,
    Masked,
    Neighbours,
    Question,
    Server,
    Shares,
    Survivors,
    add_masks,
    agreed,
    decode,
    encode,
    simulate,
)

IDS = tuple(range(7, 107))  # a hundred clients: the graph is sparse
LATE = ("ConsistencyCheck", "Unmask")  # what is silent here has been summed already


def words_of(ids, length=20, dtype=np.uint64, seed=0):
    draw = np.random.default_rng(seed)
    return {i: draw.integers(0, np.iinfo(dtype).max, length, dtype=dtype, endpoint=True) for i in ids}


def given(words):
    return words.items()


def plain(words, ids):
    return sum((words[i] for i in ids), start=np.zeros_like(next(iter(words.values()))))


def some(ids, count, seed=0):
    return set(np.random.default_rng(seed).permutation(ids)[:count].tolist())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("clients", "share"), [(10, 0.0), (10, 0.1), (10, 0.2), (10, 0.3), (100, 0.3)])
def test_the_sum_is_exact_whoever_drops_out_at_whichever_stage(stage, clients, share):
    ids, words = IDS[:clients], words_of(IDS[:clients])
    gone = some(ids, round(share * clients))
    done = simulate(ids, given(words), {stage: gone})
    left = set(ids) if stage in LATE else set(ids) - gone  # who is lost at the end has been summed already
    assert set(done.clients) == left
    assert np.array_equal(done.total, plain(words, left))


@pytest.mark.parametrize("seed", range(2))
def test_the_sum_is_exact_when_dropouts_spread_over_all_stages(seed):
    words = words_of(IDS)
    gone = list(some(IDS, 30, seed))
    drops = {stage: gone[part :: len(STAGES)] for part, stage in enumerate(STAGES)}
    done = simulate(IDS, given(words), drops)
    left = set(IDS) - set(gone) | {i for stage in LATE for i in drops[stage]}
    assert set(done.clients) == left
    assert np.array_equal(done.total, plain(words, left))


def test_words_of_32_bits_and_real_numbers():
    values = np.random.default_rng(0).normal(size=(20, 30))
    for word, close in ((32, 1e-6), (64, 1e-15)):
        point = FixedPoint(10.0, 20, word)
        done = simulate(range(20), enumerate(point.encode(values)))
        assert done.total.itemsize == word // 8
        error = np.abs(point.decode(done.total) - [math.fsum(column) for column in values.T]).max()
        assert error <= 20 * point.step / 2 + 2.0**-51  # the last is a double's own
        assert error < close


@pytest.mark.parametrize(("stage", "clients"), [*((stage, 10) for stage in STAGES), ("MaskedInput", 100)])
def test_too_many_dropouts_abort_with_a_sentence(stage, clients):
    ids = IDS[:clients]
    gone = some(ids, round(0.3 * clients) + 1)
    sentence = (
        rf"secure sum aborted: {clients - len(gone)} of {clients} clients are left after {stage}, and "
        rf"{clients - len(gone) + 1} are needed to open the sum"
    )
    with pytest.raises(UserError, match=sentence):
        simulate(ids, given(words_of(ids)), {stage: gone})


def test_dropouts_add_up_over_the_stages():
    gone = list(some(IDS, 40))
    drops = {"ShareKeys": gone[:20], "MaskedInput": gone[20:]}
    with pytest.raises(UserError, match="60 of 100 clients are left after MaskedInput, and 70 are needed"):
        simulate(IDS, given(words_of(IDS)), drops)


def test_a_sum_of_two_hides_nothing():
    with pytest.raises(UserError, match="a secure sum of 2 clients hides nothing: it takes at least 3"):
        simulate([1, 2], given(words_of([1, 2])))
    for dropouts, colluding in ((0.6, 0.4), (-0.1, 0.0)):
        with pytest.raises(UserError, match="must be below 1 together"):
            Server(IDS, dropouts, colluding)


class Session:
    """A sum that stands before Unmask, everything in reach."""

    def __init__(self, words, late=(), seed=0):
        draw = np.random.default_rng(seed).bytes
        ids = list(words)
        self.server = Server(ids, entropy=draw)
        self.clients = {i: Client(i, invitation, draw) for i, invitation in self.server.invite().items()}
        for client in self.clients.values():
            self.server.keys(client.advertise())
        self.neighbours = self.server.introduce()
        self.shares = {i: client.share(self.neighbours[i]) for i, client in self.clients.items()}
        for message in self.shares.values():
            self.server.shares(message)
        self.deliveries = self.server.deliver()
        self.masked = {i: client.mask(self.deliveries[i], words[i]) for i, client in self.clients.items()}
        for i, message in self.masked.items():
            if i not in late:
                self.server.masked(message)
        self.survivors = self.server.survivors()
        self.confirmed = {i: self.clients[i].confirm(word) for i, word in self.survivors.items()}
        for message in self.confirmed.values():
            self.server.confirmed(message)
        self.questions = self.server.ask()


FOUR = (1, 2, 3, 4)


def uniform(parts):
    """The p-value of bytes being uniform."""
    seen = np.concatenate([np.frombuffer(part, dtype=np.uint8) for part in parts])
    return chisquare(np.bincount(seen, minlength=256)).pvalue


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1, 12_345_678_901])
def test_the_servers_view_of_an_upload_is_uniform_whatever_is_uploaded(value):
    words = dict.fromkeys(FOUR, np.full(50, value, dtype=np.uint64))
    seen = [Session(words, seed=seed).masked[1].words for seed in range(40)]
    assert uniform(seen) > 1e-3
    assert uniform([words[1].tobytes()] * 40) < 1e-100, "the test would notice the input itself"
    # every place of the vector by itself, over sessions
    tops = np.stack([np.frombuffer(w, dtype="<u8") for w in seen]) >> np.uint64(62)
    counts = np.stack([np.bincount(tops[:, place].astype(int), minlength=4) for place in range(50)])
    assert chisquare(counts, axis=1).pvalue.min() > 1e-3 / 50


def test_two_different_inputs_cannot_be_told_apart():
    one, other = (
        [Session(dict.fromkeys(FOUR, vector), seed=seed).masked[2].words for seed in range(first, first + 40)]
        for first, vector in ((0, np.zeros(50, dtype=np.uint64)), (100, np.arange(50, dtype=np.uint64)))
    )
    table = [np.bincount(np.frombuffer(b"".join(x), dtype=np.uint8), minlength=256) for x in (one, other)]
    assert chi2_contingency(table).pvalue > 1e-3


def test_an_upload_that_comes_too_late_stays_hidden_though_its_key_was_opened():
    """That is what the second mask is for: the common masks are known by then."""
    words = words_of(IDS[:20], 400)
    late = IDS[3]
    session = Session(words, late=[late])
    with pytest.raises(BadMessage, match="MaskedInput is not open"):
        session.server.masked(session.masked[late])
    client = session.clients[late]
    bare = np.frombuffer(session.masked[late].words, dtype="<u8").copy()
    for j in session.deliveries[late].sealed:
        key = agreed(client._mask, session.neighbours[late].mask[j], b"mask", session.server.session, 32)
        add_masks(bare, [(key, late > j)])
    own = bare.copy()
    add_masks(own, [(client._seed, False)])
    assert np.array_equal(own, words[late]), "only the own mask is left"
    assert uniform([(bare - words[late]).tobytes()]) > 1e-3
    for i, question in session.questions.items():
        session.server.revealed(session.clients[i].reveal(question))
    assert np.array_equal(session.server.total(), plain(words, set(words) - {late}))


def test_the_two_masks_of_neighbours_cancel():
    zero = {i: np.zeros(9, dtype=np.uint64) for i in FOUR}
    session = Session(zero)
    total = sum((np.frombuffer(m.words, dtype="<u8") for m in session.masked.values()), start=np.zeros(9, np.uint64))
    for client in session.clients.values():
        add_masks(total, [(client._seed, False)])
    assert not total.any()


def test_a_mask_is_the_keystream_of_aes():
    """The block of zeros under the key 00 01 … 1f."""
    words = np.zeros(2, dtype=np.uint64)
    add_masks(words, [(bytes(range(32)), True)])
    assert words.tobytes().hex() == "f29000b62a499fd0a9f39a6add2e7780"
    add_masks(words, [(bytes(range(32)), False)])
    assert not words.any()


def before_the_check(words, late=()):
    """A session's clients as they stand after MaskedInput, once more and from the same draws."""
    session = Session(words, late)
    fresh = Session.__new__(Session)
    draw = np.random.default_rng(0).bytes
    fresh.server = Server(list(words), entropy=draw)
    fresh.clients = {i: Client(i, word, draw) for i, word in fresh.server.invite().items()}
    for client in fresh.clients.values():
        fresh.server.keys(client.advertise())
    for i, word in fresh.server.introduce().items():
        fresh.server.shares(fresh.clients[i].share(word))
    for i, word in fresh.server.deliver().items():
        masked = fresh.clients[i].mask(word, words[i])
        if i not in late:
            fresh.server.masked(masked)
    assert fresh.server.session == session.server.session
    return fresh


def test_what_a_client_does_not_do():
    words = words_of(FOUR)
    for told, error, sentence in (
        ((2, 3, 4), BadMessage, "client 1 is told of a sum that it is not in"),
        ((1, 1, 2, 3), BadMessage, "client 1 is told of a sum that it is not in"),
        ((1, 2), UserError, "client 1 has 1 neighbours in the sum and will not open it without 2"),
    ):
        with pytest.raises(error, match=sentence):
            before_the_check(words).clients[1].confirm(Survivors(told))
    session = Session(words)
    client, question = session.clients[1], session.questions[1]
    answer = client.reveal(question)
    assert set(answer.seeds) == {2, 3, 4}
    assert not answer.keys
    for again in (lambda: client.reveal(question), lambda: client.mask(session.deliveries[1], np.zeros(2, np.uint64))):
        with pytest.raises(BadMessage, match="client 1 is not at"):
            again()


def test_a_server_that_tells_survivors_different_sets_gets_no_share():
    """Client 4 stays for two of its neighbours and is gone for the third: both of its secrets would be opened."""
    ids = tuple(range(1, 8))
    lies = {i: Survivors(ids if i < 4 else ids[:-1]) for i in ids}
    fresh = before_the_check(words_of(ids))
    tags = {i: client.confirm(lies[i] if i != 7 else Survivors(ids)).tags for i, client in fresh.clients.items()}
    for i, client in fresh.clients.items():
        agree = sum((7 in lies[j].clients or j == 7) == (7 in lies[i].clients or i == 7) for j in ids if j != i)
        assert agree < 4
        with pytest.raises(UserError, match=rf"{agree} neighbours of client {i} confirm .* will not open it without 4"):
            client.reveal(Question({j: tags[j][i] for j in ids if i in tags[j]}))


def test_a_confirmation_is_of_one_neighbour_to_another():
    ids = tuple(range(1, 8))
    for turn in (lambda tags: dict.fromkeys(tags, tags[7]), lambda _: {}, lambda tags: dict.fromkeys(tags, bytes(16))):
        session = Session(words_of(ids))
        with pytest.raises(UserError, match="client 1 confirm who is in the sum, and it will not open it without 4"):
            session.clients[1].reveal(Question(turn(session.questions[1].tags)))


@pytest.mark.parametrize("clients", [3, 4, 7, 20])
def test_a_client_keeps_to_a_threshold_that_a_lying_server_cannot_reach_twice(clients):
    """Whoever of the holders is told that it stayed, and whoever that it dropped: one side is too few."""
    ids = tuple(range(clients))
    session = Session(words_of(ids))
    holders, threshold = clients - 1, session.server.threshold
    colluding = clients // 10
    assert 2 * threshold > holders + colluding
    word = session.neighbours[0]
    for lower in range(1, (holders + colluding) // 2 + 1):
        client = Client(0, session.server.invite()[0])
        client.advertise()
        with pytest.raises(UserError, match=rf"the server wants {lower} of {holders} other parties to open a secret"):
            client.share(replace(word, threshold=lower))


def test_a_client_shares_with_two_others_at_least():
    session = Session(words_of(FOUR))
    word = session.neighbours[1]
    alone = Neighbours(1, {2: word.mask[2]}, {2: word.share[2]}, {})
    client = Client(1, session.server.invite()[1])
    client.advertise()
    with pytest.raises(UserError, match="with 2 others or more"):
        client.share(alone)


class Signed:
    """An identity for tests: whoever knows the word."""

    def __init__(self, name):
        self.name = name

    def prove(self, statement):
        return self.name + hashlib.sha256(b"secret" + self.name + statement).digest()

    def prover(self, proof, statement):
        if Signed(proof[:1]).prove(statement) != proof:
            raise ValueError("not signed")
        return proof[:1]


def introduced(swap=lambda keys: keys, names=b"abcd"):
    server = Server(FOUR)
    clients = {i: Client(i, word, identity=Signed(names[i - 1 : i])) for i, word in server.invite().items()}
    for client in clients.values():
        server.keys(swap(client.advertise()))
    return server, clients, server.introduce()


def test_keys_that_the_server_made_up_are_refused():
    server, clients, words = introduced()
    assert all(server.shares(client.share(words[i])) is None for i, client in clients.items())
    other = Client(2, server.invite()[2], identity=Signed(b"b")).advertise()
    for swap in (
        lambda keys: replace(keys, mask=bytes(range(32))) if keys.client == 2 else keys,
        lambda keys: replace(keys, share=other.share) if keys.client == 2 else keys,
        lambda keys: replace(keys, proof=b"") if keys.client == 2 else keys,
        lambda keys: other if keys.client == 2 else keys,  # of another session
    ):
        _, clients, words = introduced(swap)
        with pytest.raises(UserError, match="the keys of client 2 are not its own: not signed"):
            clients[1].share(words[1])
    for twice in (b"abbd", b"aacd"):
        _, clients, words = introduced(names=twice)
        with pytest.raises(UserError, match="two of its clients are the same"):
            clients[1].share(words[1])


def test_a_client_sends_nothing_when_it_is_almost_alone():
    draw = np.random.default_rng(0).bytes
    client = Session(words_of(FOUR)).clients[1]
    fresh = Client(1, Invitation(client.session, 4, 3), draw)
    fresh.advertise()
    session = Session(words_of(FOUR))
    fresh.share(session.neighbours[1])
    with pytest.raises(UserError, match="client 1 has 0 neighbours left and will not send without 2"):
        fresh.mask(Delivery({}), np.zeros(2, np.uint64))


def test_shares_that_were_changed_on_the_way_are_noticed():
    session = Session(words_of(FOUR))
    draw = np.random.default_rng(1).bytes
    server = Server(FOUR, entropy=draw)
    clients = {i: Client(i, word, draw) for i, word in server.invite().items()}
    for client in clients.values():
        server.keys(client.advertise())
    neighbours = server.introduce()
    for i, client in clients.items():
        server.shares(client.share(neighbours[i]))
    deliveries = server.deliver()
    sealed = dict(deliveries[1].sealed)
    sealed[2] = sealed[2][:-1] + bytes([sealed[2][-1] ^ 1])
    with pytest.raises(BadMessage, match="the shares of client 2 did not arrive as they were sent"):
        clients[1].mask(Delivery(sealed), np.zeros(2, np.uint64))
    with pytest.raises(BadMessage, match="did not arrive"):  # another session's
        clients[3].mask(session.deliveries[3], np.zeros(2, np.uint64))


def test_what_the_server_does_not_take():
    session = Session(words_of(FOUR))
    server = session.server
    with pytest.raises(BadMessage, match="AdvertiseKeys is not open"):
        server.keys(Keys(1, bytes(32), bytes(32)))
    answer = session.clients[1].reveal(session.questions[1])
    confirmed = session.confirmed[1]
    for tags in ({}, {2: bytes(16)}, dict.fromkeys(confirmed.tags, b"")):
        with pytest.raises(BadMessage, match="client 1 confirms to others than its neighbours in the sum"):
            server.confirmed(Confirmed(1, tags))
    for wrong in (replace(answer, seeds={}), replace(answer, client=9), replace(answer, seeds={2: b""})):
        with pytest.raises(BadMessage, match="does not answer what it was asked"):
            server.revealed(wrong)
    server.revealed(answer)
    with pytest.raises(BadMessage, match="may not send, or not again, at Unmask"):
        server.revealed(answer)
    fresh = Server(FOUR)
    for wrong in (Keys(1, b"", b""), Keys(1, bytes(32), bytes(32), bytes(5000))):
        with pytest.raises(BadMessage, match="are not keys"):
            fresh.keys(wrong)
    with pytest.raises(BadMessage, match="client 9 may not send, or not again"):
        fresh.keys(Keys(9, bytes(32), bytes(32)))
    with pytest.raises(BadMessage, match="shared with others than its neighbours"):
        fresh.shares(Shares(1, {2: b""}))
    with pytest.raises(BadMessage, match="no whole words"):
        fresh.masked(Masked(1, 8, b"123"))
    with pytest.raises(BadMessage, match="not like the others'"):
        Session(words_of(FOUR)).server.masked(Masked(1, 4, bytes(8)))


def test_shares_of_different_keys_abort():
    words = words_of(FOUR)
    session = Session(words, late=[4])
    other = Session(words, late=[4], seed=1)
    for i, question in session.questions.items():
        answer = session.clients[i].reveal(question)
        foreign = other.clients[i].reveal(other.questions[i])
        session.server.revealed(replace(answer, keys=foreign.keys) if i == 1 else answer)
    with pytest.raises(UserError, match=r"secure sum aborted: .* client 4"):
        session.server.total()


MESSAGES = [
    Invitation(b"0123456789abcdef", 100, 60),
    Keys(3, bytes(range(32)), bytes(32), b"signed"),
    Neighbours(5, {1: b"a" * 32, 9: b"b" * 32}, {1: b"c" * 32, 9: b"d" * 32}, {1: b"e", 9: b"f"}),
    Shares(3, {1: b"x" * 82, 9: b"y" * 82}),
    Delivery({}),
    Masked(3, 8, bytes(range(80))),
    Survivors((1, 2, 4_000_000_000)),
    Confirmed(3, {1: b"t" * 16}),
    Question({1: b"t" * 16, 9: b"u" * 16}),
    Answer(3, {1: b"s" * 33}, {9: b"t" * 33}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_from_their_bytes(message):
    blob = encode(message)
    assert decode(type(message), blob) == message
    for end in range(len(blob)):
        with pytest.raises(BadMessage, match="ends too early"):
            decode(type(message), blob[:end])
    with pytest.raises(BadMessage, match="something behind it"):
        decode(type(message), blob + b"\0")


def test_a_client_named_twice_is_no_message():
    blob = bytearray(encode(Delivery({1: b"a", 2: b"b"})))
    blob[12] = 1
    with pytest.raises(BadMessage, match="names a client twice"):
        decode(Delivery, bytes(blob))


def test_bytes_are_those_of_the_messages():
    """Each client sends two keys, k sealed pairs of shares, words, k tags and k shares, and gets the counterparts."""
    done = simulate(IDS, given(words_of(IDS, 1000)))
    k, n = done.degree, len(IDS)
    up = (4 + 2 * (4 + 32) + 4) + (4 + 8 + k * (4 + 2 * 33 + 16)) + (12 + 8 * 1000) + (4 + 2 * 8 + k * (4 + 33))
    down = (4 + 16 + 8) + (4 + 2 * (8 + k * (4 + 32)) + 8) + (8 + k * (4 + 2 * 33 + 16))
    up, down = up + (4 + 8 + k * (4 + 16)), down + (4 + n * 4) + (8 + k * (4 + 16))
    assert (done.bytes_up, done.bytes_down) == (n * up, n * down)


@pytest.mark.slow
@pytest.mark.parametrize("drops", [{}, {"MaskedInput": range(169)}])
def test_566_clients_with_the_table_of_movielens(drops):
    """Its time is measured by `python -m benchmarks.secure table`."""
    ids, length = range(566), 1682 * 16 + 1
    words = words_of(range(8), length)
    done = simulate(ids, ((i, words[i % 8]) for i in ids), drops)
    assert np.array_equal(done.total, plain(words, [i % 8 for i in done.clients]))
    assert len(done.clients) == 566 - len(drops.get("MaskedInput", ()))


def test_a_key_that_agrees_with_nobody_is_refused_before_others_fail_by_it():
    server = Server(range(4))
    clients = {i: Client(i, word) for i, word in server.invite().items()}
    bad = replace(clients[0].advertise(), mask=bytes(32))
    with pytest.raises(BadMessage, match="not a public key"):
        server.keys(bad)
    for i in (1, 2, 3):
        server.keys(clients[i].advertise())
    assert 0 not in server.introduce()
