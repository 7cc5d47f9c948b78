# ruff: noqa: E501
"""Plants one defect at a time in the lineage and in `follow`; the explorer has to find each of them."""

import inspect
import textwrap

import pytest

from multiclouddb_conformance.explore.search import bounds_of, explore
from multiclouddb_conformance.explore.world import ListingKind
from multiclouddb_spi.continuation import follow, lineage, uncovered

LISTED, ALIVE, LATE = ListingKind

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
    "an end with a known child is lost": (LATE, "base", "gone", " or (each.children and self.root is None)", ""),
    "an end with a known child is never lost": (LATE, "descendants", "gone", "each.children and self.root is None", "each.children"),
    "a lost end is lost again": (LATE, "base", "gone", " and not _is_lost(each)", ""),
    "a lost position does not move": (LISTED, "base", "_move", "(oldest,)", "entry.said"),
    "one position moves, not all": (LISTED, "base", "_move", " or self.rules.compare(entry.said[0], oldest) == -1", ""),
    "a lost position moves in silence": (LISTED, "base", "_move", "losses.append(", "str("),
    "heirs start in a scope of one partition": (ALIVE, "descendants", "lost", "raise NotProvableError  # an heir", "pass  # an heir"),
    "a lost partition stays": (LISTED, "base", "lost", "self._remove(name)", "pass"),
    "a wait for a lost partition stays": (LATE, "chained", "lost", "self.release(name)", "[]"),
    "a loss is decided although a listing lacks an entry": (LATE, "forgets", "lost", "not self.is_shown_by(survey)", "False"),
    "a lost child that waited is unknown": (LATE, "chained", "lost", ", *waited.get(name, ())", ","),
    "nothing follows a loss": (LISTED, "base", "lost", "self._add(tops.seeds, tops.unread)", "[]"),
    "a lost end does not stay": (LATE, "base", "lost", " or proved", ""),
    "a lost end stays although what follows is unclear": (LATE, "base", "lost", " or proved", " or True"),
    "a lost end forgets what follows it": (LATE, "base", "lost", "(*children, *", "(*(), *"),
    "a cut begins nothing": (ALIVE, "base", "_cut", "self._add(begin)", "pass"),
    "a cut moves a position back": (ALIVE, "base", "_cut", "attrs.evolve(seed, cursor=position)", "seed"),
    "a cut moves a position in silence": (ALIVE, "base", "_cut", "if order == -1:", "if False:"),
    "a cut keeps what it replaces": (ALIVE, "base", "_cut", "self._remove(each.partition_id)", "pass"),
    "what follows a loss is listed later": (LATE, "told", "found", "self._add(tops.seeds, tops.unread)", "[]"),
    # found
    "nothing is found": (LATE, "base", "found", "self._add(tops.seeds, tops.unread)", "[]"),
    "a loss beside another is not told": (LATE, "base", "lost", "losses += self._stranded(survey, tops, gone)", "pass"),
    "what was read is told as lost": (LATE, "base", "_stranded", "tops.read | ", ""),
    "a loss is told twice": (LATE, "base", "_stranded", " | self._entries.keys()", ""),
    "a missed loss is not told": (LATE, "base", "_stranded", "name in survey.gone and", "False and"),
    "a child of a parent that is gone is found in silence": (LATE, "base", "_stranded", "late = [", "late = [] and ["),
    "the start of a child is told beside its lost parent": (LATE, "told", "_stranded", ".difference(lost)", ""),
    "a lost end stays for ever": (LATE, "base", "found", "self._forget_lost()", "pass"),
    "a look finds nothing": (LATE, "descendants", "looked", "fresh or over", "over"),
    "a look adds no child": (LATE, "descendants", "looked", "self.ended(name, fresh, complete=over)", "self.ended(name, (), complete=over)"),
    "a child is looked for once": (LATE, "descendants", "looked", "looks >= most", "looks >= 1"),
    "an end leaves without a child": (LATE, "base", "looked", "bool(end.children) or ", "True or "),
    "a child of an end that is gone begins in silence": (LATE, "base", "looked", "fresh = []", "pass"),
    "an end that was read leaves before the others": (LATE, "stops", "close", "if over or (end.children and", "if ("),
    "a final end is not kept as final": (LATE, "stops", "close", "final=True", "final=False"),
    # start
    "nothing passes a moment": (ALIVE, "descendants", "start_passed", "if not alone:", "if alone:"),
    # entries
    "the stream does not wait for the scan": (LISTED, "scan", "hold_for_scan", "if plan is None or not plan.holds:", "if True:"),
}  # fmt: skip

IN_UNCOVERED = {
    "what was read is unknown": (LATE, "base", "uncovered", "_read_by(held, parents)", "set()"),
    "a closed partition that is waited for is covered": (LISTED, "base", "uncovered", "pending += [one for each in held.values() for one in each.waits if one in parents]", "pass"),
    "what is left of a disabled stream is not found": (LATE, "stops", "uncovered", " or each.partition_id in survey.final", ""),
    "a child of a gone partition is covered": (LISTED, "base", "uncovered", " or parent in survey.gone", ""),
    "a missed parent is skipped": (LATE, "base", "uncovered", "pending.append(parent)", "tops[name] = None"),
    "everything is ours": (LISTED, "descendants", "_is_ours", "if root is None:", "if True:"),
    "nothing is ours": (LISTED, "descendants", "_is_ours", "one == root or one in lost", "False"),
}  # fmt: skip

