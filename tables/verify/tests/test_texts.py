"""Digests: equal values have one digest, different ones have not, and damaged texts have none."""

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiclouddb_api import MulticloudDbError, encode_json
from multiclouddb_api.codec import canonical_json
from multiclouddb_verify import texts as texts_room
from multiclouddb_verify.comparison import GONE, UNREADABLE, document_digests, text_digests
from multiclouddb_verify.texts import Lines, column_digests, digests_of, written

from .tables import VALUES

DOCUMENTS = [
    *({"v": value} for value in VALUES), {}, {"v": 2**63}, {"v": 2**64}, {"v": -(2**63)}, {"v": float("nan")},
    {"v": UUID(int=8)}, {"v": str(UUID(int=8))}, {"v": "$x"}, {"$v": 1}, {"v": {"$map": {}}},
    {"v": Decimal(1)}, {"v": "1"}, {"v": "a-b-c-d-e"}, {"v": "null"}, {"v": "\x1e\n,\n"}, {"v": ",\n,"},
    {"v": datetime(2026, 1, 2, tzinfo=UTC)}, {"b": 1, "a": {"d": 1, "c": 2}}, {"v": [[[{}]]]},
]  # fmt: skip


def text_of(document):
    return encode_json(document).decode()


@pytest.mark.parametrize("documents", [DOCUMENTS, DOCUMENTS[::-1], *([each] for each in DOCUMENTS)])
def test_a_document_has_the_digest_of_its_text(documents):
    ours, theirs = document_digests(documents), text_digests(list(map(text_of, documents)))
    assert [
        text for text, our, their in zip(map(text_of, documents), ours, theirs, strict=True) if our != their
    ] == []
    assert len(set(ours.tolist())) == len(documents)


def test_a_digest_does_not_depend_on_what_is_encoded_with_it():
    alone = [int(document_digests([each])[0]) for each in DOCUMENTS]
    for seed in range(20):
        order = random.Random(seed).sample(range(len(DOCUMENTS)), 9)
        assert document_digests([DOCUMENTS[at] for at in order]).tolist() == [alone[at] for at in order]


def test_no_document_and_no_text():
    assert document_digests([None, {"v": 1}, None])[[0, 2]].tolist() == [GONE, GONE]
    assert document_digests([]).tolist() == []
    assert text_digests([None, '{"v":1}']).tolist() == [UNREADABLE, *document_digests([{"v": 1}]).tolist()]


@pytest.mark.parametrize(
    "texts",
    [
        ["{"], ["", "{}"], ['{"a":1},{"b":2', '"c":3}'], ['{"x":[{}', '{}]}', '{"a":1},{"b":2}'],
        ['{"a":"', '"}', "1,2"], ["[" * 5000], ['{"a":"\n"}'], ['{"v":{"$decimal":"x"}}'],
    ],
)  # fmt: skip
def test_damaged_texts_do_not_help_each_other(texts):
    there = ['{"a":1}', *texts, '{"a":1}']
    first, *found, last = text_digests(there).tolist()
    assert first == last == document_digests([{"a": 1}])[0]
    assert found == [UNREADABLE if text != "{}" else document_digests([{}])[0] for text in texts]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"n": 1e20}, '{"n":100000000000000000000}'),
        ({"n": 1e20}, '{"n":100000000000000000001}'),
        ({"n": 2**64}, '{"n":18446744073709551616}'),
        ({"n": 2**63}, '{"n":9223372036854775808}'),
        ({"n": 1.8446744073709552e20}, '{"n":184467440737095516160}'),
        ({"n": 0.1}, '{"n":0.1000000000000000055511151231257827}'),
        ({"n": 0.0}, '{"n":-0.0}'),
        ({"n": 1}, '{"n":1.0}'),
        ({"n": Decimal("0.10000000000000000001")}, '{"n":0.10000000000000000001}'),
        ({"n": 0.0}, '{"n":1e-999}'),
        ({"n": float("inf")}, '{"n":1e999}'),
        ({"n": 2}, '{"n":1,"n":2}'),
        ({"n": 2}, '{"n":2,"n":2}'),
        ({"n": {"a": 1}}, '{"n":{"a":1,"a":1}}'),
        ({"n": 1e15}, '{"n":1e15,"n":1e15}'),
        ({"a": '":'}, '{"a":"\\u0022:","a":"\\u0022:"}'),
        ({"a": 1, "b": 2}, '{"a":1,"b":2,"b" :2}'),
        ({"n": 1}, '{"n":1,"\\u006e":1}'),
        ({"n": [{"v": 1}]}, '{"n":[{"v":1,"v":1}]}'),
        ({"n": Decimal(1)}, '{"n":{"$decimal":"1","$decimal":"1"}}'),
    ],
)
def test_a_text_that_no_sink_writes_for_a_document_does_not_equal_it(document, text):
    beside = ['{"a":1}', '{"n":12345678901234567890123}', '{"$x":1}', '{"b" : "x"}']
    for texts in ([text], [text, *beside], [*beside, text]):
        assert document_digests([document])[0] not in text_digests(texts).tolist()


