"""Deliberately broken readers, one defect each: they prove that the suite bites.

`python -m multiclouddb_conformance.mutants` prints which tests catch which.
"""

from __future__ import annotations

from typing import Final

from multiclouddb_conformance.mutants.ending import (
    AppliesNowToChild,
    DropsLastPageOfClosedPartition,
    ForgetsChildrenNamedLate,
    ForgetsWatchAtRestart,
    LosesOneParentOfMerge,
    NeverAudits,
    ReadsFirstPageOfPartitionList,
    RetiresWithoutChildren,
    StartsChildEarly,
)
from multiclouddb_conformance.mutants.mutant import Mutant, harness_of
from multiclouddb_conformance.mutants.reading import (
    AcceptsUndeclaredCapability,
    AtTimeIsExclusive,
    DropsPoison,
    IgnoresKeyOfScope,
    JumpsOverExpiredGap,
    LeaksReaders,
    MovesTokenPastUnreadEvents,
    NeverAdvancesIdleToken,
    NoticeAfterItsPlace,
    NowIsBeginning,
    ReadsOnBehindNotice,
    RetriesDeadIteratorForEver,
    SaysIdleTooSoon,
    TakesRecreatedForTheSame,
    WrongCategory,
)
from multiclouddb_conformance.mutants.telling import (
    DeletesWithDocument,
    ErrorThatDoesNotPickle,
    LocalTime,
    OrderKeysOfDifferentLength,
    PagesTooLong,
    RepeatsEventUnderNewId,
    SecretInMessage,
    SwapsTwoEventsOfKey,
    WatermarkGoesBack,
    WatermarkRunsAhead,
)

__all__ = ["MUTANTS", "Mutant", "harness_of", "mutant_table"]

MUTANTS: Final[tuple[type[Mutant], ...]] = (
    DropsLastPageOfClosedPartition,
    StartsChildEarly,
    AppliesNowToChild,
    LosesOneParentOfMerge,
    RetiresWithoutChildren,
    ForgetsChildrenNamedLate,
    ForgetsWatchAtRestart,
    NeverAudits,
    ReadsFirstPageOfPartitionList,
    MovesTokenPastUnreadEvents,
    SaysIdleTooSoon,
    NeverAdvancesIdleToken,
    RetriesDeadIteratorForEver,
    JumpsOverExpiredGap,
    NoticeAfterItsPlace,
    ReadsOnBehindNotice,
    NowIsBeginning,
    AtTimeIsExclusive,
    IgnoresKeyOfScope,
    TakesRecreatedForTheSame,
    DropsPoison,
    LeaksReaders,
    RepeatsEventUnderNewId,
    SwapsTwoEventsOfKey,
    OrderKeysOfDifferentLength,
    DeletesWithDocument,
    LocalTime,
    WatermarkRunsAhead,
    WatermarkGoesBack,
    PagesTooLong,
    AcceptsUndeclaredCapability,
    WrongCategory,
    ErrorThatDoesNotPickle,
    SecretInMessage,
)
"""Every mutant; those about partitions first."""


def mutant_table() -> str:
    """Mutant, defect and the tests that have to catch it, as a table in Markdown."""
    rows = ["| mutant | defect | caught by |", "|---|---|---|"]
    for mutant in MUTANTS:
        defect = (mutant.__doc__ or "").partition("\n")[0]
        tests = "<br>".join(f"`{name}`" for name in mutant.caught_by)
        rows.append(f"| `{mutant.__name__}` | {defect} | {tests} |")
    return "\n".join(rows)
