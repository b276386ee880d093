"""The clients of a federation on their own machines: one message per node and round, and one upload where it can be."""

import logging
import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tacit.core.aggregate import foldable, guarded_mean
from tacit.core.bounds import bounded, limits_of
from tacit.core.capabilities import Telling
from tacit.core.fleet import Traffic
from tacit.core.payload import Payload, State
from tacit.core.trained import singly
from tacit.deploy.checks import Refused, checked, checked_sum, plausible, template
from tacit.deploy.gathering import Gathering, Grown, Link, Terms
from tacit.deploy.members import Member
from tacit.deploy.party import Spent, leave_out
from tacit.deploy.replies import Count, Failed, between, metrics_of, of_kind
from tacit.deploy.wire import ANSWERS, BadPacket, Packet, unpack
from tacit.errors import UserError
from tacit.evaluation.metrics import Metrics, combined
from tacit.evaluation.protocol import Result
from tacit.privacy import secure_sum
from tacit.privacy.fixed_point import FixedPoint
from tacit.privacy.secure_fleet import BOUND, Layout

__all__ = ["FlowerFleet", "Grown", "Link", "Part", "Terms", "TooFew"]

log = logging.getLogger("tacit.server")

M = TypeVar("M", bound=secure_sum.Message)


class TooFew(RuntimeError):
    """A round in which too few clients replied; it can be asked for again."""


@dataclass(frozen=True)
class Part:
    """A node in a round."""

    place: int  # among the members
    member: Member
    down: Payload  # what its chosen clients are sent


