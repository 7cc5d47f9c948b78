"""Tests that what a planned step keeps of a partition's records is all that it has read, or nothing."""

import pytest

from multiclouddb_spi import Batch
from multiclouddb_spi.planning.pieces import Piece, Pieces


@pytest.fixture
def pieces():
    return Pieces(100)


def batch_of(nbytes, records=2):
    return Batch(range(records), None, 0, 1, nbytes=nbytes)


def test_a_partition_with_a_piece_that_does_not_fit_is_not_kept(pieces):
    """A part of its records would be delivered as if it were all."""
    first, other = batch_of(60), batch_of(30)
    pieces.add("p0", first, 0, 2)
    pieces.add("p1", other, 0, 2)
    pieces.add("p0", batch_of(60), 0, 2)
    pieces.add("p0", batch_of(1), 0, 2)
    assert pieces.whole() == {"p1": (Piece(other, 0, 2),)}


def test_its_bytes_are_free_for_others(pieces):
    last = batch_of(100)
    pieces.add("p0", batch_of(100), 0, 2)
    pieces.drop("p0")
    pieces.add("p1", last, 0, 2)
    assert pieces.whole() == {"p1": (Piece(last, 0, 2),)}


def test_a_piece_counts_as_its_part_of_the_batch(pieces):
    half, nothing = batch_of(200), batch_of(200)
    pieces.add("p0", half, 0, 1)
    pieces.add("p1", nothing, 1, 1)
    assert pieces.whole() == {"p0": (Piece(half, 0, 1),)}
    pieces.add("p0", batch_of(1, 1), 0, 1)
    assert pieces.whole() == {}
