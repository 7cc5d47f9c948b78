"""Finds the partitions that no entry of a lineage leads to, from what the service lists."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import attrs
from attrs import define

from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.contract import PartitionState, Seed, Survey


class NotProvableError(Exception):
    """It cannot be proved which partitions descend from the lost ones of a feed of one partition."""


@define(eq=False, repr=False)
class Uncovered:
    """The partitions that no entry covers, and that no partition will name as its child.

    Attributes:
        seeds: These partitions, each with all its parents.
        unread: Every listed partition that was not read and is no entry.
        read: The partitions that were read, or whose loss was reported.
        hidden: True if a parent is not listed although it may exist.
    """

    read: set[str]
    seeds: list[Seed] = attrs.field(factory=list)
    unread: set[str] = attrs.field(factory=set)
    hidden: bool = False


def uncovered(
    survey: Survey,
    held: Mapping[str, Entry],
    lost: Mapping[str, Entry],
    root: str | None,
) -> Uncovered:
    """Walk from each open partition up by parents, to what the lineage holds, has read or has lost."""
    parents = {each.partition_id: each.parents for each in survey.present}
    read = _read_by(held, parents)
    found = Uncovered(read=read)
    # An open partition was not read to its end; nor was a parent for which an entry waits. An end without
    # children stays as long as the feed.
    pending = [
        each.partition_id
        for each in survey.present
        if each.state is PartitionState.OPEN or each.partition_id in survey.final
    ]
    pending += [one for each in held.values() for one in each.waits if one in parents]
    tops, undecided = dict[str, None](), set[str]()
    while pending:
        name = pending.pop()
        if name in found.unread or name in held or name in read:
            continue
        found.unread.add(name)
        if not parents[name]:
            tops[name] = None
        for parent in parents[name]:
            if parent in read or parent in survey.gone:
                tops[name] = None
            elif parent in parents:
                pending.append(parent)
            elif parent not in held:  # not listed yet: it decides nothing
                undecided.add(name)
    found.hidden = bool(undecided)
    at = {each.partition_id: each for each in survey.present}
    for name in tops:
        if name in undecided or not _is_ours(name, root, parents, survey.gone, lost, read):
            continue
        if at[name].oldest is not None:
            found.seeds.append(Seed(name, parents[name], at[name].oldest))
    return found


def may_hide(survey: Survey, held: Mapping[str, Entry]) -> bool:
    """Return whether a later listing may show partitions to which no held one leads.

    Only open partitions show what was not read. So one that has ended, and of which no child is listed, may
    hide what descends from it; so does one that is not listed, above an open partition.
    """
    found = uncovered(survey, held, {}, None)
    parents = {each.partition_id: each.parents for each in survey.present}
    named = {parent for above in parents.values() for parent in above}
    ends = {each.partition_id for each in survey.present if each.state is PartitionState.CLOSED}
    ends -= named | found.read | held.keys() | survey.final.keys()
    return found.hidden or not all(_is_led_to(name, held, parents) for name in ends)


def _is_led_to(name: str, held: Mapping[str, Entry], parents: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a partition descends from one that is read, or that waits."""
    pending = [name]
    while pending:
        one = pending.pop()
        if one in held and held[one].stage is not Stage.END:
            return True
        pending += parents.get(one, ())
    return False


def _read_by(held: Mapping[str, Entry], parents: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the ancestors of entries, through parents for which the entry does not wait."""
    read = set[str]()
    pending = [
        parent
        for name, entry in held.items()
        for parent in parents.get(name, ())
        if parent not in entry.waits
    ]
    while pending:
        name = pending.pop()
        if name not in read and name not in held:
            read.add(name)
            pending += parents.get(name, ())
    return read


def _is_ours(
    name: str,
    root: str | None,
    parents: Mapping[str, Sequence[str]],
    gone: Mapping[str, Sequence[str] | None],
    lost: Mapping[str, Entry],
    read: Container[str],
) -> bool:
    """Return whether a partition that no entry covers belongs to the scope."""
    if root is None:
        return True
    # If the root no longer exists, none of its ancestors does (C2): what was read lies below it.
    seen, pending = set[str](), [name]
    unknown = False
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if one == root or one in lost or (one in read and root not in parents):
            return True
        above = parents.get(one) if one in parents else gone.get(one)
        unknown = unknown or above is None
        pending += above or ()
    if unknown and lost:
        raise NotProvableError
    return False


def followers(survey: Survey, lost: Mapping[str, Entry]) -> dict[str, tuple[str, ...]]:
    """Map each lost partition to what exists nearest below it, as far as that is known."""
    below = dict[str, list[str]]()
    for each in survey.present:
        for parent in each.parents:
            below.setdefault(parent, []).append(each.partition_id)
    for name, parents in survey.gone.items():
        for parent in parents or ():
            below.setdefault(parent, []).append(name)
    for name, entry in lost.items():
        for parent in entry.waits:  # the service may no longer tell them
            below.setdefault(parent, []).append(name)
    found = dict[str, tuple[str, ...]]()
    for name in lost:
        pending, there = list(below.get(name, ())), dict[str, None]()
        while pending:
            one = pending.pop()
            if one in survey.gone:
                pending += below.get(one, ())
            else:
                there[one] = None
        found[name] = tuple(there)
    return found
