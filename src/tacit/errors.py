"""The one error a user sees as a sentence: it names the thing and the way out."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Bad input. The command line prints its sentence and exits with 2, without a traceback."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An unknown name, with the nearest known one."""
    names = sorted(known)
    letters = {each.lower(): each for each in names}  # NDCG@10 is meant by ndgc@10
    near = get_close_matches(name, names, n=1) or [letters[x] for x in get_close_matches(name.lower(), letters, n=1)]
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return UserError(f"unknown {kind} '{name}'{hint} known: {', '.join(names)}")
