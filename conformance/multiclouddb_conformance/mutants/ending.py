"""Mutants that treat the ends, children, parents or listings of partitions incorrectly."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs

from multiclouddb_api import Now
from multiclouddb_conformance.delegating import WrappedFeed, WrappedReader
from multiclouddb_conformance.mutants.mutant import Mutant, emptied
from multiclouddb_spi import (
    Awaiting,
    Batch,
    Child,
    Cursor,
    Deadline,
    Drained,
    FeedStart,
    Partition,
    PartitionState,
    Provider,
    Seed,
    Survey,
)

_PAGE: Final = 4


class _ChangesEnds(Mutant):
    """The base class of mutants that change the children of an ending partition."""

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if not isinstance(batch.outcome, Drained):
            return batch
        children = tuple(self.child(reader, child, deadline) for child in batch.outcome.children)
        return attrs.evolve(batch, outcome=Drained(children))

    def child(self, reader: WrappedReader, child: Child, deadline: Deadline) -> Child:
        del reader, deadline
        return child


class DropsLastPageOfClosedPartition(Mutant):
    """The events that come together with the end of their partition are lost."""

    caught_by = (
        "TestSplit::test_nothing_is_lost_and_nothing_comes_twice",
        "TestRetirement::test_everything_in_a_partition_comes_before_it_retires",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return emptied(batch) if isinstance(batch.outcome, Drained) else batch


class StartsChildEarly(Mutant):
    """A child partition is read at the same time as its parent, not after its parent."""

    caught_by = ("TestBeginning::test_the_beginning_reads_parents_before_their_children[1]",)

    def start(
        self, feed: WrappedFeed, position: FeedStart, partition_id: str | None, deadline: Deadline
    ) -> list[Seed]:
        seeds = super().start(feed, position, partition_id, deadline)
        return [attrs.evolve(seed, parents=()) for seed in seeds]


class AppliesNowToChild(_ChangesEnds):
    """If a partition was started at `Now`, its children are started at `Now` too."""

    caught_by = (
        "TestSplit::test_nothing_is_lost_and_nothing_comes_twice",
        "TestRetirement::test_children_start_where_the_parent_ended",
    )

    def child(self, reader: WrappedReader, child: Child, deadline: Deadline) -> Child:
        seeds = reader.feed.inner.start(Now(), child.partition_id, deadline)
        return attrs.evolve(child, cursor=seeds[0].cursor)


class LosesOneParentOfMerge(_ChangesEnds):
    """A merged child waits only for the parent that names it, and not for its other parent."""

    caught_by = (
        "TestMerge::test_every_parent_names_the_merged_child_and_all_its_parents",
        "TestMerge::test_no_event_of_a_merged_child_comes_before_the_last_of_its_parents",
    )

    def child(self, reader: WrappedReader, child: Child, deadline: Deadline) -> Child:
        del deadline
        return attrs.evolve(child, parents=(reader.partition_id,))


class RetiresWithoutChildren(Mutant):
    """A partition ends without naming its children."""

    caught_by = (
        "TestRetirement::test_a_split_partition_retires_and_names_its_children",
        "TestSplit::test_nothing_is_lost_and_nothing_comes_twice",
    )

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return attrs.evolve(batch, outcome=Drained(())) if isinstance(batch.outcome, Drained) else batch


class ForgetsChildrenNamedLate(Mutant):
    """Children that the service names later than the end of their parent are never found."""

    caught_by = ("TestLateChildren::test_children_named_late_lose_nothing",)

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        del asked, expired
        return survey if whole else Survey()


class ForgetsWatchAtRestart(Mutant):
    """A process that did not see the end of a partition assumes that it knows all children."""

    caught_by = ("TestLateSiblings::test_a_sibling_named_late_is_read_after_a_restart",)

    def __init__(self, inner: Provider) -> None:
        super().__init__(inner)
        self._seen: set[str] = set()

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        if isinstance(batch.outcome, Drained):
            self._seen.add(reader.partition_id)
        return batch

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        del expired
        if whole:
            return survey
        unseen = {name: None for name in asked if name not in self._seen}
        present = [each for each in survey.present if unseen.keys().isdisjoint(each.parents)]
        return attrs.evolve(survey, present=tuple(present), final={**survey.final, **unseen})


class NeverSearches(Mutant):
    """A feed that may name partitions late never finds one that its start left out."""

    caught_by = ("TestUncovered::test_a_partition_that_a_start_left_out_is_found_late",)

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        return Survey() if asked and whole and not expired else survey


class ReadsFirstPageOfPartitionList(Mutant):
    """The service lists partitions in pages, but only the first page is read."""

    caught_by = (
        "TestPhysicalPartition::test_a_collection_has_as_many_partitions_as_were_asked_for",
        "TestPhysicalPartition::test_every_partition_of_many_is_read",
    )

    def start(
        self, feed: WrappedFeed, position: FeedStart, partition_id: str | None, deadline: Deadline
    ) -> list[Seed]:
        return super().start(feed, position, partition_id, deadline)[:_PAGE]

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        del expired, whole
        return survey if asked else attrs.evolve(survey, present=survey.present[:_PAGE])


class NamesMergedChildLate(Mutant):
    """The children of a closed partition are named late, also the child of a merge."""

    caught_by = ("TestFollowing::test_a_merged_child_is_named_whole_at_the_end_of_each_parent",)

    def names_late(self, feed: WrappedFeed) -> bool:
        del feed
        return True

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return attrs.evolve(batch, outcome=Awaiting()) if isinstance(batch.outcome, Drained) else batch


class MergesAndMayNameLate(Mutant):
    """Partitions merge, although their feed says that it may name them late."""

    caught_by = ("TestFollowing::test_a_merged_child_is_named_whole_at_the_end_of_each_parent",)

    def names_late(self, feed: WrappedFeed) -> bool:
        del feed
        return True


class MergedChildStartsLater(_ChangesEnds):
    """One parent of a merged child says that it starts after its first record."""

    caught_by = ("TestFollowing::test_each_parent_says_that_a_merged_child_starts_before_its_first_record",)

    def child(self, reader: WrappedReader, child: Child, deadline: Deadline) -> Child:
        if len(child.parents) < 2 or reader.partition_id != max(child.parents):
            return child
        seeds = reader.feed.inner.start(Now(), None, deadline)
        return attrs.evolve(child, cursor=seeds[0].cursor)


class KeepsParentsOfWhatIsGone(Mutant):
    """A partition stays although retention has removed its children."""

    caught_by = ("TestFollowing::test_retention_takes_ancestors_first",)

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        del expired, whole
        above = {parent for parents in survey.gone.values() for parent in parents or ()}
        kept = {name: survey.gone[name] or () for name in above if name in survey.gone}
        more = [
            Partition(name, parents, PartitionState.CLOSED, asked.get(name)) for name, parents in kept.items()
        ]
        gone = {name: parents for name, parents in survey.gone.items() if name not in kept}
        return attrs.evolve(survey, present=(*survey.present, *more), gone=gone)


class TakesEndedForGone(Mutant):
    """A partition that has ended counts as gone, although its changes can still be read."""

    caught_by = ("TestFollowing::test_what_can_be_read_is_not_gone",)

    def stated(
        self, survey: Survey, asked: Mapping[str, Cursor], expired: Collection[str], *, whole: bool
    ) -> Survey:
        del asked, expired, whole
        ended = {each.partition_id: each for each in survey.present if each.state is PartitionState.CLOSED}
        present = tuple(each for each in survey.present if each.partition_id not in ended)
        gone = {**survey.gone, **{name: each.parents for name, each in ended.items()}}
        return attrs.evolve(survey, present=present, gone=gone)


class RoundsMoments(Mutant):
    """The moment of a position is rounded, so positions before and after a change have the same moment."""

    caught_by = ("TestFollowing::test_no_position_before_an_older_change_has_the_moment_of_a_merge",)

    def moment(self, feed: WrappedFeed, cursor: Cursor) -> int | None:
        moment = super().moment(feed, cursor)
        return None if moment is None else moment // 1000 * 1000
