"""Tests that an estimate says what a run would be refused for, and writes nothing."""

import pytest

from multiclouddb_api import ErrorCategory, ErrorReason, MulticloudDbError
from multiclouddb_mirror import destination_of, estimate_mirror, mirror
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


def refused_by_both(world, address, destination, **settings):
    """Return the message with which a run and its estimate refuse a table."""
    [problem] = estimate_mirror(world.client, address, destination()).problems
    with pytest.raises(MulticloudDbError) as caught:
        mirror(world.client, address, world.target, **settings)
    assert (problem.category, problem.reason) == (caught.value.category, caught.value.reason)
    assert problem.message == caught.value.message
    return problem.message


def test_the_table_of_another_collection_is_a_problem(world):
    world.run()
    world.store.create_collection("others")
    message = refused_by_both(world, "main/others", lambda: destination_of(world.target))
    assert "follows main/orders, and not main/others" in message


def test_the_table_of_another_collection_is_a_problem_if_its_position_is_elsewhere(world):
    world.run()
    world.store.create_collection("others")
    where = f"file://{world.folder}/positions/others"
    message = refused_by_both(
        world, "main/others", lambda: destination_of(world.target, where), position=where
    )
    assert "is the table of embedded main/orders, and not of embedded main/others" in message


def test_a_position_without_its_table_is_a_problem(world):
    where = f"file://{world.folder}/positions/orders"
    mirror(world.client, "main/orders", f"sqlite:{world.folder}/gone.db#orders", position=where)
    message = refused_by_both(
        world, "main/orders", lambda: destination_of(world.target, where), position=where
    )
    assert "run once with resync=True (--resync)" in message


def test_a_feed_without_documents_is_refused_before_anything_is_copied(world):
    world.store.create_collection("keys", images="keys")
    world.store.put("keys", "k-1", {"total": 1})
    message = refused_by_both(world, "main/keys", lambda: destination_of(world.target))
    assert message.startswith("collection: a mirror needs the document of each change: 'keys' was created")
    assert message.endswith("; create the collection with images='new'")
    assert destination_of(world.target).found() is None
