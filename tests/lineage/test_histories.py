"""Replays histories that have shown a defect once, or that a simpler lineage would get wrong."""

import pytest

from multiclouddb_conformance.explore.search import replay
from multiclouddb_conformance.explore.world import Bounds, ListingKind, Scope

# Each line: what may happen, and the steps.
KEPT = [
    # A child of a lost partition came before its parent's older records.
    (Bounds(ListingKind.ALIVE), "roll 1 | roll 0 | read 0 | read 3 | trim | roll 2 | roll 3 | read 3"),
    # A partition that was hidden until its descendants were read was lost without a notice.
    (Bounds(ListingKind.LATE), "split 1 hide | search | trim | read 0 | roll 3 | roll 4 | show 3 | trim"),
    # A position moved forward over records without a notice of its own.
    (Bounds(ListingKind.ALIVE), "split 0 | trim | read 0"),
    # A loss was told again when a second child of the lost partition was listed.
    (Bounds(ListingKind.LATE), "split 0 hide | trim | read 0"),
    # A lost partition stayed for ever after what may follow it was read because of another loss.
    (Bounds(ListingKind.LATE), "trim | roll 0 | split 1 | roll 2 hide | read 0 | trim"),
    # A feed of one partition was idle while a child of the lost partition was not read.
    (Bounds(ListingKind.LATE, Scope.DESCENDANTS), "split 0 hide | roll 2 hide | trim | read 0"),
    # The feed was never idle again after a search had found the child of a lost partition.
    (Bounds(ListingKind.LATE), "roll 0 hide | split 2 | trim | read 0 | show 2 | search"),
    # The last lost partition left the token while a snapshot was scanned, and nothing was read any more.
    (
        Bounds(ListingKind.LATE, crash=True, scan=True, released=True, cut=True, empty=True),
        "roll 1 hide | roll 0 twice | roll 2 twice | roll 6 hide | roll 4 hide | show 2 | trim | search "
        "| look last | scan ends",
    ),
    # The last lost partition left the token beside an end that left too, and nothing was read any more.
    (
        Bounds(ListingKind.LATE, Scope.KEY, crash=True, cut=True, empty=True, horizons=True, forgets=True),
        "split 0 | roll 3 twice | roll 2 twice | fetch 0 | forget 7 | trim | read 0 | read 2 | look last",
    ),
    (
        Bounds(ListingKind.LATE, crash=True, cut=True, empty=True, horizons=True, forgets=True),
        "roll 1 twice | roll 0 twice | read 1 | trim to 2 | forget 5 | forget 3 | read 2 | look last",
    ),
    # In a feed of one partition, a partition that was lost before it was listed had no notice.
    (
        Bounds(ListingKind.LATE, Scope.DESCENDANTS, told=True, empty=True),
        "roll 1 twice | split 0 hide | roll 5 hide | trim | read 0 | roll 6 | show 6 | show 5 | trim",
    ),
    # The first records of a late child of a lost partition were gone, and no notice named it.
    (
        Bounds(ListingKind.LATE, Scope.DESCENDANTS, crash=True, cut=True, empty=True, told=True),
        "roll 0 hide | roll 1 twice | show 2 | trim | read 0 | roll 4 | split 2 hide | trim | look | show 7 "
        "| trim",
    ),
    # A search must not skip what was lost before it was listed, if the caller does not skip losses.
    (
        Bounds(ListingKind.LATE, fails=True),
        "split 1 hide | read 1 | roll 3 | read 0 | read 2 | show 3 | trim | search",
    ),
    # In a feed of one partition, what follows a lost partition may be listed soon.
    (Bounds(ListingKind.LATE, Scope.DESCENDANTS), "roll 0 | split 2 | read 0 | trim"),
    # In a feed of one partition, a look cannot prove what follows a lost partition.
    (Bounds(ListingKind.LATE, Scope.DESCENDANTS), "split 0 | roll 1 hide | trim | read 0"),
    # A child of a lost partition waited for it for ever.
    (Bounds(ListingKind.LATE, chained=True), "trim"),
    # A feed was never idle again after a partition and its waiting child were lost.
    (Bounds(ListingKind.LATE, chained=True), "roll 2 hide | trim | read 1"),
    # A token from before a loss was used again while the middle of a chain was hidden.
    (
        Bounds(ListingKind.LATE, crash=True, cut=True, empty=True),
        "split 0 hide | roll 2 twice | trim | read 1 | roll 3 twice | roll 7 hide | save | show 3 "
        "| read one of 1 | save | trim | search",
    ),
    # A loss was told again when a child of the lost partition came after what was read below it was gone.
    (
        Bounds(ListingKind.LATE, crash=True, cut=True, empty=True),
        "roll 0 hide | show 2 | read 0 | trim | split 2 hide | search | roll 3 | show 4 | read 3 | trim "
        "| next",
    ),
    # What was left of a disabled stream was never read, after the middle of a chain was lost unseen.
    (Bounds(ListingKind.LATE, stops=True), "split 0 | roll 2 | stop | trim"),
    # The same, before the service was asked again about all that exists.
    (
        Bounds(ListingKind.LATE, stops=True),
        "split 0 | roll 2 | stop | trim | read 0 | look last | read 1 | read 3 | settle | look | next",
    ),
    # A feed ended with the last look for what follows a lost partition, although a partition was unread.
    (
        Bounds(ListingKind.LATE, crash=True, cut=True, empty=True, stops=True),
        "trim | roll 1 twice | stop | read 0 | settle | read 0 | next",
    ),
    # A feed of one partition was not idle for long after what follows a lost partition was found.
    (
        Bounds(ListingKind.LATE, Scope.DESCENDANTS, told=True),
        "split 0 | roll 3 | roll 2 | trim | roll 5 hide | roll 4 hide | read 0",
    ),
    # A partition was lost before it was listed; only the notice of another loss led to its child.
    (Bounds(ListingKind.LATE, chained=True), "split 0 hide | read 0 | show 4 | trim | roll 4"),
    # A partition that was read was told as lost, because its second child came after its end was gone.
    (Bounds(ListingKind.LATE), "split 0 hide | roll 2 | read 0 | show 3 | trim"),
    # A feed was not idle for ten minutes, because a listing lacked what waited for a lost partition.
    (Bounds(ListingKind.LATE, chained=True, forgets=True), "split 2 | forget 2 | trim | read 0"),
    # Events came twice, because a listing after a loss lacked a partition that the token holds.
    (
        Bounds(ListingKind.LATE, crash=True, cut=True, empty=True, chained=True, horizons=True, forgets=True),
        "roll 0 twice | read 1 | split 2 hide | fetch 2 | forget 5 | trim to 2 | read 2 | look last "
        "| show 6 | search",
    ),
    # What was read two generations ago was read again, if only the parents of entries count as read.
    (
        Bounds(ListingKind.LATE, crash=True, cut=True, empty=True, chained=True, horizons=True, forgets=True),
        "roll 2 twice | split 0 hide | read 0 | roll 5 twice | read 5 | look last",
    ),
    # Two histories after which the service lists the same, and whoever remembers only which partitions were
    # announced remembers the same; but only in the first one something was lost (docs: why we infer).
    *(
        (Bounds(ListingKind.LATE, Scope.DESCENDANTS, fails=fails), history)
        for fails in (False, True)
        for history in (
            "split 0 hide | read 0 | roll 1 | show 3 | roll 3 | read 2 | trim",
            "roll 0 | read 0 | look last | split 1 | roll 3 | read 2 | trim",
        )
    ),
]


@pytest.mark.parametrize(("bounds", "history"), KEPT)
def test_a_kept_history_keeps_every_promise(bounds, history):
    replay(bounds, history.split(" | "))