IN_FOLLOW = {
    # the end of a partition
    "an end is complete although children may come": (LATE, "descendants", "apply_end", "complete=complete))", "complete=True))"),
    "an end without a child is complete": (LATE, "base", "apply_end", "ended(name, (), complete=False)", "ended(name, (), complete=True)"),
    "children are not added": (ALIVE, "base", "apply_end", "lineage.ended(name, fresh,", "lineage.ended(name, (),"),
    "a child that starts is not read now": (LISTED, "base", "apply_end", "return PartitionEnd(fresh, tuple(lineage.ended(name, fresh, complete=complete)))", "lineage.ended(name, fresh, complete=complete); return PartitionEnd(fresh)"),
    # lost
    "the service is not told what it refused": (LATE, "base", "lost", "deadline or self._deadline, expired_ids)", "deadline or self._deadline, ())"),
    "the lineage is not told what was refused": (LATE, "base", "lost", "lineage.lost(survey, expired_ids)", "lineage.lost(survey, ())"),
    "the service is asked without positions": (LATE, "base", "lost", "self._entries()", "dict.fromkeys(self._entries())"),
    "what cannot be proved is skipped": (LATE, "descendants", "lost", "raise self._not_provable(expired_ids) from None", "return ()"),
    "nothing tells that the feed begins again": (ALIVE, "base", "told", "*all_lost[:1]]", "]"),
    "a feed that begins again tells it twice": (ALIVE, "base", "told", "*all_lost[:1]]", "*all_lost]"),
    "a position that moves is not told": (ALIVE, "base", "told", "[*(one for one in losses if not one.everything), *all_lost[:1]]", "all_lost[:1] or losses"),
    "one partition begins again": (ALIVE, "base", "told", "str(self._feed.spec.address) if loss.everything else", "str(self._feed.spec.address) if False else"),
    "a gap names nothing that is read": (LATE, "base", "told", "tuple(seed.partition_id for seed in loss.left)", "()"),
    # look
    "a look does not see what is gone": (LATE, "descendants", "look", "if gone := lineage.gone(survey):", "if gone := {}:"),
    "a look skips although it must not": (LATE, "refused", "look", "self._refuse(gone)", "pass"),
    "a look is silent about a loss": (LATE, "descendants", "look", "gaps=self.told(losses), left=tuple(left.values()))", "left=tuple(left.values()))"),
    "a look does not read on after a loss": (LATE, "descendants", "look", "return Found(tuple(left), gaps", "return Found((), gaps"),
    "a look does not name what follows a loss": (LATE, "descendants", "look", "gaps=self.told(losses), left=tuple(left.values()))", "gaps=self.told(losses))"),
    "a look asks without positions": (LATE, "base", "look", "asked = {end.partition_id: end.cursor for end in ends}", "asked = {end.partition_id: None for end in ends}"),
    "a look is not applied": (LATE, "base", "look", "children, started = lineage.looked(survey, counted, most_looks(self._watch_seconds))", "children, started = [], []"),
    "one look is enough": (LATE, "descendants", "look", "counted, most_looks(self._watch_seconds))", "counted, 1)"),
    "what a doubtful look adds is not read now": (LATE, "descendants", "look", "started += [seed.partition_id for seed in proved]", "pass"),
    "what a look adds is not read now": (LATE, "base", "look", "return Found(tuple(started), tuple(children), self", "return Found((), tuple(children), self"),
    "a look names no children": (LATE, "base", "look", "return Found(tuple(started), tuple(children), self", "return Found(tuple(started), (), self"),
    "a look does not name what it proves": (LATE, "descendants", "look", "ended, tuple(proved)", "ended, ()"),
    "a stream that was disabled is read for ever": (LATE, "stops", "look", "lineage.close(survey.final, over=over)", "()"),
    # search
    "a search does not see what is gone": (LATE, "base", "search", "if lineage.gone(survey):", "if False:"),
    "a search never skips": (LATE, "base", "search", "if not self._skips:", "if True:"),
    "a search skips although it must not": (LATE, "fails", "search", "if not self._skips:", "if False:"),
    "a search is silent about a loss": (LATE, "base", "search", "return Found(started, gaps=self.told(losses))", "return Found(started)"),
    "a search does not read on after a loss": (LATE, "base", "search", "return Found(started, gaps=self.told(losses))", "return Found((), gaps=self.told(losses))"),
    "what a search adds is not told": (LATE, "base", "search", "late=self._late(added))", "late=())"),
    "what a search adds is not read now": (LATE, "base", "search", "return Found(started, gaps=self.told(stranded)", "return Found((), gaps=self.told(stranded)"),
    "a loss is refused although it may be skipped": (LATE, "told", "_refuse", "if not self._skips:", "if True:"),
    "only what is read is asked about": (LATE, "chained", "_entries", "self._lineage.listed()", "self._lineage.active()"),
    "the service is never asked about all": (LATE, "base", "_survey", "whole=whole", "whole=False"),
    "the service is never told what it refused": (LATE, "base", "_survey", "expired=refused, ", ""),
}  # fmt: skip
PLANTED = [
    pytest.param(module, *planted, id=name)
    for module, table in (
        (lineage.Lineage, DEFECTS),
        (uncovered.Uncovered, IN_UNCOVERED),
        (follow.Follow, IN_FOLLOW),
    )
    for name, planted in table.items()
]


@pytest.mark.parametrize(("owner", "kind", "group", "name", "right", "wrong"), PLANTED)
def test_a_planted_defect_is_found(owner, kind, group, name, right, wrong, monkeypatch):
    module = inspect.getmodule(owner)
    function = getattr(owner, name, None) or getattr(module, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert right in source
    made = {}
    exec(compile(source.replace(right, wrong), name, "exec"), vars(module), made)
    monkeypatch.setattr(function, "__code__", made[name].__code__)
    for depth in (3, 4):
        if explore(bounds_of(kind, group), depth, most=1).violations:
            return
    pytest.fail("the explorer finds no violation")
