"""The protocols by name: docs/protocols.md says what each measures."""

from typing import Literal

Protocol = Literal["strict", "paper", "symmetric", "ratio", "fileorder", "everything"]
PROTOCOLS: tuple[Protocol, ...] = ("strict", "paper", "symmetric", "ratio", "fileorder")  # those that evaluate
SHARES: tuple[Protocol, ...] = ("ratio", "fileorder")  # those that withhold a share of a user's items, not the last two
