"""What a node's users have spent: every noisy upload that left it, over all runs, on its own disk."""

import dataclasses
import logging
import math
from collections.abc import Iterable
from typing import Any

from tacit.deploy.vault import Vault
from tacit.errors import UserError
from tacit.privacy.accountant import gaussian_cost
from tacit.privacy.mechanisms import Mechanism, named

log = logging.getLogger("tacit.node")

FILE = "ledger.json"
DELTA = 1e-5  # at which ε is counted here: a server could ask for one at which everything is cheap


class Ledger:
    """Releases by run and user. An upload that is not counted does not leave, one above `most` neither."""

    def __init__(self, vault: Vault, most: float = math.inf) -> None:
        """`most` is the ε that a user may spend over all runs."""
        self.vault, self.most = vault, most
        if most < math.inf:
            gaussian_cost(1.0, 1, DELTA)  # says so if the package it needs is missing

    def charge(self, job: str, mechanism: Mechanism, users: Iterable[str]) -> None:
        """Count one release of each of these users, on disk before this returns; refuse it above the bound."""
        runs = self.runs()
        run = runs.setdefault(job, {"ldp": mechanism.stated(), "releases": {}})
        count, charged = run["releases"], list(users)
        for user in charged:
            count[user] = count.get(user, 0) + 1
        spent = self._spent(runs, charged)
        if self.most < math.inf and not spent <= self.most:  # what is not a number is not below it
            raise UserError(
                f"this upload would bring a user to ε = {spent:.4g} by {self.vault.path / FILE}, above --max-epsilon "
                f"{self.most:g}; start the node with more, or ask for a run with more noise or fewer rounds"
            )
        self.vault.write_json(FILE, runs)
        log.info(
            "an upload of %d users leaves, number %d of one of them in this run: ε = %s at most over all runs",
            len(charged),
            max((count[user] for user in charged), default=0),
            "unknown without dp-accounting" if math.isnan(spent) else f"{spent:.4g}",
        )

    def epsilon(self, users: Iterable[str]) -> float:
        """What one of these users has spent at most."""
        return self._spent(self.runs(), list(users))

    def _spent(self, runs: dict[str, Any], users: list[str]) -> float:
        """Of equal noise all releases together, of different noise the sum (its δ adds up, too).

        Users who spent the most of different kinds are taken for one: never too little.
        """
        together: dict[tuple[str, float, float], tuple[Mechanism, dict[str, int]]] = {}
        for run in runs.values():
            noise = dataclasses.replace(named(**run["ldp"]), delta=DELTA)
            counts = together.setdefault((noise.kind, noise.scale, noise.clip), (noise, {}))[1]
            for user in set(users):
                counts[user] = counts.get(user, 0) + run["releases"].get(user, 0)
        try:
            return sum(noise.epsilon(max(counts.values(), default=0)) for noise, counts in together.values())
        except UserError:
            if self.most < math.inf:
                raise
            return math.nan

    def runs(self) -> dict[str, Any]:
        """As they are on disk; a UserError where they are damaged."""
        found = self.vault.json(FILE)
        if found is None:
            return {}
        if not isinstance(found, dict) or not all(map(_is_run, found.values())):
            raise UserError(f"{self.vault.path / FILE} is damaged, and with it what was spent; restore it from a copy")
        return found


def _is_run(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"ldp", "releases"}
        and isinstance(value["ldp"], dict)
        and isinstance(value["releases"], dict)
        and all(type(n) is int and n >= 0 for n in value["releases"].values())
    )