@pytest.mark.parametrize(
    "text_of", [text_of, lambda document: json.dumps(document, ensure_ascii=False)], ids=["sink", "spaces"]
)
def test_texts_of_equal_bytes_are_compared_all_at_once(monkeypatch, text_of):
    """Else each text is parsed a second time, which takes many times as long, and nothing else shows it."""
    looked_at = list[int]()
    same = texts_room._has_same_bytes

    def counting(text, lines, count):
        looked_at.append(count)
        return same(text, lines, count)

    monkeypatch.setattr(texts_room, "_has_same_bytes", counting)
    documents = [{"b": n, "a": [n / 4, 'é " x', None, {"z": True, "c": -n}]} for n in range(50)]
    assert text_digests(list(map(text_of, documents))).tolist() == document_digests(documents).tolist()
    assert looked_at == [50]


def json_values():
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(),
        st.decimals(), st.sampled_from([-0.0, 1e15, 1e16, 1e20, 1e22, 1e23, 5e-324, 2**53 + 1, 10**20]),
    )  # fmt: skip
    return st.recursive(
        leaves, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=6
    )


def is_written(value):
    try:
        encode_json(value)
    except MulticloudDbError:
        return False
    return True


@given(st.lists(json_values().filter(is_written), min_size=1, max_size=4))
def test_every_document_has_the_digest_of_its_text_in_any_form_of_json(values):
    documents = [{"v": value} for value in values]
    wanted = document_digests(documents).tolist()
    texts = list(map(text_of, documents))
    assert text_digests(texts).tolist() == wanted
    loose = [json.dumps(json.loads(text), indent=1) for text in texts]
    assert text_digests(loose).tolist() == wanted
    assert (len(set(wanted)) == 1) == (len({canonical_json(each) for each in documents}) == 1)


class TestHash:
    def test_is_the_same_in_every_form(self):
        texts = [b"x" * number for number in range(40)] + [b"", "ä€".encode(), b"\x00" * 8, b"\x00" * 9]
        texts += [random.Random(size).randbytes(size) for size in (1000, 1 << 20, 3)]
        found = digests_of(texts)
        assert len(set(found.tolist())) == len(set(texts))
        assert found.tolist() == [int(digests_of([text])[0]) for text in texts]
        column = pa.array([b"before", *texts], pa.binary()).slice(1)
        assert column_digests(column).tolist() == found.tolist()
        assert column_digests(pa.array([], pa.string())).tolist() == []

    def test_texts_that_are_nearly_equal_differ(self):
        bits = [
            bytes(8 * at) + (1 << one | 1 << two).to_bytes(16, "little") + bytes(72 - 8 * at)
            for at in range(9)
            for one in range(128)
            for two in range(one, 128)
        ]
        texts = {*bits, *(f"{number:x}".encode() for number in range(100_000)), *map(bytes, range(500))}
        found = digests_of(texts)
        assert len(np.unique(found)) == len(texts)
        parts = np.bincount((found.view(np.uint64) >> np.uint64(58)).astype(int), minlength=64)
        assert parts.max() < 1.2 * parts.mean() > 1.2 * (parts.mean() - parts.min())

    def test_does_not_change_because_a_later_process_goes_on(self):
        assert digests_of([b"", b'{"id":"o-000001"}', b"x" * 100]).tolist() == [
            -2145516268887277930,
            -7119469365767147785,
            -3293226512607914818,
        ]


def test_lines_in_another_order():
    lines = written([{"id": number} for number in range(5)])
    assert Lines.joined([lines, lines]).take(np.array([7, 0])).texts() == [b'{"id":2}', b'{"id":0}']
    assert lines.take(np.array([3, 1])).digests().tolist() == lines.digests()[[3, 1]].tolist()
    assert len(lines.take(np.array([], dtype=np.int64))) == 0
