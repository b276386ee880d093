"""Figures as people read them, for tables in a terminal, on a page and of a server's nodes alike."""

import math

FILE_ORDER = (
    "The protocol fileorder withholds what happens to stand last in a file, which is neither the latest nor a sample: "
    "its figures are for comparison with HeteFedRec's alone."
)


def size(value: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def budget(epsilon: float | None) -> str:
    """An ε for people."""
    return "–" if epsilon is None else "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"
