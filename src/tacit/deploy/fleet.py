"""The clients of a federation on their own machines: one message per node and round carries the stacked payload."""

import logging
import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from tacit.core.aggregate import guarded_mean
from tacit.core.bounds import bounded, limits_of
from tacit.core.capabilities import groups
from tacit.core.fleet import Guard, Traffic
from tacit.core.method import Method
from tacit.core.payload import Payload, State
from tacit.data.cohort import Federation
from tacit.deploy.checks import Refused, checked, plausible, template
from tacit.deploy.job import Job
from tacit.deploy.members import Here, Member, Roll, announced, counts_clients
from tacit.deploy.replies import Count, Failed, between, metrics_of, of_kind, seconds_of
from tacit.deploy.wire import ANSWERS, VERSION, BadPacket, Packet, unpack
from tacit.errors import UserError
from tacit.evaluation.metrics import Metrics, combined
from tacit.evaluation.protocol import Result
from tacit.privacy import secure_sum
from tacit.privacy.fixed_point import FixedPoint
from tacit.privacy.secure_fleet import BOUND, Layout

log = logging.getLogger("tacit.server")

M = TypeVar("M", bound=secure_sum.Message)


class Link(Protocol):
    """Carries bytes to nodes and back. Flower is one; tests have one without a network."""

    def nodes(self) -> dict[int, str | None]:
        """The nodes that are there now, with the name their key stands for where nodes have keys."""

    def ask(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        """Send, and yield replies as they come until all are there or the time is up."""


class Grown(RuntimeError):
    """A node has joined; the rounds loop is to count its clients from now on."""


class TooFew(RuntimeError):
    """A round in which too few clients replied; it can be asked for again."""


@dataclass(frozen=True)
class Part:
    """A node in a round."""

    place: int  # among the members
    member: Member
    down: Payload  # what its chosen clients are sent


@dataclass(frozen=True)
class Terms:
    """What a round may cost and what it must bring."""

    deadline: float = 600.0  # seconds a round waits
    greeting: float = 60.0  # seconds a node that has come may take to say who it is
    least: float = 0.5  # share of the asked clients that must reply
    max_norm: float = 0.0  # of a client's change; 0: `bounds.TYPICAL` for each value
    most_users: int = 100_000  # that one node may announce


@dataclass
class FlowerFleet:
    """Nodes behind a link. The rounds loop and the methods do not know the difference from a simulated fleet."""

    link: Link
    job: Job
    method: Method
    terms: Terms
    members: list[Member] = field(default_factory=list)
    joined: Callable[[list[Member]], None] = lambda members: None  # told whenever a node joins
    count: Count = field(default_factory=Count)
    best_round: Callable[[], int] = lambda: 0  # whose private state nodes must keep
    select: str = "NDCG@10"  # the metric that every node must know
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        self._ids: dict[str, int] = {}  # name -> node of the link
        self._heard: dict[str, Here] = {}  # what a node said of itself when it came
        self._traffic = Traffic()
        self._answered: set[str] = set()  # nodes whose uploads are in the round
        self.too_short = 0  # users that were not evaluated, having fewer than three interactions
        self._enrolled()

    def _enrolled(self) -> None:
        self.federation: Federation = Roll.of(self.job, self.members)

    # who is there

    def gather(self, nodes: int, seconds: float) -> bool:
        """Wait until so many nodes are there, then give everybody its numbers, by the order of names."""
        until = time.monotonic() + seconds
        while True:
            self._greet()
            if len(self._ids) >= nodes:
                break
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        if not self.members:
            for name in sorted(self._ids):
                self._enrol(self._heard[name])
        return True

    def _greet(self) -> None:
        """Ask nodes that have come since the last time who they are."""
        there = self.link.nodes()
        self._ids = {name: node for name, node in self._ids.items() if node in there}
        new = [node for node in there if node not in self._ids.values()]
        hello = Packet("hello", {"version": VERSION}, self.job.dump()).pack()
        for node, reply in self._ask(dict.fromkeys(new, hello), min(self.terms.deadline, self.terms.greeting)):
            try:
                here = announced(of_kind(unpack(reply), "here"), there[node], self.job, self.terms.most_users)
                self._admit(here)
            except (BadPacket, Refused, Failed) as error:
                self.count.refused += 1
                log.warning("node %s is not taken in: %s", there[node] or node, error)
                continue
            self._ids[here.name] = node
            self._heard[here.name] = here

    def _admit(self, here: Here) -> None:
        """Refuse a node that cannot be in this run, whatever is sound about its greeting."""
        if here.name in self._ids:
            raise Refused(f"there is already a node '{here.name}'")
        before = next((m for m in self.members if m.name == here.name), None)
        if before is not None and before.users != here.users:
            raise Refused(f"'{here.name}' had {before.users} users and now has {here.users}")
        if here.groups:
            try:
                groups(self.method, Roll.of(self.job, [here.member(None)]))
            except UserError as error:
                raise Refused(str(error)) from error

    def _meet(self) -> None:
        """Take in nodes that have come back, and new ones where the server's state has no row for each client."""
        self._greet()
        found = self._heard
        new = sorted((set(found) & set(self._ids)) - {m.name for m in self.members})
        # a budget is accounted for by who could have been chosen from the start
        if new and self.job.ldp is None and not counts_clients(self.method, self.federation):
            for name in new:
                self._enrol(found[name])
            raise Grown(f"{len(new)} nodes more")

    def _enrol(self, here: Here) -> None:
        self.members.append(here.member(self.members[-1] if self.members else None))
        self._enrolled()
        log.info("node '%s' joins with %d users", here.name, here.users)
        self.joined(self.members)

    # what they do

    def train(self, server: State, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """Let the nodes train these clients; yield what is left of their uploads after the checks, or their sum."""
        self._traffic = traffic
        if not len(ids):
            return
        self._meet()
        like = template(self.method, server, int(ids[0]), round, self.federation.n_items, self.job.mechanism())
        parts: dict[int, Part] = {}
        for place, member in enumerate(self.members):
            own = ids[(ids >= member.clients.start) & (ids < member.clients.stop)]
            node = self._ids.get(member.name)
            if not len(own):
                continue
            if node is None:
                self.count.silent += 1
                log.warning("round %d: node '%s' is not there", round, member.name)
                continue
            parts[node] = Part(place, member, self.method.downlink(server, own))
        if self.job.secure and (layout := Layout(self.method, like, self.method.downlink(server, ids[:1]))).length:
            uploads = self._sum(parts, layout, len(ids), round, traffic)
        else:
            bound = self.guard.bound
            limits = limits_of(self.method, server, ids, round, self.federation, bound) if bound else None
            uploads = self._uploads(parts, like, round, traffic, limits)
        self._answered = set()
        yield from guarded_mean(uploads, self.method.downlink(server, ids[:1]), self.guard.robust)
        asked = {m.name: int(((ids >= m.clients.start) & (ids < m.clients.stop)).sum()) for m in self.members}
        if not self._enough(asked, self._answered):
            answered = sum(asked[name] for name in self._answered)
            raise TooFew(f"round {round}: {answered} of {len(ids)} clients replied")

    def _enough(self, asked: Mapping[str, int], answered: set[str]) -> bool:
        """Whether enough of those asked have answered, by node.

        A node counts for no more than all others together: however many clients it announces, its silence alone
        cannot stop a run.
        """
        total = sum(asked.values())
        counts = {name: min(count, total - count) or count for name, count in asked.items()}
        came = sum(counts[name] for name in answered)
        return came > 0 and came >= self.terms.least * sum(counts.values())

    def _uploads(
        self, parts: dict[int, Part], like: Payload, round: int, traffic: Traffic, limits: Mapping[str, float] | None
    ) -> Iterator[Payload]:
        """Every node's uploads, as they come."""
        messages = {
            node: self._message("train", part.member, part.down.encode(), round=round) for node, part in parts.items()
        }
        for part, packet in self._replies(parts, messages, "trained", round, traffic):
            most = part.member.users if self.job.together else 1
            sizes = torch.from_numpy(self.federation.sizes[part.down.ids.numpy()])
            items, norm = self.federation.n_items, self.terms.max_norm
            try:
                up = checked(packet.body, like, part.down, most, items, norm, sizes, self.method)
            except Refused as error:
                self._refuse(part, round, error)
                continue
            self._trained(part, packet, traffic)
            if limits is not None:
                up, norms = bounded(up, part.down, limits)
                traffic.norms.append(norms)
            yield up

    def _sum(
        self, parts: dict[int, Part], layout: Layout, clients: int, round: int, traffic: Traffic
    ) -> Iterator[Payload]:
        """One upload of everybody: a node sums over its own clients, and the nodes' sums are opened together alone.

        Whoever falls silent at a stage is not asked again; the sum is opened without it, or not at all.
        """
        if len(parts) < secure_sum.FEWEST:
            raise TooFew(
                f"round {round}: a secure sum of {len(parts)} nodes hides nothing, it takes {secure_sum.FEWEST}"
            )
        nodes = {part.place: node for node, part in parts.items()}
        point = FixedPoint(BOUND, clients)
        trained: list[tuple[Part, Packet]] = []

        def stage(
            ask: str, words: Mapping[int, secure_sum.Message], answer: type[M], take: Callable[[M], None]
        ) -> None:
            messages = {}
            for place, word in words.items():
                part, body = parts[nodes[place]], secure_sum.encode(word)
                head: dict[str, Any] = {"round": round, "party": place}
                if ask == "train":
                    head |= {"clients": clients, "delivery": b64encode(body).decode()}
                    body = part.down.encode()
                messages[nodes[place]] = self._message(ask, part.member, body, **head)
            for part, packet in self._replies(parts, messages, ANSWERS[ask], round, traffic):
                try:
                    word = secure_sum.decode(answer, packet.body)
                    if getattr(word, "client", None) != part.place:
                        raise Refused("it speaks for another node")
                    if isinstance(word, secure_sum.Masked) and (word.width, len(word.words)) != (8, 8 * layout.length):
                        raise Refused(
                            f"{len(word.words):,} bytes of words of {word.width}, not {8 * layout.length:,} of 8"
                        )
                    take(word)
                except (Refused, secure_sum.BadMessage) as error:
                    self._refuse(part, round, error)
                    continue
                if ask == "train":
                    trained.append((part, packet))

        try:
            server = secure_sum.Server(sorted(nodes))
            stage("invite", server.invite(), secure_sum.Keys, server.keys)
            stage("introduce", server.introduce(), secure_sum.Shares, server.shares)
            stage("train", server.deliver(), secure_sum.Masked, server.masked)
            stage("reveal", server.ask(), secure_sum.Answer, server.revealed)
            total = point.decode(server.total())
        except UserError as error:
            raise TooFew(f"round {round}: {error}") from error
        up = layout.everybody(total)
        summed = [(part, packet) for part, packet in trained if part.place in server.summed]
        most = sum(len(p.down.ids) * (p.member.users if self.job.together else 1) for p, _ in summed)
        try:
            plausible(up, summed[0][0].down, clients, most, self.federation.n_items, self.terms.max_norm)
        except Refused as error:
            self.count.refused += 1
            log.warning("round %d: the sum of %d nodes is refused: %s", round, len(summed), error)
            raise TooFew(f"round {round}: the sum of the uploads is refused: {error}") from error
        for part, packet in summed:
            self._trained(part, packet, traffic)
        yield up

    def _replies(
        self, parts: dict[int, Part], messages: Mapping[int, bytes], kind: str, round: int, traffic: Traffic
    ) -> Iterator[tuple[Part, Packet]]:
        """What nodes answer before the deadline; the rest is counted and named in the log."""
        silent = {node: parts[node] for node in messages}
        for node, reply in self._ask(messages, self.terms.deadline, traffic):
            part = silent.pop(node)
            try:
                packet = of_kind(unpack(reply), kind)
                if packet.head.get("round") != round:
                    raise Refused("it is of another round")
            except (BadPacket, Refused) as error:
                self._refuse(part, round, error)
            except Failed as error:
                self.count.failed += 1
                self._ids.pop(part.member.name, None)  # it may have lost its folder: greet it again
                log.warning("round %d: node '%s' failed: %s", round, part.member.name, error)
            else:
                yield part, packet
        for part in silent.values():
            self.count.silent += 1
            log.warning("round %d: node '%s' did not reply in time", round, part.member.name)

    def _refuse(self, part: Part, round: int, error: Exception) -> None:
        self.count.refused += 1
        log.warning("round %d: an upload of node '%s' is refused: %s", round, part.member.name, error)

    def _trained(self, part: Part, packet: Packet, traffic: Traffic) -> None:
        """Count a node's clients, and what it says of their loss if that is a number."""
        loss, clients = packet.head.get("loss"), len(part.down.ids)
        if isinstance(loss, float) and math.isfinite(loss):
            traffic.losses.append(loss)
            traffic.weights.append(clients)
        traffic.clients += clients
        self._answered.add(part.member.name)

    def evaluate(self, server: State, phase: str, round: int) -> Result:
        """Metrics over the users of all nodes that reply; each node ranks for its own."""
        self._greet()
        messages: dict[int, bytes] = {}
        names: dict[int, str] = {}
        for member in self.members:
            if (node := self._ids.get(member.name)) is not None and len(member.sizes):
                down = self.method.downlink(server, torch.arange(member.clients.start, member.clients.stop))
                names[node] = member.name
                messages[node] = self._message("evaluate", member, down.encode(), round=round, phase=phase)
        users = {member.name: member.users for member in self.members}
        total = 0
        replied: set[str] = set()
        self.too_short = 0
        parts: dict[str, list[tuple[int, Metrics]]] = {}
        for node, reply in self._ask(messages, self.terms.deadline, self._traffic):
            try:
                packet = of_kind(unpack(reply), "evaluated")
                count = int(between(packet.head["users"], 0, users[names[node]]))
                short = int(between(packet.head["too_short"], 0, users[names[node]] - count))
                found = {part: metrics_of(packet.head[part], self.select) for part in self._parts()} if count else {}
            except (BadPacket, Refused, Failed, KeyError, TypeError) as error:
                self.count.refused += 1
                log.warning("an evaluation by node '%s' is refused: %s", names[node], error)
                continue
            total += count
            replied.add(names[node])
            self.too_short += short
            for part, metrics in found.items():
                parts.setdefault(part, []).append((count, metrics))
        if not total or not self._enough(users, replied):
            came = sum(users[name] for name in replied)
            raise TooFew(f"round {round}: nodes of {came} of {sum(users.values())} users evaluated")
        means = {part: combined(found) for part, found in parts.items()}
        return Result(main=means["main"], sampled99=means.get("sampled99"), users=total)

    def _parts(self) -> list[str]:
        """What a node reports: the protocol's own ranking and, where there are two, that among 99 as well."""
        return ["main", "sampled99"] if self.job.protocol == "strict" else ["main"]

    def _message(self, kind: str, member: Member, body: bytes, **head: Any) -> bytes:
        place = [member.first_user, member.first_client]
        keep = [self.best_round()]
        return Packet(kind, {"job": self.job.id, "place": place, "keep": keep, **head}, body).pack()

    def _ask(
        self, messages: Mapping[int, bytes], seconds: float, traffic: Traffic | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Ask, and count the bytes and the seconds."""
        if not messages:
            return
        down = sum(map(len, messages.values()))
        self.count.bytes_down += down
        if traffic is not None:
            traffic.bytes_down += down
        began, worked, waited = time.perf_counter(), 0.0, 0.0
        for node, reply in self.link.ask(messages, seconds):
            waited = time.perf_counter() - began
            self.count.bytes_up += len(reply)
            if traffic is not None:
                traffic.bytes_up += len(reply)
            worked = max(worked, seconds_of(reply))
            yield node, reply
        self.count.waited += max(waited, time.perf_counter() - began)
        self.count.worked += worked

    def snapshot(self) -> Count:
        """The counts as they are now."""
        return replace(self.count)
