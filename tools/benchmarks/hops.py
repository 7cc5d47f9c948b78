"""Counts functions, changes of module, and stack frames of the SPI during one page call.

    python -m benchmarks.hops

The measured call reads the third page of 20 events from an embedded store with two partitions. Only
the calling thread is measured. To understand this call from the code, a person must follow each of
the counted steps. A comprehension counts as a function, because Python 3.11 executes it as a
function.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs

from multiclouddb_api import Beginning, ChangeFeedRequest, FromContinuationToken, connect
from multiclouddb_embedded import EmbeddedStore

__all__ = ["Hops", "measure"]

_ROOM: Final = "multiclouddb_spi"
_PAGE: Final = 20
_EVENTS: Final = 200


@attrs.frozen
class Hops:
    """The three counts of one profiled call.

    Attributes:
        functions: The number of different functions.
        modules: The number of changes from one module to another.
        frames: The number of SPI frames in the deepest stack.
    """

    functions: int
    modules: int
    frames: int


@attrs.define
class _Profile:
    functions: set[tuple[str, str, int]] = attrs.field(factory=set)
    changes: int = 0
    deepest: int = 0
    _stack: list[str] = attrs.field(factory=list)
    _last: str = ""

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(_ROOM):
            return
        if event == "call":
            code = frame.f_code
            self.functions.add((name, code.co_qualname, code.co_firstlineno))
            self.changes += name != self._last
            self._last = name
            self._stack.append(name)
            self.deepest = max(self.deepest, len(self._stack))
        elif event == "return" and self._stack:
            self._stack.pop()


def measure(folder: Path) -> Hops:
    """Read three pages and measure the third.

    Args:
        folder: The folder in which the store is created.
    """
    with EmbeddedStore(folder / "hops.db") as store:
        address = store.create_collection("orders", partitions=2)
        for number in range(_EVENTS):
            store.put("orders", f"o-{number}", {"n": number})
    with connect(f"embedded://{store.path}") as client:
        request = ChangeFeedRequest(address, Beginning(), max_page_size=_PAGE)
        for _ in range(2):
            token = client.read_changes(request).continuation_token
            request = attrs.evolve(request, start_position=FromContinuationToken(token))
        profile = _Profile()
        sys.setprofile(profile.note)
        try:
            page = client.read_changes(request)
        finally:
            sys.setprofile(None)
    assert len(page.events) == _PAGE
    return Hops(len(profile.functions), profile.changes, profile.deepest)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = measure(Path(place))
    print(f"functions {found.functions}, changes of module {found.modules}, frames {found.frames}")  # noqa: T201
