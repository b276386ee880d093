"""Which of a run's nodes are there: they are greeted, admitted, waited for, and asked so that all is counted."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tacit.core.capabilities import groups
from tacit.core.fleet import Guard, Traffic
from tacit.core.method import Method
from tacit.data.cohort import Federation
from tacit.deploy.board import Board
from tacit.deploy.checks import Refused
from tacit.deploy.job import Job
from tacit.deploy.members import Here, Member, Roll, announced, counts_clients
from tacit.deploy.replies import Count, Failed, of_kind, plain, seconds_of
from tacit.deploy.wire import VERSION, BadPacket, Packet, unpack
from tacit.errors import UserError
from tacit.privacy import secure_sum

log = logging.getLogger("tacit.server")

SAY = 60.0  # seconds between two lines about nodes that are waited for


class Link(Protocol):
    """Carries bytes to nodes and back. Flower is one; tests have one without a network."""

    def nodes(self) -> dict[int, str | None]:
        """The nodes that are there now, with the name their key stands for where nodes have keys."""

    def ask(self, messages: Mapping[int, bytes], seconds: Mapping[int, float]) -> Iterator[tuple[int, bytes]]:
        """Send, and yield replies as they come until all are there or each node's time is up."""


class Grown(RuntimeError):
    """A node has joined; the rounds loop is to count its clients from now on."""


@dataclass(frozen=True)
class Terms:
    """What a round may cost and what it must bring."""

    deadline: float = 600.0  # seconds a round waits
    greeting: float = 60.0  # seconds a node that has come may take to say who it is
    least: float = 0.5  # share of the asked clients that must reply
    max_norm: float = 0.0  # of a client's change; 0: `bounds.TYPICAL` for each value
    most_users: int = 100_000  # that one node may announce


