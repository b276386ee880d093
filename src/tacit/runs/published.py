"""The experiments that come with tacit, a file for each published table."""

from pathlib import Path

from tacit.errors import unknown

OWN = Path(__file__).parents[1] / "experiments"


def names() -> list[str]:
    """The experiments that come with tacit."""
    return sorted(path.name.removesuffix(".toml") for path in OWN.iterdir() if path.name.endswith(".toml"))


def located(path: Path) -> Path:
    """A file as it is named, or else the one of this name that comes with tacit."""
    own = OWN / f"{path.name.removesuffix('.toml')}.toml"
    if path.is_file() or (path.suffix == ".toml" and not own.is_file()):
        return path
    if not own.is_file() or path.parent.name not in ("", "experiments"):
        raise unknown("experiment", str(path), names())
    return own
