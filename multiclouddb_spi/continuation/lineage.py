"""Tracks the partitions of one feed: which are read, which wait, and which may still have children.

A lineage is the part of a token that changes. Each partition of the service in it is in one of three stages:

    READ   it is read from its position
    WAIT   a parent was not read to its end yet
    END    it was read to its end, and may have more children than are known (only where naming can be late)

Four transitions change it. A child starts as soon as nothing is left to wait for:

    took, ended   records of a partition were delivered, or all of them
    lost          retention has removed partitions or positions: all of them leave or move at once
    found         partitions exist that no entry leads to; or an ended partition has more children
    start         a child waits only for parents that nobody has named, and every other entry has passed the
                  moment at which the child began: such a parent can no longer appear (asked once a call)

A partition that is read to its end leaves the lineage, and its children are entries. Nothing is lost by this,
because what was read can still be seen from the entries: a partition was read if and only if it is an
ancestor of an entry, through parents for which the entry does not wait. Two kinds were certainly not read to
their end: a partition that is open, and one without children that is no entry, because an end without
children stays until the feed is over.

The promises C1, C2 and C3 in `multiclouddb_spi.contract` make this possible.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
from attrs import frozen

from multiclouddb_api import ErrorCategory
from multiclouddb_spi.batch import Awaiting, Child, Drained, Outcome, Scanned
from multiclouddb_spi.continuation.entry import (
    AnyEntry,
    Audited,
    Entry,
    NextSearch,
    Plan,
    Stage,
    audited_from_json,
    audited_to_json,
    entry_from_json,
    entry_to_json,
)
from multiclouddb_spi.continuation.uncovered import (
    NotProvableError,
    Uncovered,
    followers,
    may_hide,
    uncovered,
)
from multiclouddb_spi.contract import Seed, Survey
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.faults import ProviderFault
from multiclouddb_spi.segment import Segment, plan_id_of


class Rules(Protocol):
    """What a lineage asks of its feed; all are pure (`Feed`)."""

    @property
    def names_late(self) -> bool:
        """See `Feed.names_late`."""

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """See `Feed.join`."""

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """See `Feed.compare`."""

    def moment(self, cursor: Cursor) -> int | None:
        """See `Feed.moment`."""


class _Inspected:
    """The rules of a lineage that is only looked at: no partition of it starts or is lost."""

    names_late = False

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        raise AssertionError(f"the partition {child_id} starts while a lineage is only inspected: {cursors}")

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        return None

    def moment(self, cursor: Cursor) -> int | None:
        return None


INSPECTED: Final[Rules] = _Inspected()
"""For a lineage that is only looked at."""


@frozen
class Loss:
    """A position that retention has removed.

    Attributes:
        partition_id: The partition.
        position: Everything up to this position was delivered; None if the partition was not read yet.
        left: Where reading goes on: the partition's own oldest position, or what may descend from it.
        everything: True if the whole feed begins again there, because it is not known what descends from a
            lost partition.
    """

    partition_id: str
    position: Cursor
    left: tuple[Seed, ...] = ()
    everything: bool = False

    @property
    def is_start(self) -> bool:
        """True if the partition exists, and only its first records may be lost, before it was listed."""
        return self.position is None and any(seed.partition_id == self.partition_id for seed in self.left)


class Lineage:
    """The partitions of one feed, in the order in which they are read. Not thread-safe.

    Attributes:
        rules: As passed.
        audited: As passed.
        root: As passed.
    """

    __slots__ = (
        "_ends", "_entries", "_plan_id", "_segments", "_waiting_for", "audited", "root", "rules",
    )  # fmt: skip

    def __init__(
        self,
        entries: Iterable[AnyEntry],
        rules: Rules,
        audited: Audited | None = None,
        root: str | None = None,
    ) -> None:
        self.rules, self.audited, self.root = rules, audited, root
        self._entries = dict[str, AnyEntry]()
        self._waiting_for = dict[str, set[str]]()
        self._segments = dict[str, None]()
        self._ends = dict[str, None]()
        self._plan_id: str | None = None
        for entry in entries:
            self._put(entry)

    @classmethod
    def from_seeds(
        cls, seeds: Sequence[Seed], rules: Rules, audited: Audited | None = None, root: str | None = None
    ) -> Lineage:
        """Build the lineage of a start; a parent that is not a seed no longer exists."""
        made = cls((), rules, audited, root)
        made._add(seeds)
        return made

    @classmethod
    def from_json(cls, value: Any, rules: Rules) -> Lineage:
        """Rebuild a lineage from the value that `to_json` returned."""
        if not (isinstance(value, dict) and isinstance(value.get("p"), list)):
            raise InvalidCursor("the list of partitions is missing")
        audited = audited_from_json(value["a"]) if "a" in value else None
        entries = list(map(entry_from_json, value["p"]))
        if sum(isinstance(entry, Plan) for entry in entries) > 1:
            raise InvalidCursor("it contains two snapshots")
        if len({entry.partition_id for entry in entries}) != len(entries):
            raise InvalidCursor("a partition is listed twice")
        made = cls(entries, rules, audited)
        if (plan := made.plan) is not None and any(
            plan_id_of(name) != plan_id_of(plan.partition_id) for name in made._segments
        ):
            raise InvalidCursor("a segment belongs to another snapshot")
        made.check_waits()
        return made

    def to_json(self) -> Cursor:
        """Return the lineage as JSON; a partition that is read takes its id, cursor and six characters."""
        value: dict[str, Cursor] = {"p": list(map(entry_to_json, self._entries.values()))}
        if self.audited is not None:
            value["a"] = audited_to_json(self.audited)
        return value

    def copy(self) -> Lineage:
        """Return a lineage that can be changed without changing this one."""
        return Lineage(self._entries.values(), self.rules, self.audited, self.root)

    def check_waits(self) -> None:
        """Refuse partitions that wait for each other, because they would never be read."""
        waits = {entry.partition_id: entry.waits for entry in self.waiting()}
        free = [name for name, parents in waits.items() if waits.keys().isdisjoint(parents)]
        left = {name: len(waits.keys() & set(parents)) for name, parents in waits.items()}
        for name in free:
            for child in self._waiting_for.get(name, ()):
                left[child] -= 1
                if not left[child]:
                    free.append(child)
        if len(free) < len(waits):
            raise InvalidCursor("partitions wait for each other")

    # -- What there is

    def __iter__(self) -> Iterator[AnyEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, partition_id: object) -> bool:
        return partition_id in self._entries

    def at(self, partition_id: str) -> AnyEntry | None:
        """Return the entry of a partition or of the plan, or None."""
        return self._entries.get(partition_id)

    def active(self) -> list[Entry]:
        """The partitions to read, in the order of the queue."""
        return [each for each in self._entries.values() if isinstance(each, Entry) and each.stage is _READ]

    def waiting(self) -> list[Entry]:
        """The partitions that wait for a parent."""
        if not self._waiting_for:
            return []
        return [each for each in self._entries.values() if isinstance(each, Entry) and each.stage is _WAIT]

    def ends(self) -> list[Entry]:
        """The partitions that were read to their end or lost, and may have more children than are known."""
        return [each for name in self._ends if isinstance(each := self._entries[name], Entry)]

    def ending(self, partition_id: str) -> Entry | None:
        """Return the entry of a partition that was read to its end, or None."""
        entry = self._entries.get(partition_id)
        return entry if isinstance(entry, Entry) and entry.stage is _END else None

    def listed(self) -> list[Entry]:
        """The entries that are partitions of the service."""
        return [each for each in self._entries.values() if isinstance(each, Entry) and each.listed]

    def cursor(self, partition_id: str) -> Cursor:
        """Return the position of a partition that is read or ended, or the part of a plan that is not cut."""
        return self._entries[partition_id].cursor

    def reading(self, partition_id: str) -> Entry | None:
        """Return the entry of a partition or segment that is read, else None."""
        entry = self._entries.get(partition_id)
        return entry if isinstance(entry, Entry) and entry.stage is _READ else None

    def is_quiet(self, quiet: Collection[str]) -> bool:
        """Return whether nothing is left to read: every partition is `quiet`, none waits, all are known."""
        if self._plan_id is not None or any(end.is_unnamed for end in self.ends()) or self.waiting():
            return False
        if self.audited is not None and self.audited.is_unclear:
            return False
        return not self.is_over() and all(each.partition_id in quiet for each in self.active())

    def is_over(self, final: Collection[str] = ()) -> bool:
        """Return whether every partition was read to an end that is final, as the token or `final` says."""
        ends = self.ends()
        return len(ends) == len(self) and all(end.final or end.partition_id in final for end in ends)

    def stands_like(self, other: Lineage) -> bool:
        """Return whether both contain the same partitions at the same positions, however often searched."""
        if self._entries.keys() != other._entries.keys():
            return False
        return all(_place(each) == _place(other._entries[name]) for name, each in self._entries.items())

    # -- The queue

    def rotate(self, partition_ids: Iterable[str]) -> None:
        """Move partitions that were just read to the back of the queue, in this order."""
        for name in partition_ids:
            if (entry := self._entries.pop(name, None)) is not None:
                self._entries[name] = entry

    def failed_last(self, partition_id: str) -> None:
        """Mark this partition: the next call reads it before all others."""
        entry = self._entries[partition_id]
        if isinstance(entry, Entry) and entry.stage is _READ:
            self._entries[partition_id] = attrs.evolve(entry, failed_last=True)

    # -- Transition: took, ended

    def took(self, partition_id: str, cursor: Cursor) -> None:
        """Record that everything up to the cursor was delivered; this also clears `failed_last`."""
        read = self.reading(partition_id)
        if read is not None and read.said[0] is cursor and not read.failed_last:
            return
        entry = self._entries[partition_id]
        listed = entry.listed if isinstance(entry, Entry) else True
        self._entries[partition_id] = Entry(partition_id, _READ, (cursor,), listed=listed)

    def ended(self, partition_id: str, children: Sequence[Child], *, complete: bool) -> list[str]:
        """Record that a partition was read to its end, or that more of its children are known."""
        entry = self._entries[partition_id]
        assert isinstance(entry, Entry)
        fresh = self.fresh(partition_id, children)
        self._check_children(entry, fresh)
        for child in fresh:
            self._name(entry, child)
        freed = sorted(self._waiting_for.get(partition_id, ()))
        if complete:
            self._remove(partition_id)
        else:
            known = dict.fromkeys((*entry.children, *(child.partition_id for child in fresh), *freed))
            self._put(attrs.evolve(entry, stage=_END, children=tuple(known), waits=(), failed_last=False))
        return self.release(partition_id)

    def fresh(self, partition_id: str, children: Sequence[Child]) -> list[Child]:
        """Return the children that an ending partition has not named before, each once."""
        named = end.children if (end := self.ending(partition_id)) is not None else ()
        return list({one.partition_id: one for one in children if one.partition_id not in named}.values())

    def _check_children(self, entry: Entry, children: Sequence[Child]) -> None:
        for child in children:
            if entry.partition_id not in child.parents:
                raise _broken(
                    f"{entry.partition_id} names {child.partition_id}, but is not among its parents"
                )
            self._check_parents(child)

    def _check_parents(self, named: Child | Seed) -> None:
        if self.rules.names_late and len(named.parents) > 1:
            raise _broken(
                f"{named.partition_id} has several parents, but the feed says that it names partitions "
                "late (Feed.names_late), so each may have one parent at most (C1)"
            )

    def _name(self, parent: Entry, child: Child) -> None:
        entry = self._entries.get(child.partition_id)
        if entry is None:
            others = (one for one in child.parents if one != parent.partition_id)
            waits = (*others, parent.partition_id)
            self._put(Entry(child.partition_id, _WAIT, (child.cursor,), waits, listed=parent.listed))
        elif isinstance(entry, Entry) and entry.stage is _WAIT and child.cursor not in entry.said:
            self._put(attrs.evolve(entry, said=(*entry.said, child.cursor)))

    # -- Transition: lost

    def gone(self, survey: Survey) -> dict[str, Entry]:
        """Return the entries of which retention has removed something that was not read.

        Not among them are ended partitions with a known child, which proves that they were read (the search
        finds their other children, except in a feed of one partition), and ends that are final.
        """
        found = (each for each in self.listed() if each.partition_id in survey.gone and not _is_lost(each))
        return {
            each.partition_id: each
            for each in found
            if not (each.final or (each.children and self.root is None))
        }

    def lost(self, survey: Survey, expired: Collection[str] = frozenset()) -> list[Loss]:
        """Apply what retention has removed to all entries at once."""
        gone = self.gone(survey)
        if survey.heirs is not None:
            if self.root is not None:
                raise NotProvableError  # an heir may descend from somebody else's partition
            return self._cut(gone, survey.heirs)
        if gone and self.rules.names_late and not self.is_shown_by(survey):
            return []  # a later listing decides
        follows = followers(survey, gone) if self.rules.names_late else {}
        tops = self._uncovered(survey, gone) if gone else None
        if tops is not None and self.root is not None and not all(follows.values()):
            if tops.hidden:
                return []  # what follows may be listed soon
            raise NotProvableError
        losses = self._move(survey, expired)
        if tops is None:
            return losses
        if self.rules.names_late:
            losses += self._stranded(survey, tops, gone)
        waited = {parent: (name,) for name, each in gone.items() for parent in each.waits}
        for name in gone:
            self._remove(name)
        started = [child for name in gone for child in self.release(name)]
        added = self._add(tops.seeds, tops.unread)
        # What follows a lost one may be listed later: it stays, so that a look or the search finds it.
        proved = not any(one in survey.gone and one not in gone for seed in added for one in seed.parents)
        if not proved and self.root is None:
            self._forget_lost()
        for name, children in follows.items():
            if self.root is not None or proved:
                known = dict.fromkeys((*children, *waited.get(name, ())))
                here = tuple(one for one in known if one in self or one in follows)
                self._put(Entry(name, _END, (), children=here))
        left = (*added, *(Seed(child, (), self.cursor(child)) for child in started))
        return losses + [Loss(each.partition_id, each.cursor, left) for each in gone.values()]

    @property
    def is_doubtful(self) -> bool:
        """Whether a later listing may show that it is not known what follows a lost partition."""
        return self.root is not None and any(map(_is_lost, self.ends()))

    def _move(self, survey: Survey, expired: Collection[str]) -> list[Loss]:
        losses = []
        for partition in survey.present:
            name, oldest = partition.partition_id, partition.oldest
            entry = self._entries.get(name)
            if oldest is None or not (isinstance(entry, Entry) and entry.stage is _READ and entry.listed):
                continue
            if name in expired or self.rules.compare(entry.said[0], oldest) == -1:
                self._put(attrs.evolve(entry, said=(oldest,), failed_last=False))
                losses.append(Loss(name, entry.said[0], (Seed(name, (), oldest),)))
        return losses

    def _cut(self, gone: Mapping[str, Entry], heirs: Sequence[Seed]) -> list[Loss]:
        """Begin again at the oldest moment, because nothing shows which partitions were read to their end."""
        losses = [Loss(name, each.cursor, tuple(heirs), everything=True) for name, each in gone.items()]
        begin = []
        for seed in heirs:
            entry = self._entries.get(seed.partition_id)
            if isinstance(entry, Entry):
                position = self.rules.join(seed.partition_id, entry.said)
                order = self.rules.compare(position, seed.cursor)
                if order == -1:
                    losses.append(Loss(seed.partition_id, position, (seed,)))
                elif order is not None:
                    seed = attrs.evolve(seed, cursor=position)
            begin.append(seed)
        for each in self.listed():
            self._remove(each.partition_id)
        self._add(begin)
        return losses

    # -- Transition: found

    def found(self, survey: Survey, *, skips: bool) -> tuple[list[Seed], list[Loss]]:
        """Add the partitions that no entry leads to; the caller applies losses first.

        Raises:
            NotProvableError: Raised before anything changes.
        """
        if not self.is_shown_by(survey):
            return [], []
        lost = {end.partition_id: end for end in self.ends() if _is_lost(end)}
        tops = self._uncovered(survey, lost)
        losses = self._stranded(survey, tops, lost)
        if losses and not skips:
            return [], losses
        added = self._add(tops.seeds, tops.unread)
        if self.root is not None:
            for end in filter(_is_lost, self.ends()):
                known = dict.fromkeys((*end.children, *(seed.partition_id for seed in added)))
                self._put(attrs.evolve(end, children=tuple(known)))
        elif losses:
            self._forget_lost()
        return added, losses

    def searched(self, survey: Survey) -> None:
        """Forget the ended partitions that no longer exist, after all that is listed was compared with them.

        How often anybody has looked for their children is no matter: the service removes a partition long
        after the last child was named.
        """
        for end in self.ends():
            if end.partition_id in survey.gone and end.children and end.said:
                self._remove(end.partition_id)

    def is_unclear(self, survey: Survey) -> bool:
        """Return whether a later listing may show partitions that no entry leads to (`may_hide`)."""
        # In a feed of one partition, they may belong to another reader.
        return self.root is None and may_hide(survey, self._held())

    def is_shown_by(self, survey: Survey) -> bool:
        """Return whether a survey has every entry; the ancestors of a missing one would look unread."""
        shown = {each.partition_id for each in survey.present} | survey.gone.keys()
        return all(each.partition_id in shown or _is_lost(each) for each in self.listed())

    def _stranded(self, survey: Survey, tops: Uncovered, lost: Iterable[str]) -> list[Loss]:
        """Return what was lost before it was listed, beside the partitions in `lost`.

        That is each partition of which only children exist, and the start of each child whose parent was read
        and is gone: nothing shows whether the child had records as old as its parent's end.
        """
        parents = dict.fromkeys(parent for seed in tops.seeds for parent in seed.parents)
        left, known = tuple(tops.seeds), tops.read | self._entries.keys()
        unseen = [Loss(name, None, left) for name in parents if name in survey.gone and name not in known]
        read = (tops.read | {end.partition_id for end in self.ends() if end.said}).difference(lost)
        late = [
            seed for seed in tops.seeds if any(one in survey.gone and one in read for one in seed.parents)
        ]
        return unseen + [Loss(seed.partition_id, None, (seed,)) for seed in late]

    def _forget_lost(self) -> None:
        """Forget lost partitions, after a partition was added that may follow any of them."""
        for end in self.ends():
            if _is_lost(end):
                self._remove(end.partition_id)

    def looked(self, survey: Survey, asked: Collection[str], most: int) -> tuple[list[Child], list[str]]:
        """Add the children of ended partitions, after the service was asked for more of them."""
        named = dict[str, list[Child]]()
        for each in survey.present:
            for parent in each.parents:
                if parent in self._ends and each.oldest is not None:
                    child = Child(each.partition_id, each.parents, each.oldest)
                    named.setdefault(parent, []).append(child)
        added, started = list[Child](), list[str]()
        for end in self.ends():
            name = end.partition_id
            fresh = self.fresh(name, named.get(name, ()))
            is_gone = name in survey.gone and not _is_lost(end)
            if is_gone:
                # Only a listing tells its further children now, and their first records may be gone too. The
                # search finds that out, and is due at once: as often as this is asked, not at each call. One
                # that waits for what an earlier one lacked comes soon anyway.
                audited, is_due = self.audited, bool(fresh) or (name in asked and not end.final)
                if audited is not None and is_due and not audited.is_unclear:
                    self.audited = attrs.evolve(audited, at=0, next=NextSearch.SOON)
                fresh = []
            # A child that comes late begins the watch for its siblings.
            looks = 0 if fresh else end.looks + (name in asked)
            self._put(attrs.evolve(end, looks=looks))
            enough = looks >= most and not is_gone  # else it leaves with the search
            over = not fresh and enough and (bool(end.children) or self._may_leave(end))
            added += fresh
            if fresh or over:
                started += self.ended(name, fresh, complete=over)
        return added, started

    def _may_leave(self, end: Entry) -> bool:
        """Return whether a lost partition may leave without a child.

        Something else has to stay, and an end with known children will leave too: else a feed would be over,
        or idle, without a word.
        """
        others = (each for each in self.listed() if each.partition_id != end.partition_id)
        return _is_lost(end) and any(
            each.stage is not _END or not each.children or _is_lost(each) for each in others
        )

    def close(self, final: Collection[str], *, over: bool) -> list[str]:
        """Record which ended partitions will have no more children; return those of them that leave."""
        over = over and self.is_over(final)
        for end in self.ends():
            # One without a child shows that it was read: it stays until nothing that exists is left to read.
            if over or (end.children and end.partition_id in final):
                self._remove(end.partition_id)
            elif end.partition_id in final:
                self._put(attrs.evolve(end, final=True))
        return [name for name in final if name not in self._entries]

    def _uncovered(self, survey: Survey, lost: Mapping[str, Entry]) -> Uncovered:
        held = {name: each for name, each in self._held().items() if name not in lost}
        return uncovered(survey, held, lost, self.root)

    def _held(self) -> dict[str, Entry]:
        return {each.partition_id: each for each in self.listed() if not _is_lost(each)}

    # -- Transition: start

    def release(self, partition_id: str) -> list[str]:
        """End each wait for an entry; return the partitions that start."""
        started = []
        for name in sorted(self._waiting_for.pop(partition_id, ())):
            entry = self._entries.get(name)
            if isinstance(entry, Entry) and entry.stage is _WAIT:
                left = tuple(one for one in entry.waits if one != partition_id)
                self._entries[name] = attrs.evolve(entry, waits=left)
                if not left and self._start(name):
                    started.append(name)
        return started

    def start_passed(self) -> list[str]:
        """Start children that wait only for parents which can no longer appear; return them.

        Such a parent began before its child, and descends from an entry. So it cannot appear after every
        other entry has passed the moment at which the child began. Without moments nothing starts here.
        """
        alone = [each for each in self.waiting() if not any(one in self._entries for one in each.waits)]
        if not alone:
            return []
        moments = {each.partition_id: self._moment(each) for each in self.listed()}
        known = [moment for moment in moments.values() if moment is not None]
        if len(known) < len(moments) > 1:
            return []
        first = min(known, default=None)
        passed = sorted(name for each in alone if moments[name := each.partition_id] == first)
        return [name for name in passed if self._start(name)]

    def _moment(self, entry: Entry) -> int | None:
        moments = [self.rules.moment(cursor) for cursor in entry.said]
        known = [moment for moment in moments if moment is not None]
        return min(known) if known and len(known) == len(moments) else None

    def _start(self, partition_id: str) -> bool:
        """Read a child from where its parents say; return False if it waits for a scan instead."""
        entry = self._entries[partition_id]
        assert isinstance(entry, Entry)
        plan = self.plan
        if plan is not None and plan.holds and entry.listed:
            self._put(attrs.evolve(entry, waits=(plan.partition_id,)))
            return False
        cursor = self.rules.join(partition_id, entry.said)
        del self._entries[partition_id]  # it is read after all others
        self._put(Entry(partition_id, _READ, (cursor,), listed=entry.listed))
        return True

    # -- Entries

    def _add(self, seeds: Sequence[Seed], unread: Container[str] = ()) -> list[Seed]:
        """Add partitions; each waits for those of its parents that are entries or will be read (`unread`)."""
        fresh = [seed for seed in seeds if seed.partition_id not in self._entries]
        for seed in fresh:
            self._check_parents(seed)
        new = {seed.partition_id for seed in fresh}
        ended = {seed.partition_id for seed in fresh if seed.ended}
        for seed in fresh:
            name = seed.partition_id
            if seed.ended:
                children = tuple(one.partition_id for one in fresh if name in one.parents)
                self._put(Entry(name, _END, (seed.cursor,), children=children))
                continue
            for parent in seed.parents:
                end = self.ending(parent)
                if end is not None and name not in end.children:
                    self._put(attrs.evolve(end, children=(*end.children, name)))
            waits = tuple(
                one
                for one in seed.parents
                if one not in self._ends and one not in ended
                if one in self._entries or one in new or one in unread
            )
            entry = Entry(name, _WAIT, (seed.cursor,), waits)
            self._put(entry if waits else Entry.read(name, seed.cursor))
        self.hold_for_scan(new - ended)
        return fresh

    def _put(self, entry: AnyEntry) -> None:
        name = entry.partition_id
        self._entries[name] = entry
        if isinstance(entry, Plan):
            self._plan_id = name
            return
        if entry.stage is _READ and not entry.listed:
            self._segments[name] = None
        if entry.stage is _END:
            self._ends[name] = None
        for parent in entry.waits:
            self._waiting_for.setdefault(parent, set()).add(name)

    def _remove(self, partition_id: str) -> None:
        entry = self._entries.pop(partition_id)
        self._ends.pop(partition_id, None)
        self._segments.pop(partition_id, None)
        if isinstance(entry, Entry):
            for parent in entry.waits:
                self._waiting_for.get(parent, set()).discard(partition_id)
            if entry.listed and self.audited is not None and self.audited.next is NextSearch.REGULAR:
                self.audited = attrs.evolve(self.audited, next=NextSearch.SOON)

    # -- The scan of a snapshot: one entry stays until every segment is cut and read

    @property
    def plan(self) -> Plan | None:
        """The plan of the unfinished scan, or None."""
        entry = None if self._plan_id is None else self._entries.get(self._plan_id)
        return entry if isinstance(entry, Plan) else None

    def is_segment(self, partition_id: str) -> bool:
        """Return whether an entry is a segment of a scan."""
        return partition_id in self._segments

    @property
    def segment_count(self) -> int:
        """The number of segments that are currently read."""
        return len(self._segments)

    def begin_scan(self, plan: Plan) -> None:
        """Add a scan; if it holds the stream, every partition of the lineage waits for it."""
        stream = list(self._entries)
        self._put(plan)
        self.hold_for_scan(stream)

    def hold_for_scan(self, partition_ids: Iterable[str]) -> None:
        """Make partitions wait for the scan, if changes are read only after it."""
        plan = self.plan
        if plan is None or not plan.holds:
            return
        for name in partition_ids:
            entry = self._entries[name]
            if isinstance(entry, Entry) and entry.stage is not _END:
                self._put(attrs.evolve(entry, stage=_WAIT, waits=(*entry.waits, plan.partition_id)))

    def change_plan(self, **changes: Any) -> None:
        """Change fields of the plan, if there is one."""
        if (plan := self.plan) is not None:
            self._entries[plan.partition_id] = attrs.evolve(plan, **changes)

    def check_end(self, partition_id: str, outcome: Outcome) -> None:
        """Refuse an outcome that would lose a part of the scan, or a partition, in silence."""
        match outcome:
            case Scanned(pieces) if self.is_segment(partition_id):
                self.check_cut(pieces, partition_id)
            case Scanned():
                raise _broken(f"{partition_id} is not a segment, but has ended with Scanned")
            case Drained() | Awaiting() if self.plan is not None and self.is_segment(partition_id):
                raise _broken(f"the segment {partition_id} has ended with {type(outcome).__name__}")
            case Drained(()):
                raise _broken(f"{partition_id} has ended with Drained, but without a child")
            case _:
                pass

    def check_cut(self, segments: Sequence[Segment], replaced: str | None = None) -> None:
        """Refuse segments of another scan, and those whose id already belongs to another entry."""
        scan = None if self.plan is None else self.plan.scan
        if scan is not None and any(segment.scan != scan for segment in segments):
            raise _broken("a segment belongs to another scan than the one that is read")
        names = [segment.segment_id for segment in segments]
        known = [name for name in names if name in self._entries and name != replaced]
        if known or len(set(names)) < len(names):
            raise _broken(f"a segment was cut twice, or has the id of a partition: {known or names}")

    def cut(self, segments: Iterable[Segment], rest: Cursor | None) -> list[str]:
        """Add segments that are to be read, and note the part that is not cut yet; return their ids."""
        self.change_plan(cursor=rest)
        return self._add_segments(segments)

    def _add_segments(self, segments: Iterable[Segment]) -> list[str]:
        started = []
        for segment in segments:
            self._put(Entry.read(segment.segment_id, segment.cursor, listed=False))
            started.append(segment.segment_id)
        return started

    def scanned(self, segment_id: str, pieces: Sequence[Segment]) -> list[str]:
        """Record that a segment was read to its end; return the ids of the pieces that replace its rest."""
        self._remove(segment_id)
        plan = self.plan
        if plan is not None and not pieces:
            self.change_plan(done=plan.done + 1)
        return self._add_segments(pieces)

    def is_scanned(self) -> bool:
        """Return whether there is a scan and every row of it was read."""
        return (plan := self.plan) is not None and plan.cursor is None and not self._segments

    def end_scan(self) -> list[str]:
        """Remove the scan and its remaining segments; return the partitions that start."""
        plan = self.plan
        if plan is None:
            return []
        for name in list(self._segments):
            self._remove(name)
        self._remove(plan.partition_id)
        self._plan_id = None
        return self.release(plan.partition_id)

    def release_stream(self) -> list[str]:
        """Allow reading changes before the scan is over; return the partitions that start."""
        plan = self.plan
        if plan is None or not plan.holds:
            return []
        self.change_plan(holds=False)
        return self.release(plan.partition_id)


_READ, _WAIT, _END = Stage.READ, Stage.WAIT, Stage.END


def _is_lost(entry: Entry) -> bool:
    return entry.stage is _END and not entry.said


def _place(entry: AnyEntry) -> AnyEntry:
    return attrs.evolve(entry, looks=0) if isinstance(entry, Entry) and entry.looks else entry


def _broken(problem: str) -> ProviderFault:
    message = f"{problem}; this violates the contract and is a defect of the provider: report it"
    return ProviderFault.of(ErrorCategory.PERMANENT_FAILURE, message)