@dataclass
class Gathering:
    """The nodes of a run behind a link."""

    link: Link
    job: Job
    method: Method
    terms: Terms
    members: list[Member] = field(default_factory=list)
    joined: Callable[[list[Member]], None] = lambda members: None  # told whenever a node joins
    count: Count = field(default_factory=Count)
    best_round: Callable[[], int] = lambda: 0  # whose private state nodes must keep
    select: str = "NDCG@10"  # the metric that every node must know
    board: Board = field(default_factory=Board)
    asking: Callable[[int], None] = lambda round: None  # told before clients are asked to train in a round
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        self._ids: dict[str, int] = {}  # name -> node of the link
        self._heard: dict[str, Here] = {}  # what a node said of itself when it came
        self._traffic = Traffic()
        self._answered: set[str] = set()  # nodes whose uploads are in the round
        self._spent: set[str] = set()  # nodes that have helped to open a sum of the round, and do so once
        self.too_short = 0  # users that were not evaluated, having fewer than three interactions
        self._called: dict[int, str] = {}  # what a node of the link is called, by its key or as it said
        self._told: set[int] = set()  # nodes that know why they wait
        self._enrolled()

    def _enrolled(self) -> None:
        self.federation: Federation = Roll.of(self.job, self.members)
        for member in self.members:
            one = self.board.of(member.name)
            one.users, one.member = member.users, not member.removed

    # who is there

    def gather(self, nodes: int, seconds: float = 0.0) -> bool:
        """Wait until this many nodes are there, then give everybody its numbers, by the order of names."""
        self.board.needs = f"{nodes} nodes to begin with"
        if not self._until(lambda: len(self._ids) >= nodes, seconds):
            return False
        if not self.members:
            for name in sorted(self._ids):
                self._enrol(self._heard[name])
        return True

    def regather(self, seconds: float = 0.0) -> bool:
        """Wait until enough nodes for a round are there."""
        return self._until(self.quorum, seconds)

    def _until(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Greet until it is enough; False after this many seconds, 0: never. Says now and then who is missing."""
        began = said = time.monotonic()
        while True:
            self._greet()
            self.board.quorum = enough()
            if self.board.quorum:
                return True
            self.board.pardon()
            now = time.monotonic()
            if seconds and now - began > seconds:
                return False
            if now - said > SAY:
                said = now
                away = sorted({m.name for m in self.members if not m.removed} - set(self._ids))
                log.warning(
                    "waiting for nodes: %s there, %s; needed: %s",
                    ", ".join(sorted(self._ids)) or "nobody is",
                    f"not {', '.join(away)}" if away else "no other is known",
                    self.board.needs,
                )
            time.sleep(0.2)

    def quorum(self) -> bool:
        """Whether the nodes that are there are enough for a round."""
        users = {m.name: m.users for m in self.members if not m.removed and m.users}
        there = set(users) & set(self._ids)
        fewest = secure_sum.FEWEST if self.job.secure else 1
        more = f" on {fewest} nodes or more" if fewest > 1 else ""
        self.board.needs = f"{self.terms.least:.0%} of {sum(users.values())} users{more}"
        return len(there) >= fewest and self._enough(users, there)

    def _greet(self) -> None:
        """Ask nodes that have come since the last time who they are."""
        there = self.link.nodes()
        self.board.look(there)
        self._ids = {name: node for name, node in self._ids.items() if node in there}
        self._told &= set(there)
        self._called |= {node: name for node, name in there.items() if name}
        keys = {node: self._called.get(node, str(node)) for node in there if node not in self._ids.values()}
        new = {node: name for node, name in keys.items() if not self.board.rests(name)}
        hello = Packet("hello", {"version": VERSION}, self.job.dump()).pack()
        mute = dict(new)
        began = time.monotonic()
        for node, reply in self._ask(dict.fromkeys(new, hello), new, min(self.terms.deadline, self.terms.greeting)):
            name, began = mute.pop(node), time.monotonic()
            try:
                here = announced(of_kind(unpack(reply), "here"), there[node], self.job, self.terms.most_users)
                self._admit(here)
            except (BadPacket, Refused, Failed) as error:
                self.count.refused += 1
                self._note(name, f"node {name} is not taken in: {error}")
                continue
            self._ids[here.name] = node
            self._heard[here.name] = here
            self._called[node] = here.name
            if name != here.name:
                self.board.rename(name, here.name)
            self.board.of(here.name).node = node
        for name in mute.values():
            log.warning("node %s does not identify itself", name)
            self.board.was_silent(name, time.monotonic() - began, there=True)
        self.board.look(there)

    def _note(self, name: str, reason: str) -> None:
        """A refusal, in the log where it is another than before."""
        one, reason = self.board.of(name), plain(reason)
        one.refused += 1
        if one.reason != reason:
            log.warning("%s", reason)
        one.reason = reason

    def _admit(self, here: Here) -> None:
        """Refuse a node that cannot be in this run, whatever is sound about its greeting."""
        if here.name in self._ids:
            raise Refused(f"there is already a node '{here.name}'")
        before = next((m for m in self.members if m.name == here.name), None)
        if before is not None and before.removed:
            raise Refused(f"'{here.name}' was removed from this run")
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
        if not self.quorum():
            self.board.pardon()
            self._greet()
        self.board.quorum = self.quorum()
        found = self._heard
        new = sorted((set(found) & set(self._ids)) - {m.name for m in self.members})
        if new and (why := self._closed()):
            for name in new:
                self._tell(name, why)
        elif new:
            for name in new:
                self._enrol(found[name])
            raise Grown(f"{len(new)} nodes more")

    def _closed(self) -> str:
        """Why a run takes in nobody more; empty where it does."""
        if self.job.ldp is not None:
            return (
                "the budget of --ldp is accounted for by who was there from the first round; it waits for the next run"
            )
        if counts_clients(self.method, self.federation):
            return f"{self.job.method} has a place for each client of the first round alone; it waits for the next run"
        return ""

    def _tell(self, name: str, why: str) -> None:
        """Let a node know, once, why it is asked nothing."""
        node = self._ids[name]
        if node not in self._told:
            self._told.add(node)
            log.warning("node '%s' joined late: %s", name, why)
            self.board.of(name).reason = why
            hello = Packet("hello", {"version": VERSION, "waits": why}, self.job.dump()).pack()
            list(self._ask({node: hello}, {node: name}, min(self.terms.deadline, self.terms.greeting)))

    def _enrol(self, here: Here) -> None:
        self.members.append(here.member(self.members[-1] if self.members else None))
        self._enrolled()
        log.info("node '%s' joins with %d users", here.name, here.users)
        self.joined(self.members)

    def _enough(self, asked: Mapping[str, int], answered: set[str]) -> bool:
        """Whether enough of those asked have answered, by node.

        A node counts for no more than all others together: however many clients it announces, its silence alone
        cannot stop a run.
        """
        total = sum(asked.values())
        counts = {name: min(count, total - count) or count for name, count in asked.items()}
        came = sum(counts[name] for name in answered)
        return came > 0 and came >= self.terms.least * sum(counts.values())

    def _staying(self) -> list[Member]:
        return [member for member in self.members if not member.removed]

    def _ask(
        self, messages: Mapping[int, bytes], names: Mapping[int, str], seconds: float, traffic: Traffic | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Ask, and count the bytes and the seconds."""
        if not messages:
            return
        for node, message in messages.items():
            self.board.of(names[node]).bytes_down += len(message)
        down = sum(map(len, messages.values()))
        self.count.bytes_down += down
        if traffic is not None:
            traffic.bytes_down += down
        began, worked, waited = time.perf_counter(), 0.0, 0.0
        for node, reply in self.link.ask(messages, {n: self.board.patience(names[n], seconds) for n in messages}):
            waited = time.perf_counter() - began
            self.count.bytes_up += len(reply)
            self.board.of(names[node]).bytes_up += len(reply)
            if traffic is not None:
                traffic.bytes_up += len(reply)
            worked = max(worked, seconds_of(reply))
            yield node, reply
        self.count.waited += max(waited, time.perf_counter() - began)
        self.count.worked += worked
