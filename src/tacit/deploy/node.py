"""A machine that owns interactions: it trains and evaluates for its users, and sends what a method uploads.

It knows no transport: bytes come in, bytes go out. Users' ids, histories and private leaves stay here.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from tacit.core.fleet import SimulatedFleet, Traffic
from tacit.core.method import Method
from tacit.core.payload import Payload, decode, stacked
from tacit.core.store import ClientStore
from tacit.data.interactions import Interactions
from tacit.deploy import forget
from tacit.deploy.folding import trained
from tacit.deploy.identity import NodeIdentity
from tacit.deploy.job import Job
from tacit.deploy.ledger import Ledger
from tacit.deploy.party import Party, Unknown, check_alike
from tacit.deploy.shard import Shard, is_roster, known, roster, shard
from tacit.deploy.vault import Vault, write
from tacit.deploy.wire import VERSION, BadPacket, Packet, unpack, version_of
from tacit.errors import UserError
from tacit.evaluation.metrics import by_hits
from tacit.evaluation.protocol import Evaluator
from tacit.privacy.mechanisms import Unclipped

log = logging.getLogger("tacit.node")


class Work:
    """A job on this node: its data, its clients, and where their private state stands."""

    def __init__(self, job: Job, data: Interactions, vault: Vault, threads: int, allow: tuple[str, ...]) -> None:
        self.job = job
        self.vault = vault
        self.threads = threads
        self.method: Method = job.build(allow)
        self.mechanism = job.mechanism(allow)
        # where an ε is claimed, nothing else tells of the data: no sizes, no loss
        self.covered = self.mechanism is not None and not isinstance(self.mechanism, Unclipped)
        found = known(data, job)
        self.data, self.dropped = found.data, found.dropped
        written = vault.json(f"jobs/{job.id}/roster.json")
        if written is not None and not is_roster(written):
            raise UserError(
                f"{vault.job(job.id) / 'roster.json'} is damaged; restore it, or remove {vault.job(job.id)}"
            )
        # who is in a run is settled when the node joins it; whoever comes later is a newcomer
        self.users: list[str] = written["users"] if written else roster(self.data)
        self.place: tuple[int, int] | None = None
        self.round = -1  # whose private state is in memory; -1: none
        model = latest_model(vault, job.id)
        self.shown = (
            int(model.head["round"]) if model else 0
        )  # the round of the model that recommendations are made with
        self.party = Party(vault, job.id)
        if written and written["place"] is not None:
            self.take_place(*written["place"])
        elif not written:
            self._note()

    def _note(self) -> None:
        place = None if self.place is None else list(self.place)
        self.vault.write_json(f"jobs/{self.job.id}/roster.json", {"users": self.users, "place": place})

    def take_place(self, first_user: int, first_client: int) -> None:
        """Number the users as the server says; once given, a place stays."""
        if self.place == (first_user, first_client):
            return
        if self.place is not None:
            raise Unknown("a run does not renumber its users")
        self.shard: Shard = shard(self.data, self.job, self.users, first_user, first_client)
        self.place = (first_user, first_client)
        self._note()
        self._fresh()

    def _fresh(self) -> None:
        own = ClientStore(self.method, self.shard.federation, clients=self.shard.clients, users=self.shard.users)
        self.fleet = SimulatedFleet(
            self.method, self.shard.federation, threads=self.threads, store=own, protection=self.mechanism
        )
        self.round = 0

    def stand_at(self, most: int) -> None:
        """Bring the private state to the latest round that is not behind `most`."""
        while (round := self.vault.newest(self.job.id, most)) != self.round:
            if round == 0:
                self._fresh()
                continue
            try:
                self.fleet.store.load(self.vault.load(self.job.id, round, self.users))
            except SafetensorError as error:
                log.warning("private state of round %d is damaged (%s); using the one before", round, error)
                self.vault.drop(self.job.id, round)
                continue
            self.round = round
            log.info("private state of round %d is back from disk", round)

    def users_of(self, clients: torch.Tensor) -> list[str]:
        """Whose data are in these clients' uploads."""
        if self.job.together:
            found = self.users if len(clients) else []
        else:
            found = [self.users[client - self.shard.clients.start] for client in clients.tolist()]
        return [user for user in found if user != forget.NOBODY]  # who was forgotten has no data

    def sizes(self) -> list[int]:
        """|D_u| of each client, for methods that send it as a weight; a number does not depend on a place."""
        federation = shard(self.data, self.job, self.users, 0, 0).federation
        return [1 if self.covered else int(size) for size in federation.sizes]

    def groups(self) -> list[str]:
        """What the file says of each client's device, for methods with models of different size."""
        labels = shard(self.data, self.job, self.users, 0, 0).federation.labels
        return [] if labels is None else [str(label) for label in labels]


