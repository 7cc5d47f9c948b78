"""Two values are equal exactly if the type of the table's column can tell them apart; the server is asked."""

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multiclouddb_api import encode_json
from multiclouddb_conformance.sink_harness import key_of, rows
from multiclouddb_postgres import PostgresTarget, merge_into_postgres
from multiclouddb_verify.comparison import document_digests, text_digests
from multiclouddb_verify.texts import as_jsonb

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70),
    st.integers(-308, 308).map(lambda exponent: float(f"1e{exponent}")),
    st.integers(10**15, 10**17).map(float),
    st.sampled_from(
        [0.0, -0.0, 0, 1e15, 1e16, 10**16, 1e20, 10**20, 2**53 + 1, float(2**53), 1e23, 5e-324, 2**63]
    ),
)
PAIRS = [(1e16, 10**16), (-0.0, 0.0), (1e20, 10**20), (1e20, 1e20 + 2**14), (1, 1.0), (1e23, 1e23 + 2**24)]


@pytest.fixture(scope="module")
def connection(database):
    with psycopg.connect(database, autocommit=True) as made:
        yield made


def asked(connection, documents, kind):
    """Return what a column of the type gives back."""
    texts = [encode_json(each).decode() for each in documents]
    query = f"SELECT (t::{kind})::text FROM unnest(%s::text[]) WITH ORDINALITY AS u(t, n) ORDER BY n"
    return [text for (text,) in connection.execute(query, (texts,)).fetchall()]


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=2, max_size=20))
def test_values_are_equal_exactly_if_the_column_gives_back_the_same(connection, kind, numbers):
    numbers = [*numbers, *(each for pair in PAIRS for each in pair)]
    documents = [{"v": [{"n": each}]} for each in numbers]
    ours = document_digests([as_jsonb(each) for each in documents] if kind == "jsonb" else documents).tolist()
    texts = asked(connection, documents, kind)
    assert ours == text_digests(texts).tolist()
    assert [ours[0] == each for each in ours] == [texts[0] == each for each in texts]


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_a_table_with_every_number_is_equal_as_it_was_written(dsn, kind):
    numbers = [each for pair in PAIRS for each in pair]
    merge_into_postgres(
        rows(*((f"k{at}", 1, {"n": each}) for at, each in enumerate(numbers))), None, dsn, "orders", None,
        documents=kind,
    )  # fmt: skip
    target = PostgresTarget(dsn, "orders")
    held = target.held() or (lambda document: document)
    found = {row["key"]: row["state"] for batch in target.rows() for row in batch.to_pylist()}
    for at, each in enumerate(numbers):
        text = found[key_of(f"k{at}")]
        assert text_digests([text]).tolist() == document_digests([held({"n": each})]).tolist()
