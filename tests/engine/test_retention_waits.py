"""Tests what partitions wait for after a loss: no later parent is forgotten, and no wait is circular."""

from multiclouddb_spi import Child

from .test_retention import Service, Vague, lineage


def test_what_follows_what_is_left_of_another_lost_one_comes_later():
    """`a` is a child of `q`, which is also lost. `x` is a child of `a`. A child of `x` waits for `q`."""
    service = Service("pq", p="", q="", l="p", a="q", x="a", y="x")
    assert service.lost(lineage("p", "q"), "p") == ({"a", "x", "y"}, {})


def test_child_waits_for_a_parent_that_came_of_a_lost_one():
    """`a` is a child of `b`, which is lost. The service still lists `a`, so `a` is still read."""
    service = Service("b", p="", b="", a="b", m="pab")
    assert service.named(lineage("p"), "p", "m") == {"m": {"a"}}


def test_child_does_not_wait_for_what_waits_for_it():
    service = Vague("gx", p="", x="", c="px", g="c")
    assert service.named(lineage("p", g="c"), "p", "c") == {"c": set()}


def test_nor_for_what_waits_for_it_through_another_child():
    service = Vague("gx", p="", x="", c="px", d="pc", g="d")
    assert service.named(lineage("p", g="d"), "p", "cd") == {"c": set(), "d": {"c"}}


def test_two_that_are_held_do_not_wait_for_each_other():
    """`g` waits for `a`, `a` may wait for `h`, and `h` waits for `c`, so `c` must not wait for `g`."""
    service = Vague("pgh", p="", a="p", c="p", g="a", h="c")
    made, seeds = lineage("p", g="a", h="c"), service.oldest(["p"])
    coming, holds = service.retention.after_loss(made, "p", seeds)
    assert holds == {"a": "h"}
    assert made.replace("p", seeds, coming, holds) == ["c"]
    assert made.retire("c", [Child("h", ("c",), "said")]) == ["h"]
    assert made.retire("h") == ["a"]
    assert made.retire("a", [Child("g", ("a",), "said")]) == ["g"]


def test_what_exists_waits_for_a_lost_one_whose_parent_is_not_known_yet():
    """`m` still waits for `q`, which nothing has named, and `c` is a child of `m`."""
    service = Service("pqm", p="", q="", m="pq", c="m")
    assert service.lost(lineage("p", m="pq"), "p")[1] == {"c": "m"}


def test_what_a_held_one_waits_for_still_counts():
    """`z` waits for `a`, and `a` waits for `b` and `g`.

    Therefore, `b` must not wait for `z`; otherwise, `b` would wait for itself.
    """
    service = Vague("pgz", p="", b="p", a="b", g="", z="a")
    made, seeds = lineage("p", "g", b="p", a="b", z="a"), service.oldest(["p"])
    coming, holds = service.retention.after_loss(made, "p", seeds)
    assert holds == {"a": "g", "b": "g"}
    assert made.replace("p", seeds, coming, holds) == []
    assert made.retire("g") == ["b"]
    assert made.retire("b", [Child("a", ("b",), "said")]) == ["a"]
    assert made.retire("a", [Child("z", ("a",), "said")]) == ["z"]
