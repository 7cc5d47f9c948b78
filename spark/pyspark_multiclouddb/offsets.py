"""Defines the offsets that a query's checkpoint stores.

An offset is always canonical JSON (sorted keys), because Spark treats any difference in the text as
new data. Offsets have two forms:

    {"from": "beginning", "src": "3b1f…", "v": 1}
    {"c": {"p": [["p0", 17], …], …}, "e": {"p3": 9}, "empty": true, "inc": "…", "src": "3b1f…", "v": 1}

- `from`: the start of a new query, unresolved: Spark asks for it several times and does not store it.
- `c`: the lineage, encoded as in a continuation token.
- `e`: the end position of each partition that the step to this offset has read completely, so that a second
  read of the step gives the same result.
- `empty`: only the positions of an idle feed have moved. The step reads nothing, so it can be replayed even
  if the service has already deleted its part of the log.
- `o`, on Spark 4.0 and 4.1: the lineage of the resolved start, if the first micro-batch already has rows.
  From 4.2 on, the first micro-batch has no rows, and its end contains the resolved start as `c`.
- `more`, on Spark 4.0 and 4.1: the step has records and more records may follow (see `caught_up`).
- `poison`, with `onPoison=skip`: the changes that the step leaves out because they cannot be decoded: their
  number (`count`), and partition and position of the first ones (`first`). A repeated step leaves out the
  same changes, even if `onPoison` has been changed to `fail`.
- `warning`: a target may stay wrong, and how to repair it; in the first offset of a query that does not begin
  with a snapshot, and with `lost` in every offset after `failOnDataLoss=false` has skipped lost changes.
- `s`, for the sink, after a snapshot has begun: the id of the plan (`plan`), the floor (`floor`), whether the
  scan is over (`over`), and `whole` if the scan reads every existing row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from multiclouddb_api import MulticloudDbError, Snapshot, invalid_request
from multiclouddb_spi import Cursor, FeedStart, InvalidCursor, Range, ranges_between
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage, Rules
from multiclouddb_spi.open_feed import OpenFeed
from pyspark_multiclouddb.errors import NEW_QUERY
from pyspark_multiclouddb.options import Settings, position_from_text, position_text

_VERSION: Final = 1
_PLACES: Final = 20
_NEW_CHECKPOINT: Final = "use a checkpointLocation of its own"


@attrs.frozen
class Symbolic:
    """The start of a new query, which is not resolved yet."""

    position: FeedStart | Snapshot


@attrs.frozen
class Pinned:
    """The positions of all partitions at an offset; the fields are those of the stored form, see above."""

    incarnation: str | None
    cursors: Cursor
    ends: Mapping[str, Cursor] = attrs.field(factory=dict)
    empty: bool = False
    origin: Cursor | None = None
    more: bool = False
    snapshot: Mapping[str, Any] | None = None
    poison: Mapping[str, Any] | None = None
    warning: str | None = None
    lost: bool = False
    _built: list[Lineage] = attrs.field(factory=list, init=False, eq=False, repr=False)

    def lineage(self, rules: Rules = INSPECTED) -> Lineage:
        """Return the lineage of the positions, which is built once; do not change it."""
        if not self._built or (rules is not INSPECTED and self._built[0].rules is not rules):
            self._built[:] = [_lineage(self.cursors, rules)]
        return self._built[0]

    def check_incarnation(self, opened: OpenFeed) -> None:
        """Refuse an offset of a resource that was deleted and created again."""
        way_out = f"the changes of the old resource are gone; {NEW_QUERY}"
        opened.check_resumes(self.incarnation, "checkpoint", way_out)


Offset: TypeAlias = Symbolic | Pinned


def offset_to_json(settings: Settings, offset: Offset) -> dict[str, Any]:
    """Return an offset in the form that Spark stores."""
    value: dict[str, Any] = {"v": _VERSION, "src": settings.source}
    match offset:
        case Symbolic(position):
            value["from"] = position_text(position)
        case Pinned(incarnation, cursors, ends, empty, origin, more, snapshot, poison, warning, lost):
            value |= {"inc": incarnation, "c": cursors}
            optional = {"e": dict(ends), "empty": empty, "o": origin, "more": more, "s": snapshot}
            optional |= {"modes": settings.modes, "poison": poison, "warning": warning, "lost": lost}
            value |= {name: each for name, each in optional.items() if each}
    canonical: dict[str, Any] = json.loads(json.dumps(value, sort_keys=True))
    return canonical


def offset_from_json(settings: Settings, value: Any) -> Offset:
    """Return the offset from its stored form; the inverse of `offset_to_json`."""
    match value:
        case {"v": int(version)} if version > _VERSION:
            raise invalid_request(
                "checkpoint",
                f"was written by a later version of this source (form {version})",
                "update multiclouddb-spark, or " + _NEW_CHECKPOINT,
            )
        case {"v": 1, "src": str(source)} if source != settings.source:
            raise invalid_request(
                "checkpoint",
                f"is of another source than {settings.config.provider} {settings.address}",
                f"set provider, database and collection as they were, or {_NEW_CHECKPOINT}",
            )
        case {"v": 1, "c": _} if value.get("modes", {}) != settings.modes:
            raise invalid_request(
                "checkpoint",
                f"was written with {_modes_text(value.get('modes'))}, but the query has "
                f"{_modes_text(settings.modes)}",
                f"set newItemState and oldItemState as they were, or {_NEW_CHECKPOINT}",
            )
        case {"v": 1, "src": str(), "from": str(text)}:
            return Symbolic(position_from_text(text))
        case {"v": 1, "src": str(), "inc": str() | None as incarnation, "c": dict(cursors)} if (
            isinstance(value.get("e", {}), dict)
            and isinstance(value.get("o"), dict | None)
            and _is_snapshot(value.get("s"))
            and isinstance(value.get("poison"), dict | None)
            and isinstance(value.get("warning"), str | None)
        ):
            return Pinned(
                incarnation,
                cursors,
                value.get("e", {}),
                value.get("empty") is True,
                value.get("o"),
                value.get("more") is True,
                value.get("s"),
                value.get("poison"),
                value.get("warning"),
                value.get("lost") is True,
            )
        case _:
            raise _damaged("holds an offset that is not of this source")


def poison_state(left_out: Sequence[tuple[str, str]]) -> Mapping[str, Any] | None:
    """Return what an offset stores about the changes that its step leaves out."""
    first = [list(place) for place in left_out[:_PLACES]]
    return {"count": len(left_out), "first": first} if left_out else None


def ranges_of(start: Offset, end: Offset, rules: Rules = INSPECTED) -> list[Range]:
    """Return the ranges between two offsets of one query."""
    match start, end:
        case Symbolic(), Pinned(origin=origin) if origin is not None:
            return ranges_between(_lineage(origin, rules), end.lineage(rules), end.ends)
        case Symbolic(), _:
            return []
        case Pinned(), Pinned():
            if start.incarnation != end.incarnation:
                raise _damaged("contains positions of two incarnations of the resource")
            return [] if end.empty else ranges_between(start.lineage(rules), end.lineage(rules), end.ends)
        case _:
            raise _damaged("contains a range that ends before its start")


def _is_snapshot(value: Any) -> bool:
    """Return whether a value is None or has the form that `snapshot_state` returns."""
    match value:
        case None | {"plan": str(), "floor": str(), "over": bool()}:
            return True
        case _:
            return False


def _lineage(cursors: Cursor, rules: Rules) -> Lineage:
    try:
        return Lineage.from_json(cursors, rules)
    except InvalidCursor as error:
        raise _damaged(f"holds a damaged offset ({error})") from None


def _modes_text(modes: Any) -> str:
    if not modes or not isinstance(modes, dict):
        return "the default newItemState and oldItemState"
    return " and ".join(f"{name}={value}" for name, value in sorted(modes.items()))


def _damaged(problem: str) -> MulticloudDbError:
    return invalid_request("checkpoint", problem, _NEW_CHECKPOINT)
