"""Compares both sides: all digests at once, and then the keys that are left in rounds, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa

from multiclouddb_api import (
    ScanFloor,
)
from multiclouddb_spi.faults import key_digest
from multiclouddb_verify.comparison import (
    GONE,
    UNKNOWN,
    DifferenceKind,
    Join,
    Seen,
    Verdict,
    is_certain,
    join,
    judge,
    judge_foreign,
    places_in,
)
from multiclouddb_verify.digests import ORDER_MASK, order_digests
from multiclouddb_verify.runs import HashRange
from multiclouddb_verify.sides import Sides
from multiclouddb_verify.source import Change, Follower, own_text
from multiclouddb_verify.state import Confirmed, Pending, after
from multiclouddb_verify.texts import Integers, digests_of

__all__ = ["Rounds"]

_CHUNK: Final = 50_000
"""The number of keys that are judged at once; the table is read again for each such part."""
_WRITTEN: Final = 10_000
"""The number of verdicts that are stored at once."""
_UNCHANGED: Final[Mapping[str, int]] = MappingProxyType({})
_MOST: Final = 4_000_000
"""The number of judged keys up to which the changes of other keys are left out."""
_FIRST: Final = 10_000
_AGAIN: Final = -1.0
"""Marks a key that was suspected, and has changed since."""
_NOT_READ: Final = "it differs, but may be the key of a change that cannot be decoded"
_NOT_SCANNED: Final = "the source has it, and its scan had records that cannot be decoded"


@attrs.define
class _Round:
    """What one round has found.

    Attributes:
        window: The position from which on a key that has changed is judged again.
        hashes: See `Rounds._judged`.
        waits: Whether a key has to be judged with a later position.
        is_new: Whether anything is known that was not known before.
        confirmable_at: When all suspected keys can be confirmed.
    """

    window: str
    hashes: Integers | None
    waits: bool = False
    is_new: bool = False
    confirmable_at: float = -inf


class Rounds:
    """The comparison of both sides.

    Args:
        sides: The two sides.
    """

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._own_known: dict[str, str] = {}
        self._settled_at = 0.0
        self._looked_at = self._wrong = 0

    def join(self) -> None:
        """Compare all digests, and store the keys that have to be judged one by one."""
        state = self._sides.state
        # The first round follows the stream from here on, because everything up to here has been read then.
        window = self._sides.next_position()
        self._sides.follower(state.fact("follow") or "").catch_up()
        with state.transaction():
            state.clear_pending()
            state.put("window", window)
        equal, unnamed = 0, list[Integers]()
        self._looked_at = self._wrong = 0
        self._sides.tell("compare")
        for part in state.ranges():
            found, rest = self._join(part)
            equal += found
            self._sides.listen()
            unnamed.append(rest)
        # Only the table has these keys, so only the table has their texts.
        self._name(np.sort(np.concatenate([np.empty(0, dtype=np.int64), *unnamed])))
        with state.transaction():
            state.put("equal", equal)
            state.give_up(self._sides.unread.items())

    def _join(self, part: HashRange) -> tuple[int, Integers]:
        """Compare the digests of one range, and store the keys whose texts the source or a change says.

        Return the number of equal documents, and the hashes of all other keys.
        """
        state = self._sides.state
        changes: dict[int, list[Change]] = {}
        for change in state.changes_between(part.low, part.high):
            if self._sides.chosen.sample is None or change[0] % self._sides.chosen.sample == 0:
                changes.setdefault(change[0], []).append(change)
        source, target = part.source, part.target
        suspects = target["order"] < 0
        if self._sides.facts.floor == ScanFloor.ROW:
            suspects |= self._foreign(source, target)
        result = join(
            (source["hash"], source["digest"]), (target["hash"], target["digest"]), suspects, changes
        )
        self._check(result)
        wanted = result.rest
        keys, settled = self._settled(part, changes)
        with state.transaction():
            inside = np.flatnonzero(places_in(wanted, source["hash"])[1])
            texts = part.source_keys(inside)
            named = {text: int(source["digest"][at]) for text, at in zip(texts, inside, strict=True)}
            for change in (each for group in changes.values() for each in group):
                named.setdefault(change[1], GONE)
            moved = {change[1] for group in changes.values() for change in group}
            left = {text: value for text, value in named.items() if text not in keys}
            state.add_pending(each for each in left.items() if each[0] in moved)
            # A key that has not changed was judged here for the first time.
            still = (each for each in left.items() if each[0] not in moved)
            state.add_pending(still, suspected_at=self._sides.clock())
        named_hashes = np.concatenate([source["hash"][inside], np.fromiter(changes, np.int64, len(changes))])
        return result.equal + settled, wanted[~places_in(np.sort(named_hashes), wanted)[1]]

    def _check(self, result: Join) -> None:
        """Stop if the table is the copy of another collection, as the first keys show."""
        if self._looked_at >= _FIRST:
            return
        self._looked_at += result.still + result.ghosts
        self._wrong += result.different + result.ghosts
        self._sides.check_foreign(self._wrong, self._looked_at)

    def _settled(self, part: Any, changes: Mapping[int, list[Change]]) -> tuple[set[str], int]:
        """Return the changed keys whose rows have one of their versions, and the number of documents."""
        if not changes:
            return set(), 0
        moved = np.fromiter(changes, dtype=np.int64, count=len(changes))
        rows = part.target[np.isin(part.target["hash"], moved)]
        found: dict[int, list[tuple[int, int]]] = {}
        for row in rows.tolist():
            found.setdefault(row[0], []).append((row[1], row[2]))
        keys, documents = set[str](), 0
        orders = [change[2] for group in changes.values() for change in group]
        marks = dict(zip(orders, order_digests(orders).tolist(), strict=True))
        for hashed, group in changes.items():
            rows_here = found.get(hashed, [])
            if len(rows_here) != 1 or len({change[1] for change in group}) != 1:
                continue
            value, mark = rows_here[0]
            mark &= ORDER_MASK
            if any(change[3] == value and marks[change[2]] == mark for change in group):
                keys.add(group[0][1])
                documents += value != GONE
        return keys, documents

    def _foreign(self, source: Any, target: Any) -> np.ndarray[Any, Any]:
        """Mark rows of the target whose `order_key` is not that of the source's row."""
        if not len(source):
            return np.zeros(len(target), dtype=bool)
        order = np.argsort(source["hash"], kind="stable")
        at = np.searchsorted(source["hash"][order], target["hash"])
        at = order[np.minimum(at, len(order) - 1)]
        same = (source["hash"][at] == target["hash"]) & (source["order"][at] != target["order"])
        return np.asarray(same)

    def _name(self, hashes: np.ndarray[Any, Any]) -> None:
        """Find the texts of keys in the table by their hashes."""
        if not len(hashes):
            return

        def read() -> None:
            for batch, hashed, _ in self._sides.batches():
                chosen = pa.array(places_in(hashes, hashed)[1])
                found = set(batch.column("key").filter(chosen).to_pylist())
                with self._sides.state.transaction():
                    still = ((name, GONE) for name in found)
                    self._sides.state.add_pending(still, suspected_at=self._sides.clock())

        self._sides.retried(read)

    def run(self) -> None:
        """Judge keys until none is left, or none has been settled for `patience_seconds`."""
        self._settled_at, wait = self._sides.clock(), 0.0
        self._find_spellings()
        while left := self._sides.state.pending_count():
            self._sides.tell("rounds", left=left)
            next_at, is_new = self._round()
            count = self._sides.state.pending_count()
            if is_new:
                self._settled_at, wait = self._sides.clock(), 0.0
            elif self._sides.clock() - self._settled_at > max(self._sides.patience, 0.0):
                self._sides.state.put("settled_at", self._settled_at)
                return
            if count:
                wait = min(2 * wait or 0.05, 5.0)
                self._sides.pause(max(wait if next_at is None else next_at - self._sides.clock(), 0.0))

    def _round(self) -> tuple[float | None, bool]:
        """Judge all keys once.

        Return when all differences can be confirmed, if every key is suspected, and whether anything is new.
        """
        state = self._sides.state
        state.add("rounds", 1)
        # The window begins at the K of the round before: everything up to it was read before, and the rows
        # contain everything up to the new K.
        token = self._sides.next_position()
        round_ = _Round(state.fact("window") or "", self._judged())
        self._in_parts(lambda part: self._judge(part, round_))
        state.put("window", token)
        is_known = not round_.waits and round_.confirmable_at > -inf
        return (round_.confirmable_at if is_known else None), round_.is_new

    def _judge(self, part: Sequence[Pending], round_: _Round) -> None:
        """Judge some of the keys once."""
        state, settle = self._sides.state, self._sides.facts.settle_seconds
        found = self._sides.rows_of([key for key, *_ in part]).seen
        ceiling = self._ceiling(part, found)
        # The window reaches at least as far as the rows that are compared.
        moved = set[str]()
        follower = self._sides.follower(round_.window, round_.hashes, moved)
        follower.catch_up()
        versions = self._versions(part)
        # A look-up below adds no change: a repair compares with the last one that the stream has shown.
        changed = {key: max(each) for key, each in versions.items()}
        unknown = self._complete(versions, found, moved, follower)
        spellings = state.spellings(part[0][0], part[-1][0])
        unknown |= self._not_scanned(part, versions, found, spellings)
        own, unread = self._own_orders(part, found)
        unknown |= unread
        # The last version of a key is not known if a change that cannot be decoded is, or may be, of it.
        is_any, unread_keys = state.fact("unread_changes") is not None, set(state.unread_keys())
        now = self._sides.clock()
        for start in range(0, len(part), _WRITTEN):
            settled, suspected = list[str](), list[tuple[str | None, float, str]]()
            confirmed, equal = list[Confirmed](), 0
            for key, scanned, kind, since in part[start : start + _WRITTEN]:
                if key in unknown:
                    continue
                rows, known = found.get(key, ()), versions.get(key, _UNCHANGED)
                has_own_text = key not in spellings or scanned != GONE or known
                verdict = judge(
                    rows, known, scanned, moved=key in moved,
                    ceiling=ceiling, own=own.get(key), exact=self._sides.facts.floor != ScanFloor.HIGH,
                ) if has_own_text else judge_foreign(rows)  # fmt: skip
                if verdict is Verdict.EQUAL:
                    settled.append(key)
                    equal += any(row.digest != GONE for row in rows)
                elif verdict is Verdict.WAIT:
                    round_.waits = True
                    if kind is not None:
                        suspected.append((None, _AGAIN, key))
                elif kind is None:
                    round_.is_new = round_.is_new or since != _AGAIN
                    suspected.append((verdict.value, now, key))
                    round_.confirmable_at = max(round_.confirmable_at, now + settle)
                elif now - since < settle:
                    round_.confirmable_at = max(round_.confirmable_at, since + settle)
                elif (is_any or key_digest(key) in unread_keys) and not is_certain(verdict, rows, ceiling):
                    unknown[key] = _NOT_READ
                else:
                    expected = known[max(known)] if known else scanned
                    orders = tuple(row.order_key for row in rows)
                    last = changed.get(key, "")
                    confirmed.append(
                        Confirmed(key, DifferenceKind(verdict.value), orders, scanned, expected, last)
                    )
            round_.is_new = round_.is_new or bool(settled or confirmed)
            with state.transaction():
                state.settle(settled)
                state.suspect(suspected)
                state.confirm(confirmed)
                state.add("equal", equal)
        round_.is_new = round_.is_new or bool(unknown)
        with state.transaction():
            state.give_up(unknown.items())

    def _versions(self, part: Sequence[Pending]) -> dict[str, dict[str, int]]:
        """Return the versions of the keys that have changed."""
        hashes = digests_of([key.encode() for key, *_ in part]).tolist()
        found = (
            (key, self._sides.state.versions(each, key)) for each, (key, *_) in zip(hashes, part, strict=True)
        )
        return {key: versions for key, versions in found if versions}

    def follow_up(self) -> None:
        """Read the changes up to now of the keys that are judged or differ."""
        state = self._sides.state
        self._sides.follower(state.fact("judged") or state.fact("follow") or "", self._judged()).catch_up()

    def _find_spellings(self) -> None:
        """Store which keys to judge are texts that the sink would not write.

        Changes of the sink's own texts of these keys are kept from the first round on.
        """

        def find(part: Sequence[Pending]) -> None:
            own = ((key, own_text(key)) for key, *_ in part)
            with self._sides.state.transaction():
                self._sides.state.add_spellings(each for each in own if each[0] != each[1])

        self._in_parts(find)

    def _judged(self) -> Integers | None:
        """Return the hashes of the keys that are judged or differ; None if there are too many to keep."""
        found, part = list[Integers](), list[bytes]()
        for count, key in enumerate(self._sides.state.judged()):
            if count == _MOST:
                return None
            part.append(key.encode())
            if len(part) == _CHUNK:
                found.append(digests_of(part))
                part.clear()
        return np.sort(np.concatenate([*found, digests_of(part)]))

    def _complete(
        self,
        versions: Mapping[str, dict[str, int]],
        rows: Mapping[str, Sequence[Seen]],
        moved: set[str],
        follower: Follower,
    ) -> dict[str, str]:
        """Look up the documents of changes that did not contain them, and of rows that are newer.

        Return the keys of which the source does not say what it has, with the reasons.
        """
        for key, found in versions.items():
            newest = max((row.order_key for row in rows.get(key, ())), default="")
            is_later = self._sides.facts.floor is ScanFloor.HIGH and newest > max(found)
            # Google's emulator of Spanner can deliver a key's older change in another partition after K.
            if is_later and key not in moved:
                found[newest] = UNKNOWN
        lacking = {
            key: found for key, found in versions.items() if key not in moved and found[max(found)] == UNKNOWN
        }
        if not lacking:
            return {}
        unknown = dict[str, str]()
        for events, unread in self._sides.events(list(lacking)):
            for key, value in zip(events, self._sides.digests([*events.values()]).tolist(), strict=True):
                lacking[key][max(lacking[key])] = value
            unknown |= unread
        # What was looked up may be newer than the change: then the key has moved.
        follower.catch_up()
        return unknown

    def _not_scanned(
        self,
        part: Sequence[Pending],
        versions: Mapping[str, dict[str, int]],
        rows: Mapping[str, Sequence[Seen]],
        spellings: Mapping[str, str | None],
    ) -> dict[str, str]:
        """Return keys of the table alone that the source may have in a record that cannot be decoded."""
        if not self._sides.state.unreadable():
            return {}
        asked = [
            key
            for key, scanned, *_ in part
            if scanned == GONE
            and key not in versions
            and key not in spellings
            and any(row.digest != GONE for row in rows.get(key, ()))
        ]
        unknown = dict[str, str]()
        for events, unread in self._sides.events(asked):
            unknown |= unread | {key: _NOT_SCANNED for key, event in events.items() if event is not None}
        return unknown

    def _ceiling(self, part: Sequence[Pending], found: Mapping[str, Sequence[Seen]]) -> str:
        """Return an `order_key` that is above that of each change before the rows were read."""
        if self._sides.facts.floor is not ScanFloor.HIGH:
            return self._sides.facts.ceiling
        floor = self._sides.state.fact("floor") or ""
        if all(row.order_key <= floor for key, *_ in part for row in found.get(key, ())):
            return floor
        return self._sides.source.floor()

    def _in_parts(self, use: Callable[[Sequence[Pending]], None]) -> None:
        """Call a function with all keys to judge, part by part; only one part is in memory."""
        first: str | None = ""
        while first is not None:
            first = self._after_part(first, use)

    def _after_part(self, first: str, use: Callable[[Sequence[Pending]], None]) -> str | None:
        """Call the function with the part that begins here; return where the next one begins."""
        part = self._sides.state.pending(first, _CHUNK)
        if not part:
            return None
        use(part)
        return after(part[-1][0])

    def _own_orders(
        self, part: Sequence[Pending], found: Mapping[str, Sequence[Seen]]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Read the `order_key` of rows that have their own, where it decides whether the row is blocked.

        Return it by key; and the keys for which the source does not say it, with the reasons.
        """
        if self._sides.facts.floor != ScanFloor.ROW:
            return {}, {}
        asked = [
            key
            for key, scanned, _, _ in part
            if key not in self._own_known and [row.digest for row in found.get(key, ())] == [scanned]
        ]
        unknown: dict[str, str] = {}
        for events, unread in self._sides.events(asked):
            unknown |= unread
            self.know({key: "" if event is None else event.order_key for key, event in events.items()})
        return {key: order for key, order in self._own_known.items() if order}, unknown

    def know(self, own: Mapping[str, str]) -> None:
        """Keep the `order_key` of rows that were looked up, where each row has its own.

        They stay true: a later change of the key is one of its versions.
        """
        if self._sides.facts.floor == ScanFloor.ROW:
            if len(self._own_known) > _CHUNK:
                self._own_known.clear()
            self._own_known |= own
