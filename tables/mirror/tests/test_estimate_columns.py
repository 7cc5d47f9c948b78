"""Tests that an estimate says whether declared columns fit what the table has, and writes nothing."""

from multiclouddb_api import ErrorCategory, ErrorReason
from multiclouddb_mirror import destination_of, estimate_mirror
from multiclouddb_tables import Columns

from .worlds import FIRST

NUMBERS, TEXTS = Columns({"total": "int64"}), Columns({"total": "string"})


def estimated(world, **settings):
    return estimate_mirror(world.client, "main/orders", destination_of(world.target), **settings)


def test_the_declaration_of_a_new_table_is_accepted_and_makes_none(world):
    found = estimated(world, columns=NUMBERS)
    assert (found.begins, found.problems) == ("snapshot", ())
    assert destination_of(world.target).found() is None


def test_another_declaration_is_a_problem_unless_it_is_filled(world):
    world.run(columns=NUMBERS)
    assert estimated(world).problems == estimated(world, columns=NUMBERS).problems == ()
    before = destination_of(world.target).found()
    [problem] = estimated(world, columns=TEXTS).problems
    assert (problem.category, problem.reason) == (ErrorCategory.INVALID_REQUEST, ErrorReason.OTHER_COLUMNS)
    assert problem.message.endswith("takes the declaration that the table has")
    assert "refill=True (--refill)" in problem.message
    found = estimated(world, columns=TEXTS, refill=True)
    assert (found.begins, found.problems) == ("snapshot", ())
    assert estimated(world, columns=NUMBERS, refill=True).begins == "position"
    assert destination_of(world.target).found() == before
    assert world.rows() == FIRST


def test_a_file_that_cannot_be_read_hides_no_other_problem(world):
    found = estimate_mirror(
        world.client, "main/nothing", destination_of(world.target), columns=world.folder / "gone.toml"
    )
    assert [each.category for each in found.problems] == [
        ErrorCategory.NOT_FOUND,
        ErrorCategory.INVALID_REQUEST,
    ]
    assert "gone.toml cannot be read" in found.problems[1].message
