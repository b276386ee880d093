import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tacit.deploy import keys
from tacit.deploy.identity import PROOF, NodeIdentity
from tacit.errors import UserError

WORD = b"these are my keys"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys")
    keys.make(path, ["127.0.0.1"], ["a", "b"])
    return path


def test_nodes_know_one_another_by_their_authority(folder, tmp_path):
    a, b = (NodeIdentity.load(folder / "nodes" / name) for name in "ab")
    proof = a.prove(WORD)
    assert len(proof) == PROOF == len(b.prove(WORD))
    assert b.prover(proof, WORD) == a.prover(proof, WORD) != a.prover(b.prove(WORD), WORD)
    keys.make(tmp_path, ["127.0.0.1"], ["a"])
    stranger = NodeIdentity.load(tmp_path / "nodes" / "a")
    for wrong in (b"", bytes(PROOF), proof[:-1], proof[:300] + b"x" + proof[301:], stranger.prove(WORD)):
        with pytest.raises(ValueError, match=r".+"):
            b.prover(wrong, WORD)
    with pytest.raises(ValueError, match="not signed by a node of this authority"):
        b.prover(proof, WORD + b"!")


def test_a_server_is_no_node(folder):
    """Its certificate is of the same authority, and it has the key to it."""
    own = folder / "server"
    key = serialization.load_pem_private_key((own / "server.key").read_bytes(), None)
    server = NodeIdentity(key, (own / "server.crt").read_bytes(), (folder / "ca.crt").read_bytes())
    with pytest.raises(ValueError, match="their certificate is not a node's"):
        NodeIdentity.load(folder / "nodes" / "a").prover(server.prove(WORD), WORD)


def test_a_node_that_made_its_own_key_gets_a_certificate(folder):
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "server" / "nodes" / "c.pub").write_bytes(public)
    made = keys.make(folder, [], ["c"])
    assert {path.name for path in made} == {"ca.crt", "node.crt"}
    own = folder / "nodes" / "c"
    with pytest.raises(UserError, match="there is no key"):
        NodeIdentity.load(own)
    c = NodeIdentity(key, (own / "node.crt").read_bytes(), (own / "ca.crt").read_bytes())
    assert NodeIdentity.load(folder / "nodes" / "a").prover(c.prove(WORD), WORD)
    (own / "node.crt").unlink()
    with pytest.raises(UserError, match=r"a secure sum needs .*node.crt, .*; tacit keys DIR --node c makes it"):
        NodeIdentity.load(own)
