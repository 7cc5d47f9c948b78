"""What a round decides where the source tells less, or the sink does something else."""

import attrs
import numpy as np
import pytest

from multiclouddb_api import ChangeFeedRequest, ErrorCategory, MulticloudDbError, ScanFloor, Snapshot
from multiclouddb_verify import DifferenceKind
from multiclouddb_verify.comparison import GONE, Seen, Verdict, join, judge

from .test_lives import smooth
from .worlds import World, found, key_of


class TestBlocked:
    """A row whose `order_key` would refuse later changes, where scanned rows do not tell what is too high."""

    @pytest.mark.parametrize("floor", [ScanFloor.LOW, ScanFloor.ROW])
    @pytest.mark.parametrize("order_key", ["~", "9" * 30])
    @pytest.mark.parametrize("name", ["r0", "r8"])
    def test_is_found_also_if_it_is_a_tombstone(self, floor, order_key, name, tmp_path):
        world = World(1, behaviour=smooth(1), kinds=[])
        world.left, world.facts = 0, {"floor": floor, "ceiling": "8"}
        [row] = [row for row in world.target.table if row.key == key_of(name)]
        row.order_key = order_key
        assert found(world.verify(tmp_path / "state")) == {key_of(name): DifferenceKind.BLOCKED}
        world.close()


@pytest.mark.parametrize("seed", range(8))
def test_changes_without_documents_are_settled_by_looking_their_keys_up(seed, tmp_path):
    world = World(seed, behaviour=smooth(seed))
    world.has_images = False
    report = world.verify(tmp_path / "state")
    assert found(report) == world.faults
    assert report.counts.unsettled == 0
    world.close()


@pytest.mark.parametrize("differs", [False, True])
def test_a_row_that_is_newer_than_its_last_known_change_is_looked_up(differs, tmp_path):
    world = World(1, behaviour=smooth(1), kinds=[])
    world.left, read, positions = 0, world.read, [world.token]
    world.put("r0")
    world.put("r0")
    world.drain()
    [row] = [row for row in world.target.table if row.key == key_of("r0")]
    if differs:
        row.text = "{}"
    world.stored = lambda: positions.pop() if positions else world.token

    def unordered(client, request):
        """The position of the sink is after the last change, and before the one before it."""
        page = read(client, request)
        shown = tuple(each for each in page.events if each.order_key != row.order_key)
        return attrs.evolve(page, events=shown) if client is world.clients[0] else page

    world.read = unordered
    report = world.verify(tmp_path / "state")
    assert found(report) == ({key_of("r0"): DifferenceKind.STALE} if differs else {})
    assert report.cost.looked_up
    world.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_sink_that_begins_a_snapshot_is_waited_for_and_its_rows_are_not_read(seed, tmp_path):
    world = World(seed, behaviour=smooth(seed))
    world.begins_again = True
    report = world.verify(tmp_path / "state")
    assert not world.begins_again
    # The snapshot of the sink may have repaired the others.
    assert found(report).items() <= world.faults.items()
    assert report.counts.unsettled == 0
    assert world.rows == report.cost.rows
    world.close()


def test_a_position_inside_a_snapshot_is_refused_however_short_the_snapshot_is(tmp_path):
    world = World(1, behaviour=smooth(1))
    world.moves = False
    world.token = (
        world.clients[1].read_changes(ChangeFeedRequest(world.sim.address, Snapshot())).continuation_token
    )
    with pytest.raises(MulticloudDbError, match="snapshot") as caught:
        world.verify(tmp_path / "state")
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    world.close()


def test_a_key_that_moves_is_equal_only_with_the_document_of_its_change():
    for digest, verdict in ((7, Verdict.EQUAL), (8, Verdict.WAIT)):
        assert judge([Seen("5", 7)], {"5": digest}, GONE, moved=True, ceiling="9") is verdict


def test_a_key_with_two_rows_does_not_count_as_equal():
    source, target = (np.array([[1, 2], [7, 8]]), np.array([[1, 1, 2], [7, 9, 8]]))
    result = join((source[0], source[1]), (target[0], target[1]), np.zeros(3, dtype=bool), ())
    assert (result.equal, result.rest.tolist()) == (1, [1])
