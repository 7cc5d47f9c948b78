"""Tests that tokens of version 1 with a lineage stay readable, with one token for each kind of scope."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_spi import Child, InvalidCursor
from multiclouddb_spi.continuation.entry import Active, Audited, AwaitingChildren, Waiting
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import Retired, state_from_json, state_to_json
from multiclouddb_spi.continuation.token import decode_token, encode_token

# Add tokens here, but never change one.
GOLDEN = {
    "one partition": (
        "evoe6FBNjDsOgCAQRO8y9RaAgslehVAYY0HihwhqYby7u53Vm8y8zIMLbAkFjJrXcxlb3jcQDnDURmJu81qVFolQxSzj0bKKXIwMu1"
        "SCJk9DGJzzwRjCBH70N0aoZV1KL-H-S9Z1vQ_vBw"
    ),
    "a partition that has ended": (
        "egja8C5NjDsOxCAMRO8ytQvMJiBxFUQRJUhBygcRdreIcve1u63GejN-Nz4ITKgIuMr-3qZezgOEhhCVyFl63i9NRiJcsqxT60WHoRop"
        "TkESXUzeeWtHZwxhRrjRci8tL_qjy3kt29LyIfKIOoCi8kRsk6i_U59XqdgSe61GpPQI_xezfQ2je34"
    ),
    "with its descendants": (
        "euoVkeNNj70OhCAQhN9l6i0Ef1BexVAYpCBRNKJnYXz3W9BLrtrZYfLNcuEDLQgrNKKfj2nY_RJA2KD75LD0u5tjmgKGEDk5umhdGIew"
        "R70W_LSwyWNnlmqUlHVTFAQLfSVy32OtQL0iaQzxUoOE5IV1tAPXXdiWE7q8qc2BBtSRyFJlSRlhSKhstolmqHpgD7TLDe3rihz-3SJk"
        "WdVNjnlnHScLk054-w0TMPCh4ZgmUtx8E87_zzyA-ws"
    ),
}
SCOPES = {
    "one partition": "partition:p0",
    "a partition that has ended": "partition:p0",
    "with its descendants": "descendants:p0",
}


def last(child_id, cursors):
    return cursors[-1]


@pytest.mark.parametrize("name", GOLDEN)
def test_scope_and_state_come_back(name):
    envelope = decode_token(GOLDEN[name])
    assert envelope.scope == SCOPES[name]
    assert state_to_json(state_from_json(envelope.state, last)) == envelope.state
    assert encode_token(envelope) == GOLDEN[name]


def test_one_partition():
    lineage = state_from_json(decode_token(GOLDEN["one partition"]).state, last)
    assert isinstance(lineage, Lineage)
    assert list(lineage) == [Active("p0", 12)]
    assert lineage.audited is None


def test_one_that_has_ended():
    state = state_from_json(decode_token(GOLDEN["a partition that has ended"]).state, last)
    named = (Child("p4", ("p0",), 12),)
    assert state == Retired("p0", named, AwaitingChildren("p0", 12, ("p5", "p4"), 17))


def test_every_form_of_an_entry():
    lineage = state_from_json(decode_token(GOLDEN["with its descendants"]).state, last)
    assert isinstance(lineage, Lineage)
    assert list(lineage) == [
        Active("p4", [7, 2]),
        Active("p5", 12, failed_last=True),
        Active("scan", {"row": 3}, listed=False),
        AwaitingChildren("p6", 9),
        AwaitingChildren("p7", 9, ("p4",), 17),
        Waiting("p8", (7,), ("p5",)),
        Waiting("p9", (7, 8), ("p1",), 1767225600123456),
        Waiting("piece", (0,), ("scan",), listed=False),
    ]
    assert lineage.audited == Audited(None, 7, retired=True)


@pytest.mark.parametrize("moment", [True, 1.5, "now", None, 2**58, -(2**57), []], ids=repr)
def test_a_child_that_was_named_at_no_time_is_refused(moment):
    with pytest.raises(InvalidCursor):
        Lineage.from_json({"p": [["m", [1], 4, ["z"], moment]]}, last)


NAMES = st.text(max_size=4)
CURSORS = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
SOME = st.lists(CURSORS, min_size=1, max_size=3).map(tuple)
PARENTS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
MOMENTS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
ENTRIES = (
    st.builds(Active, NAMES, CURSORS, st.booleans(), st.booleans())
    | st.builds(AwaitingChildren, NAMES, CURSORS)
    | st.builds(AwaitingChildren, NAMES, CURSORS, PARENTS, st.integers(0, 2**53))
    | st.builds(Waiting, NAMES, SOME, PARENTS, st.none() | MOMENTS, st.booleans())
)


@given(st.lists(ENTRIES, unique_by=lambda entry: entry.partition_id))
def test_any_entries_come_back(entries):
    value = json.loads(json.dumps(Lineage(entries, last).to_json()))
    assert list(Lineage.from_json(value, last)) == entries
