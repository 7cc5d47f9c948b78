"""The files of a run of the demo, and the lines in which its writer tells how far it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import attrs

__all__ = ["COLLECTION", "Places", "append_line", "read_lines"]

COLLECTION: Final = "flights"


def _absolute(path: Path | str) -> Path:
    return Path(path).resolve()


@attrs.frozen
class Places:
    """The files of one run, all below one folder.

    Attributes:
        root: The folder of the run; each run empties it first.
    """

    root: Path = attrs.field(converter=_absolute)

    @property
    def store(self) -> Path:
        """The embedded store."""
        return self.root / "store.db"

    @property
    def url(self) -> str:
        """The URL of the embedded store."""
        return f"embedded://{self.store}"

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.root / "table"

    @property
    def written(self) -> Path:
        """The progress of the writer: JSON lines with the time and the number of writes until then.

        The first line counts the flights that exist before the mirror starts.
        """
        return self.root / "written.jsonl"

    @property
    def proved(self) -> Path:
        """The file that exists when the comparison beside the writer has ended."""
        return self.root / "proved"

    @property
    def chart(self) -> Path:
        """The picture of rate and lag over time."""
        return self.root / "chart.png"


def append_line(path: Path, **facts: Any) -> None:
    """Append one JSON line, in one write, so that who reads beside it sees the whole line or none."""
    with path.open("a") as file:
        file.write(json.dumps(facts) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all lines written so far, or no lines if the file does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