def sent(payload: Payload) -> Callable[[torch.Tensor], Payload]:
    """What came for chosen clients of a payload."""
    place = {client: i for i, client in enumerate(payload.ids.tolist())}
    return lambda ids: payload.only(torch.tensor([place[i] for i in ids.tolist()], dtype=torch.long))


class Node:
    """Answers a server."""

    def __init__(
        self,
        data: Interactions,
        folder: Path,
        name: str | None = None,
        threads: int = 0,
        allow: tuple[str, ...] = (),
        secure: bool = False,
        keys: Path | None = None,
        max_epsilon: float = math.inf,
    ) -> None:
        """With `secure` the node takes part only in secure sums, with `max_epsilon` in runs with noise up to that.

        `keys` is what `tacit keys` made for it: in a secure sum nodes prove by them who they are.
        """
        self._all = data
        self.secure = secure
        self.keys = keys
        self.vault = Vault(folder)
        self.ledger = Ledger(self.vault, max_epsilon)
        self.threads = threads
        self.allow = allow
        self.work: Work | None = None
        self.validated: torch.Tensor | None = None  # users, where validation is not for all; a server has no say in it
        before = self.vault.json("node.json")
        known_as = before.get("name") if isinstance(before, dict) else None
        if before is not None and not (known_as and isinstance(known_as, str)):
            raise UserError(f"{self.vault.path / 'node.json'} names no node; restore it, or remove it and start over")
        self.name: str = name or known_as or f"node-{secrets.token_hex(6)}"
        if known_as != self.name:
            self.vault.write_json("node.json", {"name": self.name})
        self._remember()

    def _remember(self) -> None:
        """Leave out, on disk and in memory, who was forgotten since the last message."""
        self._forgotten = forget.stamp(self.vault.path)
        forget.clear(self.vault)
        self.data = forget.without(self._all, self.vault)
        self.work = None

    def answer(self, blob: bytes) -> bytes:
        """A reply to any message. What went wrong is in this node's log; the server learns only its name."""
        began = time.perf_counter()
        try:
            asked = unpack(blob)
            log.info("asked: %.40s, round %.40s", asked.kind, asked.head.get("round", "-"))
            if forget.stamp(self.vault.path) != self._forgotten:
                self._remember()
            reply = {
                "hello": self._hello,
                "invite": self._sum,
                "introduce": self._sum,
                "train": self._train,
                "confirm": self._sum,
                "reveal": self._sum,
                "evaluate": self._evaluate,
            }[asked.kind](asked)
        except UserError as error:
            log.error("a message was not answered: %s", error)
            return Packet("sorry", {"error": type(error).__name__}).pack()
        except Exception as error:
            log.exception("a message was not answered")
            return Packet("sorry", {"error": type(error).__name__}).pack()
        seconds = time.perf_counter() - began
        log.info("done in %.2f s", seconds)
        if self.work is None or not self.work.covered:
            reply.head["seconds"] = seconds
        return reply.pack()

    def _hello(self, asked: Packet) -> Packet:
        if (said := version_of(asked)) != VERSION:
            log.error("the server speaks version %d of the protocol and this node version %d", said, VERSION)
            return Packet("here", {"version": VERSION})
        job = Job.load(asked.body)
        self._permits(job)
        if why := asked.head.get("waits"):
            log.warning("this node takes no part: %s", ascii(why)[:300].strip("'"))
        work = self.work
        if work is None or work.job.id != job.id:
            work = Work(job, self.data, self.vault, self.threads, self.allow)
            write(self.vault.job(job.id) / "job.json", asked.body)
            self.vault.begin(job.id)
            self.work = work
            log.info(
                "%s, protocol %s, seed %d: %d users, %d interactions of unknown items left out",
                job.method,
                job.protocol,
                job.seed,
                len(work.users),
                work.dropped,
            )
            if job.secure and self._identity() is None:
                log.warning("without keys a server that poses as the other nodes can open this node's uploads")
        return Packet(
            "here",
            {
                "version": VERSION,
                "name": self.name,
                "users": len(work.users),
                "sizes": work.sizes(),
                "groups": work.groups(),
                "dropped": 0 if work.covered else work.dropped,
                "duplicates": 0 if work.covered else work.data.duplicates,
            },
        )

    def _permits(self, job: Job) -> None:
        """What the node was started with is binding, for earlier jobs as well."""
        if self.secure and not job.secure:
            raise UserError("the server would see this node's uploads, and it takes part in secure sums only")
        noise = job.mechanism(self.allow)
        if self.ledger.most < math.inf and (noise is None or isinstance(noise, Unclipped)):
            what = "noise to uploads" if noise is None else "noise that bounds ε"
            raise UserError(
                f"the run adds no {what}, and this node was started with --max-epsilon {self.ledger.most:g}; "
                "the server needs --ldp with clip"
            )

    def _identity(self) -> NodeIdentity | None:
        """By which other nodes know this one; None where it runs without keys."""
        return None if self.keys is None else NodeIdentity.load(self.keys)

    def _ready(self, asked: Packet) -> Work:
        """The work a message is about, with its place taken."""
        job = str(asked.head["job"])
        if self.work is None or self.work.job.id != job:
            self.work = reopened(self.vault, job, self.data, self.threads, self.allow)
        self._permits(self.work.job)
        first_user, first_client = asked.head["place"]
        self.work.take_place(int(first_user), int(first_client))
        return self.work

    def _train(self, asked: Packet) -> Packet:
        work, round = self._ready(asked), int(asked.head["round"])
        (best,) = map(int, asked.head["keep"])  # one: of a state for every round the disk would fill
        work.vault.forget_from(work.job.id, round)
        work.stand_at(round - 1)
        down, traffic = decode(asked.body), Traffic()
        if not all(client in work.shard.clients for client in down.ids.tolist()):
            raise Unknown("a client of another node")  # whose upload would be nothing: no others could hide in it
        if work.job.secure and asked.head.get("fold") is not None:
            # limits may differ from node to node: with nought for all but one, the sum would be that one's upload
            raise UserError("the server asks for an upload within limits, and in a secure sum there are none")
        try:
            ups = trained(work.fleet, sent(down), down, round, traffic, asked.head.get("fold"))
            if work.mechanism is not None and any(up.fields for up in ups):
                self.ledger.charge(work.job.id, work.mechanism, work.users_of(down.ids))
            if "delivery" in asked.head:
                body = work.party.masked(work.method, len(work.job.items), ups, down, asked)
            elif work.job.secure and any(up.fields for up in ups):
                raise UserError("the server asks for uploads outside a secure sum")
            else:
                body = stacked(ups).encode()
            work.vault.save(work.job.id, round, work.fleet.store.leaves, work.users)
        except BaseException:
            work.round = -1  # what is in memory is the state of no round
            raise
        work.round = round
        work.vault.prune(work.job.id, [best, work.shown, round - 1, round])
        loss = None if work.covered or math.isnan(traffic.loss) else traffic.loss
        return Packet("trained", {"round": round, "loss": loss}, body)

    def _sum(self, asked: Packet) -> Packet:
        """A stage of a secure sum beside the training itself."""
        return self._ready(asked).party.answer(asked, self._identity)

    def _evaluate(self, asked: Packet) -> Packet:
        work, phase = self._ready(asked), str(asked.head["phase"])
        work.stand_at(int(asked.head["round"]))
        down = decode(asked.body)
        check_alike(work.method, len(work.job.items), down)
        write(work.vault.job(work.job.id) / "model.packet", asked.pack())
        work.shown = int(asked.head["round"])
        # Coverage, Gini, novelty and popularity stay out: they take the counts of what a node's users have and are
        # shown, item by item, and a node may have one user, whose history and list these counts then are.
        scores = work.fleet.scores_on(sent(down), phase, self.validated if phase == "valid" else None)
        result = Evaluator(work.shard.federation.split, by_hits())(scores, phase)
        head = {"round": asked.head["round"], "users": result.users, "too_short": work.shard.too_short}
        if result.users:
            head |= {"main": result.main, "sampled99": result.sampled99}
        return Packet("evaluated", head)


def reopened(vault: Vault, job: str, data: Interactions, threads: int, allow: tuple[str, ...]) -> Work:
    """The work on a job that the node has taken on before."""
    path = vault.job(job) / "job.json"
    if not job.isalnum() or not path.exists():
        raise Unknown(ascii(job)[:40])
    try:
        found = Job.load(path.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or remove {path.parent}") from error
    return Work(found, data, vault, threads, allow)


def latest_model(vault: Vault, job: str) -> Packet | None:
    """The latest message with a model; None where there is none that can be read."""
    path = vault.job(job) / "model.packet"
    try:
        found = unpack(path.read_bytes()) if path.exists() else None
    except BadPacket as error:
        log.warning("%s is damaged (%s); the next evaluation replaces it", path, error)
        return None
    return found if found and isinstance(found.head.get("round"), int) else None
