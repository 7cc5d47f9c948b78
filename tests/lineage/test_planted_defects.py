"""Plants one defect at a time in the lineage; the explorer has to find each of them."""

import attrs
import pytest

from multiclouddb_conformance.explore.report import bounds_of
from multiclouddb_conformance.explore.search import explore
from multiclouddb_conformance.explore.world import Kind
from multiclouddb_spi.continuation.lineage import Lineage

LISTED, ALIVE, LATE = Kind


def changed(name, change):
    """Return a defect that changes what a method returns."""
    right = getattr(Lineage, name)
    return name, lambda self, *args, **named: change(right(self, *args, **named))


def ended_without_last_child(self, name, children, *, complete, right=Lineage.ended):
    return right(self, name, children[:-1], complete=complete)


def named_without_other_parents(self, parent, child, right=Lineage._name):
    right(self, parent, attrs.evolve(child, parents=(parent.partition_id,)))


def first_only(found):
    return dict(list(found.items())[:1])


def looked_only_once(self, survey, asked, most, right=Lineage.looked):
    return right(self, survey, asked, 1)


def without_those_that_have_children(found):
    return {name: entry for name, entry in found.items() if not entry.children}


def kept_token(self, right=Lineage.to_json):
    value = right(self)
    return value | {"p": [item for item in value["p"] if item[2:3] != [4]]}


def passed_at_once(self, entry):
    return 0


DEFECTS = {
    "a wait never ends": (LISTED, "base", ("release", lambda self, name: [])),
    "what was read is unknown": (LATE, "base", ("_read_by", lambda self, held, parents: set())),
    "the last child is forgotten": (LATE, "base", ("ended", ended_without_last_child)),
    "a child waits for one parent": (LISTED, "base", ("_name", named_without_other_parents)),
    "a position does not move": (LISTED, "base", ("took", lambda self, name, cursor: None)),
    "a lost position does not move": (LISTED, "base", ("_move", lambda self, survey, expired: [])),
    "one partition is lost, not all": (LISTED, "base", changed("gone", first_only)),
    "nothing passes a moment": (ALIVE, "descendants", ("start_passed", lambda self: [])),
    "all pass every moment": (ALIVE, "base", ("_moment", passed_at_once)),
    "a child is looked for once": (LATE, "descendants", ("looked", looked_only_once)),
    "an end with a child is never lost": (
        LATE,
        "descendants",
        changed("gone", without_those_that_have_children),
    ),
    "everything is ours": (LISTED, "descendants", ("_is_ours", lambda self, *args: True)),
    "what follows a loss is listed later": (LATE, "descendants", ("prove", lambda self, survey: [])),
    "nothing is found": (LATE, "base", ("found", lambda self, survey, *, skips: ([], []))),
    "a token forgets what waits": (LISTED, "crash", ("to_json", kept_token)),
    "the stream does not wait for the scan": (LISTED, "scan", ("hold_for_scan", lambda self, names: None)),
    "nothing is lost": (ALIVE, "base", ("gone", lambda self, survey: {})),
    "a loss begins nothing again": (ALIVE, "base", ("_add", lambda self, seeds, unread: [])),
}


@pytest.mark.parametrize(("kind", "group", "defect"), DEFECTS.values(), ids=DEFECTS)
def test_a_planted_defect_is_found(kind, group, defect, monkeypatch):
    monkeypatch.setattr(Lineage, *defect)
    result = explore(bounds_of(kind, group), 5, seconds=30, most=1)
    assert result.violations
