# ruff: noqa: E501
"""Plants one defect at a time in the lineage; the explorer has to find each of them."""

import inspect
import textwrap

import pytest

from multiclouddb_conformance.explore.search import bounds_of, explore
from multiclouddb_conformance.explore.world import Kind
from multiclouddb_spi.continuation import lineage

LISTED, ALIVE, LATE = Kind

# Where to look, the function, and the text that is replaced.
DEFECTS = {
    # took, ended
    "a position does not move": (LISTED, "base", "took", "(cursor,)", "(entry.cursor,)"),
    "the last child is forgotten": (LATE, "base", "ended", "for child in fresh:", "for child in fresh[:-1]:"),
    "a child starts at once": (LISTED, "base", "_name", "waits = (*others, ", "waits = ("),
    "an end forgets the children that it named": (LATE, "base", "ended", "(*entry.children, *(", "(*("),
    "a wait never ends": (LISTED, "base", "release", "self._waiting_for.pop(partition_id, ())", "()"),
    "a child starts after its first parent": (LISTED, "base", "release", "if not left and", "if"),
    "a token forgets what waits": (LISTED, "crash", "to_json", "self._entries.values()", "self.active()"),
    # lost
    "nothing is lost": (ALIVE, "base", "gone", "each.partition_id in survey.gone", "False"),
    "one partition is lost, not all": (LISTED, "base", "gone", "for each in found", "for each in list(found)[:1]"),
    "an end with a known child is lost": (LATE, "base", "gone", " if not (each.children and self.root is None)", ""),
    "an end with a known child is never lost": (LATE, "descendants", "gone", "each.children and self.root is None", "each.children"),
    "a lost end is lost again": (LATE, "base", "gone", " and not _is_lost(each)", ""),
    "a lost position does not move": (LISTED, "base", "_move", "(oldest,)", "entry.said"),
    "one position moves, not all": (LISTED, "base", "_move", " or self.rules.compare(entry.said[0], oldest) == -1", ""),
    "a lost position moves in silence": (LISTED, "base", "_move", "losses.append(", "str("),
    "heirs start in a scope of one partition": (ALIVE, "descendants", "lost", "raise NotProvableError  # an heir", "pass  # an heir"),
    "a lost partition stays": (LISTED, "base", "lost", "self._remove(name)", "pass"),
    "a wait for a lost partition stays": (LATE, "chained", "lost", "self.release(name)", "pass"),
    "a lost child that waited is unknown": (LATE, "chained", "lost", "waited.get(name, ())", "()"),
    "nothing follows a loss": (LISTED, "base", "lost", "self._add(tops.seeds, tops.unread)", "[]"),
    "a lost end does not stay": (LATE, "base", "lost", "elif not self.listed() or", "elif False and not"),
    "a lost end stays only if it is the last": (LATE, "base", "lost", " or (proved and not any(one in self for one in children))", ""),
    "a lost end stays although what follows is unclear": (LATE, "base", "lost", "(proved and not any", "(not any"),
    "a cut begins nothing": (ALIVE, "base", "_cut", "self._add(begin)", "pass"),
    "a cut moves a position back": (ALIVE, "base", "_cut", "attrs.evolve(seed, cursor=position)", "seed"),
    "a cut moves a position in silence": (ALIVE, "base", "_cut", "if order == -1:", "if False:"),
    "a cut keeps what it replaces": (ALIVE, "base", "_cut", "self._remove(each.partition_id)", "pass"),
    "what follows a loss is listed later": (LATE, "told", "found", "self._add(tops.seeds, tops.unread)", "[]"),
    # found
    "nothing is found": (LATE, "base", "found", "self._add(tops.seeds, tops.unread)", "[]"),
    "a loss is told twice": (LATE, "base", "found", " and parent not in tops.read", ""),
    "a missed loss is not told": (LATE, "base", "found", "parent in survey.gone and", "False and"),
    "a lost end stays for ever": (LATE, "base", "found", "self._forget_lost()", "pass"),
    "a look finds nothing": (LATE, "descendants", "looked", "fresh or over", "over"),
    "a look adds no child": (LATE, "descendants", "looked", "self.ended(name, fresh, complete=over)", "self.ended(name, (), complete=over)"),
    "a child is looked for once": (LATE, "descendants", "looked", "looks >= most", "looks >= 1"),
    "an end leaves without a child": (LATE, "base", "looked", "bool(end.children) or ", "True or "),
    "an end that is gone stays": (LATE, "base", "looked", "if name in survey.gone and not _is_lost(end):", "if False:"),
    "what was read is unknown": (LATE, "base", "_uncovered", "self._read_by(held, parents)", "set()"),
    "a closed partition that is waited for is covered": (LISTED, "base", "_uncovered", "pending += [one for each in held.values() for one in each.waits if one in parents]", "pass"),
    "a child of a gone partition is covered": (LISTED, "base", "_uncovered", " or parent in survey.gone", ""),
    "a missed parent is skipped": (LATE, "base", "_uncovered", "pending.append(parent)", "tops[name] = None"),
    "everything is ours": (LISTED, "descendants", "_is_ours", "if self.root is None:", "if True:"),
    "nothing is ours": (LISTED, "descendants", "_is_ours", "one == self.root or one in lost", "False"),
    # start
    "nothing passes a moment": (ALIVE, "descendants", "start_passed", "if not alone:", "if alone:"),
    # entries
    "the stream does not wait for the scan": (LISTED, "scan", "hold_for_scan", "if plan is None or not plan.holds:", "if True:"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "group", "name", "right", "wrong"), DEFECTS.values(), ids=DEFECTS)
def test_a_planted_defect_is_found(kind, group, name, right, wrong, monkeypatch):
    source = textwrap.dedent(inspect.getsource(getattr(lineage.Lineage, name)))
    assert right in source
    made = {}
    exec(compile(source.replace(right, wrong), name, "exec"), vars(lineage), made)
    monkeypatch.setattr(lineage.Lineage, name, made[name])
    for depth in (3, 4):
        if explore(bounds_of(kind, group), depth, most=1).violations:
            return
    pytest.fail("the explorer finds no violation")
