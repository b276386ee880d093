"""A node forgets a user: nothing of it enters another sum, and nothing of it stays in the node's folder.

The note comes first and counts at once: whoever reads the node's interactions leaves that user out. What is on disk is
then cleared, again at every start until it is done. The numbers of all others stay: in a roster the user becomes a
nameless place without interactions. The note holds a salted hash, not the id. The file of interactions is its owner's
and is not touched; what earlier rounds have learnt from the user stays in their model.
"""

import hashlib
import hmac
import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from tacit.core.payload import BadPayload, decode
from tacit.data.interactions import Interactions
from tacit.deploy.ledger import FILE, Ledger
from tacit.deploy.vault import Vault, write
from tacit.deploy.wire import BadPacket, Packet, unpack
from tacit.errors import UserError

NOTE = "forgotten.json"
NOBODY = "\x00forgotten"  # no file has a user of this name


def forget(folder: Path, user: str) -> bool:
    """Note that a user is to be forgotten and clear its traces; False where it was forgotten before."""
    if not Vault.is_one(folder):
        raise UserError(f"{folder} is not a node's folder; nobody was forgotten")
    vault = Vault(folder)
    note = _note(vault)
    new = _mark(note["salt"], user) not in note["users"]
    if new:
        note["users"].append(_mark(note["salt"], user))
        vault.write_json(NOTE, note)
    with vault.held() as alone:
        clear(vault, alone)
    return new


def stamp(folder: Path) -> int:
    """Changes whenever a user is forgotten; 0 before the first."""
    path = folder / NOTE
    return path.stat().st_mtime_ns if path.exists() else 0


def without(data: Interactions, vault: Vault) -> Interactions:
    """Interactions without those of forgotten users."""
    gone = _gone(vault, data.user_ids.tolist())
    if not gone:
        return data
    kept = ~np.isin(data.user, np.flatnonzero(np.isin(data.user_ids, list(gone))))
    return replace(
        data,
        user=data.user[kept],
        item=data.item[kept],
        time=None if data.time is None else data.time[kept],
        repeats=None if data.repeats is None else data.repeats[kept],
    )


def refuse(vault: Vault, user: str) -> None:
    """A UserError for a user who was forgotten."""
    if _gone(vault, [user]):
        raise UserError(f"user '{user}' was forgotten on this node")


def clear(vault: Vault, alone: bool = True) -> None:
    """Remove what the folder holds of forgotten users; once more where a node that was at work has written since.

    Beside a node that runs, not `alone`, what it may be writing is left to it: it clears before its next answer.
    """
    if not (vault.path / NOTE).exists():
        return
    if alone:
        for half in vault.unfinished():
            half.unlink()
        _clear_ledger(vault)
    for job in vault.jobs() if (vault.path / "current").exists() else ():
        for round in vault.rounds(job):
            _clear_state(vault, job, round)
        roster = vault.json(f"jobs/{job}/roster.json")
        gone = _gone(vault, roster["users"])
        users = [NOBODY if user in gone else user for user in roster["users"]]
        if roster["place"] is not None:
            first = roster["place"][1]
            nobody = {first + place for place, user in enumerate(users) if user == NOBODY}
            _clear_model(vault.job(job) / "model.packet", nobody)
        if gone:
            vault.write_json(f"jobs/{job}/roster.json", roster | {"users": users})


def _clear_state(vault: Vault, job: str, round: int) -> None:
    path = vault.job(job) / "state" / f"{round:06d}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            before = json.loads((file.metadata() or {}).get("users", "[]"))
            if not (gone := _gone(vault, before)):
                return
            leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except FileNotFoundError:
        return  # a running node has moved on meanwhile
    except (SafetensorError, ValueError):
        path.unlink(missing_ok=True)  # damaged: the node falls back to the one before, as it would have
        return
    places = [place for place, user in enumerate(before) if user in gone]
    for leaf in leaves.values():
        if leaf.dim() and len(leaf) == len(before):  # a row for each user; what all share has none to take out
            leaf[places] = 0
    vault.save(job, round, leaves, [NOBODY if user in gone else user for user in before])


def _clear_ledger(vault: Vault) -> None:
    runs = Ledger(vault).runs()
    gone = _gone(vault, [user for run in runs.values() for user in run["releases"]])
    if gone:
        for run in runs.values():
            run["releases"] = {user: count for user, count in run["releases"].items() if user not in gone}
        vault.write_json(FILE, runs)


def _clear_model(path: Path, clients: set[int]) -> None:
    """The latest model as it came, without what was sent for these clients alone."""
    if not path.exists():
        return
    try:
        packet = unpack(path.read_bytes())
        down = decode(packet.body)
    except (BadPacket, BadPayload):
        path.unlink()
        return
    kept = torch.tensor([place for place, client in enumerate(down.ids.tolist()) if client not in clients])
    if len(kept) < len(down.ids):
        write(path, Packet(packet.kind, packet.head, down.only(kept.long()).encode()).pack())


def _note(vault: Vault) -> dict[str, Any]:
    found = vault.json(NOTE)
    if found is None:
        return {"salt": secrets.token_hex(16), "users": []}
    if not isinstance(found, dict) or set(found) != {"salt", "users"}:
        raise UserError(f"{vault.path / NOTE} is damaged; restore it, or users that were forgotten come back")
    return found


def _gone(vault: Vault, users: list[str]) -> set[str]:
    note = _note(vault)
    marks = set(note["users"])
    return {user for user in users if _mark(note["salt"], user) in marks} if marks else set()


def _mark(salt: str, user: str) -> str:
    return hmac.new(salt.encode(), user.encode(), hashlib.sha256).hexdigest()