class FlowerFleet(Gathering):
    """Nodes behind a link. The rounds loop and the methods do not know the difference from a simulated fleet."""

    def train(self, server: State, ids: Tensor, round: int, traffic: Traffic) -> Iterator[Payload]:
        """Let the nodes train these clients; yield what is left of their uploads after the checks, or their sum."""
        self._traffic = traffic
        if not len(ids):
            return
        self._meet()
        for gone in (m.clients for m in self.members if m.removed):
            ids = ids[(ids < gone.start) | (ids >= gone.stop)]
        if not len(ids):
            return
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
            uploads = self._sum(parts, layout, like, len(ids), round, traffic)
        else:
            bound = self.guard.bound
            limits = limits_of(self.method, server, ids, round, self.federation, bound) if bound else None
            uploads = self._uploads(parts, like, round, traffic, limits)
        self._answered, self._spent = set(), set()
        self.asking(round)
        yield from guarded_mean(uploads, self.method.downlink(server, ids[:1]), self.guard.robust)
        if self.job.secure and self._spent and not self._answered:
            return
        asked = {m.name: int(((ids >= m.clients.start) & (ids < m.clients.stop)).sum()) for m in self._staying()}
        if not self._enough(asked, self._answered):
            answered = sum(asked[name] for name in self._answered)
            raise TooFew(f"round {round}: {answered} of {sum(asked.values())} clients replied")

    def _uploads(
        self, parts: dict[int, Part], like: Payload, round: int, traffic: Traffic, limits: Mapping[str, float] | None
    ) -> Iterator[Payload]:
        """Every node's uploads, or their sum, as they come."""
        folds = self._folds(like)
        head = {"round": round} | ({"fold": limits or {}} if folds else {})
        messages = {
            node: self._message("train", part.member, part.down.encode(), **head) for node, part in parts.items()
        }
        for part, packet in self._replies(parts, messages, "trained", round, traffic):
            most = part.member.users if self.job.together else 1
            sizes = torch.from_numpy(self.federation.sizes[part.down.ids.numpy()])
            items, norm = self.federation.n_items, self.terms.max_norm
            try:
                if folds:
                    up, norms = checked_sum(packet.body, like, part.down, sizes, limits or {}, norm)
                else:
                    up = checked(packet.body, like, part.down, most, items, norm, sizes, self.method)
                    up, norms = (up, {}) if limits is None else bounded(up, part.down, limits)
            except Refused as error:
                self._refuse(part, round, error)
                continue
            self._trained(part, packet, traffic)
            traffic.norms += [norms] if norms else []
            yield up

    def _folds(self, like: Payload) -> bool:
        """Whether a node adds up its clients' uploads: not where the method or the server needs to see each of them.

        What can be held against a history (tally) is checked one by one, and is no larger than that history.
        """
        alone = self.job.together or singly(self.method) or isinstance(self.method, Telling)
        return not alone and not self.guard.robust and foldable(like)

    def _sum(
        self, parts: dict[int, Part], layout: Layout, like: Payload, clients: int, round: int, traffic: Traffic
    ) -> Iterator[Payload]:
        """One upload of everybody: a node sums over its own clients, and the nodes' sums are only opened together.

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
                        raise Refused("it answers for another node")
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
            stage("confirm", server.survivors(), secure_sum.Confirmed, server.confirmed)
            stage("reveal", server.ask(), secure_sum.Answer, server.revealed)
            total = point.decode(server.total())
        except UserError as error:
            if not self._spent:
                raise TooFew(f"round {round}: {error}") from error
            leave_out(self.method, round, error)
            return
        self.board.sums = {"round": round, "asked": len(nodes), "survived": len(server.summed)}
        up = layout.everybody(total)
        summed = [(part, packet) for part, packet in trained if part.place in server.summed]
        sizes = torch.from_numpy(self.federation.sizes[torch.cat([part.down.ids for part, _ in summed]).numpy()])
        try:
            plausible(up, summed[0][0].down, like, sizes, self.terms.max_norm)
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
        names = {node: parts[node].member.name for node in messages}
        for node, reply in self._heed(messages, names, traffic, round):
            part = parts[node]
            try:
                packet = of_kind(unpack(reply), kind)
                if packet.head.get("round") != round:
                    raise Refused("it is of another round")
            except (BadPacket, Refused) as error:
                self._refuse(part, round, error)
            except Failed as error:
                if str(error) == Spent.__name__:
                    self.count.failed += 1
                    self._spent.add(part.member.name)
                    continue
                self._failed(part.member.name, round, error)
            else:
                yield part, packet

    def _heed(
        self, messages: Mapping[int, bytes], names: Mapping[int, str], traffic: Traffic, round: int
    ) -> Iterator[tuple[int, bytes]]:
        """Replies as they come; a silent node bears the cost and has to register again."""
        silent = dict(names)
        began = last = time.monotonic()
        for node, reply in self._ask(messages, names, self.terms.deadline, traffic):
            last = time.monotonic()
            self.board.answered(silent.pop(node), last - began)
            yield node, reply
        there = self.link.nodes() if silent else {}
        for node, name in silent.items():
            self.count.silent += 1
            self._ids.pop(name, None)
            self.board.was_silent(name, time.monotonic() - last, node in there)
            log.warning("round %d: node '%s' did not reply in time", round, name)

    def _failed(self, name: str, round: int, error: Failed) -> None:
        self.count.failed += 1
        self.board.of(name).failed += 1
        self.board.of(name).reason = f"round {round}: it failed: {error}"
        self._ids.pop(name, None)  # it may have lost its folder: greet it again
        log.warning("round %d: node '%s' failed: %s", round, name, error)

    def _refuse(self, part: Part, round: int, error: Exception) -> None:
        self.count.refused += 1
        name = part.member.name
        self._note(name, f"round {round}: an upload of node '{name}' is refused: {error}")

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
        for member in self._staying():
            if (node := self._ids.get(member.name)) is not None and len(member.sizes):
                down = self.method.downlink(server, torch.arange(member.clients.start, member.clients.stop))
                names[node] = member.name
                messages[node] = self._message("evaluate", member, down.encode(), round=round, phase=phase)
        users = {member.name: member.users for member in self._staying()}
        total = 0
        replied: set[str] = set()
        self.too_short = 0
        parts: dict[str, list[tuple[int, Metrics]]] = {}
        for node, reply in self._heed(messages, names, self._traffic, round):
            try:
                packet = of_kind(unpack(reply), "evaluated")
                count = int(between(packet.head["users"], 0, users[names[node]]))
                short = int(between(packet.head["too_short"], 0, users[names[node]] - count))
                found = {part: metrics_of(packet.head[part], self.select) for part in self._parts()} if count else {}
            except Failed as error:
                self._failed(names[node], round, error)
                continue
            except (BadPacket, Refused, KeyError, TypeError) as error:
                self.count.refused += 1
                self._note(names[node], f"round {round}: an evaluation by node '{names[node]}' is refused: {error}")
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

    def snapshot(self) -> Count:
        """The counts as they are now."""
        return replace(self.count)
