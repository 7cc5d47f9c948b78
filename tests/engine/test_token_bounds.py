"""Tests that reading a forged token costs little memory and time, and that the engine returns no unreadable
token.
"""

import base64
import json
import subprocess
import sys
import tracemalloc
import zlib

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiclouddb_api import ErrorCategory, MulticloudDbError, ResourceAddress
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.continuation.lineage import Entry, Lineage
from multiclouddb_spi.continuation.state import state_from_json
from multiclouddb_spi.continuation.token import (
    MAX_BYTES,
    MAX_LEVELS,
    MAX_VALUES,
    Envelope,
    beyond_bounds,
    decode_token,
    encode_token,
)

MEBIBYTE = 1024 * 1024
HEAD = b'{"v":1,"p":"s","r":["d","c",null],"s":"collection","o":"","t":0,"c":'
EMPTY = Envelope("s", ResourceAddress("d", "c"), None, "collection", "", [], issued_at=0)
# The texts that take the most memory relative to their length, each as a repeated part and a closing part.
FORGERIES = {
    "lists": (b"[],", b"[]"),
    "objects": (b"{},", b"{}"),
    "small objects": (b'{"a":0},', b"0"),
    "numbers": (b"0,", b"0"),
    "texts": (b'"ab",', b'""'),
    "texts with commas": (b'",",', b'""'),
    "quotes": (b'"', b'"'),
    "escaped quotes": (rb"\"", b'"'),
    "backslashes": (b"\\", b'"'),
    "brackets": (b"[", b"]"),
    "both brackets": (b"[]", b"[]"),
    "spaces": (b" ", b"0"),
    "one text": (b"a", b"a"),
}
# A text or white space of this length is within the bounds.
TAKEN = ("spaces", "one text")


def sealed(payload, flag=b"z"):
    """Make a token with this payload and a correct checksum."""
    if flag == b"z":
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        payload = deflate.compress(payload) + deflate.flush()
    raw = flag + zlib.crc32(payload).to_bytes(4, "big") + payload
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def refused(token):
    with pytest.raises(MulticloudDbError) as caught:
        decode_token(token)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    return caught.value.message


def forged(kind, size):
    piece, last = FORGERIES[kind]
    return HEAD + b"[" + piece * (size // len(piece)) + last + b"]}"


def levels(value):
    """Return the nesting depth of a value, computed from the value itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


def count(value):
    """Return the number of values inside a value, including the keys of objects.

    An empty list or object counts as two.
    """
    if isinstance(value, dict):
        return 1 + (len(value) + sum(map(count, value.values())) if value else 1)
    return 1 + (sum(map(count, value)) or 1 if isinstance(value, list) else 0)


def nested(depth):
    return orjson.loads(b"[" * depth + b"]" * depth)


TEXTS = st.text(st.sampled_from('[]{},:"\\ab\n\u00e9')) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


class TestCounting:
    @given(VALUES, st.integers(0, MAX_LEVELS + 2), st.booleans())
    def test_levels_are_those_of_the_value_whatever_its_texts_hold(self, value, more, objects):
        for _ in range(more):
            value = {'"]': value, "[": 0} if objects else [value, "]"]
        text = json.dumps(value, ensure_ascii=False).encode()
        assert (beyond_bounds(text) is None) == (levels(value) <= MAX_LEVELS), text

    @settings(max_examples=40)  # each test counts the values in four megabytes
    @given(VALUES)
    def test_values_are_those_of_the_value_whatever_its_texts_hold(self, value):
        """Fill a token with the maximum number of values, and then with one more."""
        text = json.dumps(value).encode()
        if levels(value) > MAX_LEVELS - 1:
            return
        room = MAX_VALUES - 1 - count(value)
        assert beyond_bounds(b"[" + b"0," * room + text + b"]") is None
        assert "values" in beyond_bounds(b"[" + b"0," * (room + 1) + text + b"]")

    @given(st.binary())
    def test_anything_is_counted(self, text):
        beyond_bounds(text)

    @given(st.text(st.sampled_from('[]{},:"\\a'), max_size=60))
    def test_nothing_that_a_parser_takes_is_refused_for_less(self, text):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        assert (beyond_bounds(text.encode()) is None) == (levels(value) <= MAX_LEVELS)

    def test_each_bound_is_sharp(self):
        texts = [b'"' + b"a" * (MAX_BYTES - 2 + more) + b'"' for more in (0, 1)]
        deep = [b"[" * depth + b"]" * depth for depth in (MAX_LEVELS, MAX_LEVELS + 1)]
        many = [b"[" + b"0," * (MAX_VALUES - 2 + more) + b"0]" for more in (0, 1)]
        strings = [b"[" + b'"ab",' * (MAX_VALUES - 2 + more) + b'"ab"]' for more in (0, 1)]
        for fits, does_not in (texts, deep, many, strings):
            assert beyond_bounds(fits) is None
            assert beyond_bounds(does_not) is not None


class TestForged:
    @pytest.mark.parametrize("kind", [kind for kind in FORGERIES if kind not in TAKEN])
    def test_small_token_of_many_values_is_refused_for_a_few_times_what_is_inflated(self, kind):
        token = sealed(forged(kind, 63 * MEBIBYTE))
        assert len(token) < 700_000
        tracemalloc.start()
        try:
            refused(token)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 6 * MAX_BYTES

    @pytest.mark.parametrize("kind", ["lists", *TAKEN])
    def test_one_that_inflates_further_is_refused(self, kind):
        assert "too large" in refused(sealed(forged(kind, 65 * MEBIBYTE)))

    def test_one_that_is_large_without_deflating_is_refused(self):
        assert "too large" in refused(sealed(b"0" * (MAX_BYTES + 100), b"j"))
        assert "too large" in refused("A" * (MAX_BYTES * 2))

    def test_each_reason_is_told(self):
        assert "2000000 values" in refused(sealed(HEAD + b"[" + b"0," * MAX_VALUES + b"0]}"))
        assert "16 levels" in refused(sealed(HEAD + b"[" * 16 + b"]" * 16 + b"}"))
        assert decode_token(sealed(HEAD + b"[" * 15 + b"]" * 15 + b"}")).state == nested(15)

    @given(
        st.lists(st.sampled_from([*FORGERIES]), min_size=1, max_size=3), st.integers(0, 2000), st.booleans()
    )
    def test_any_mixture_is_a_token_or_refused(self, kinds, times, closed):
        text = HEAD + b"[" + b",".join(FORGERIES[kind][0] * times + FORGERIES[kind][1] for kind in kinds)
        found = None
        try:
            decode_token(sealed(text + b"]}" * closed))
        except MulticloudDbError as error:
            found = error.category
        assert found in (None, ErrorCategory.INVALID_REQUEST)


LIMITED = """
import resource, sys
from multiclouddb_api import MulticloudDbError
from multiclouddb_spi.continuation.token import decode_token
tokens = sys.stdin.read().split()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
for more in range(100, 1301, 200):
    resource.setrlimit(resource.RLIMIT_AS, (used + more * 2**20, hard))
    for token in tokens:
        try:
            decode_token(token)
            print("read")
        except MulticloudDbError as error:
            print(error.category)
"""


class TestUnderALimit:
    """Tests processes that may use 100 to 1300 MiB more than their modules need."""

    def told(self, tokens):
        ran = subprocess.run(
            [sys.executable, "-c", LIMITED],
            input="\n".join(tokens),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        told = ran.stdout.split()
        assert len(told) == 7 * len(tokens)
        assert set(told) <= {"read", "INVALID_REQUEST"}
        return told

    def test_process_survives_every_forgery(self):
        self.told([sealed(forged(kind, 63 * MEBIBYTE)) for kind in ("lists", "escaped quotes")])

    @pytest.mark.parametrize("piece", [b"[],", b'{"a":0},', b'"abcdefghijkl",', b"0.5,"], ids=str)
    def test_process_survives_the_most_that_is_read(self, piece):
        """Reads a token that has nearly the maximum number of values, and a text that fills the remaining
        bytes."""
        many = piece * ((MAX_VALUES - 100) // (3 if piece[:1] in b"[{" else 1))
        rest = MAX_BYTES - len(HEAD) - len(many) - 10
        told = self.told([sealed(HEAD + b"[" + many + b'"' + b"a" * rest + b'"]}')])
        assert (told[0], told[-1]) == ("INVALID_REQUEST", "read")

    def test_real_token_needs_little(self):
        state = [[f"shardId-{number:020d}-{number:08x}", [f"49{number:054d}", 7]] for number in range(32_000)]
        assert set(self.told([encode_token(attrs.evolve(EMPTY, state=state))])[1:]) == {"read"}


class TestMaking:
    @pytest.mark.parametrize("depth", [14, 300])
    def test_position_that_could_not_be_read_again_is_not_handed_out(self, depth):
        state = [["p", nested(depth)]]
        with pytest.raises(
            MulticloudDbError, match=r"nests? deeper than 16 levels.* the provider must write it as text"
        ) as caught:
            encode_token(attrs.evolve(EMPTY, state=state))
        assert caught.value.category == ErrorCategory.PERMANENT_FAILURE

    def test_position_that_nests_less_comes_back(self):
        state = [["p", nested(13)], ["c", [nested(12)], ["p"]]]
        assert decode_token(encode_token(attrs.evolve(EMPTY, state=state))).state == state

    def test_feed_of_too_many_partitions_is_told_to_read_them_one_by_one(self):
        state = [[str(number), 0] for number in range(MAX_VALUES // 3)]
        with pytest.raises(MulticloudDbError, match=r"2000000 values.*client\.plan_partitions"):
            encode_token(attrs.evolve(EMPTY, state=state))

    def test_feed_with_too_long_positions_is_told_so_too(self):
        with pytest.raises(MulticloudDbError, match="64 MiB"):
            encode_token(attrs.evolve(EMPTY, state=[["p", "x" * MAX_BYTES]]))

    def test_page_with_such_a_position_raises_and_the_token_before_it_stays(self, make_bench):
        class Deep(WrappedProvider):
            def fetch(self, reader, max_records, max_bytes, wait, deadline):
                batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
                return attrs.evolve(batch, end=nested(20))

        bench = make_bench()
        bench.connect()
        token = bench.page().continuation_token
        bench.fill(3)
        bench.connect(provider=Deep(SimulationProvider(bench.sim)))
        bench.refused(ErrorCategory.PERMANENT_FAILURE, token, match="16 levels")
        bench.connect()
        assert len(bench.drain(token)[0]) == 3


def waiting(name, *parents):
    return [name, [f"from {name}"], 4, list(parents)]


class TestWaits:
    CIRCLES = (
        [waiting("a", "a")],
        [waiting("a", "b"), waiting("b", "a")],
        [["p", 1], waiting("a", "p", "b"), waiting("b", "c"), waiting("c", "a"), waiting("d", "p")],
        [["p", 1, 1], waiting("a", "elsewhere", "b"), waiting("b", "p", "a")],
    )

    @pytest.mark.parametrize("value", CIRCLES, ids=str)
    def test_children_that_wait_for_each_other_are_refused(self, value):
        for read in (state_from_json, Lineage.from_json):
            with pytest.raises(InvalidCursor, match="wait for each other"):
                read({"p": value}, RULES)

    @pytest.mark.parametrize("value", [*CIRCLES, []], ids=str)
    def test_page_of_such_a_token_says_so(self, bench, value):
        token = bench.page().continuation_token
        made = encode_token(attrs.evolve(decode_token(token), state={"p": value}))
        error = bench.refused(ErrorCategory.INVALID_REQUEST, made)
        assert error.message.startswith("continuation_token: ")

    @given(st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 15)), max_size=12))
    def test_exactly_what_can_never_start_is_refused(self, waits):
        value = [waiting(str(name), *map(str, parents)) for name, parents in waits.items() if parents]
        left = {name: parents for name, parents in waits.items() if parents}
        while free := [name for name, parents in left.items() if not parents & left.keys()]:
            for name in free:
                del left[name]
        try:
            Lineage.from_json({"p": value}, RULES)
            assert not left
        except InvalidCursor:
            assert left

    def test_a_hundred_thousand_in_a_row_are_read(self):
        row = [["p0", 1], *(waiting(f"p{number}", f"p{number - 1}") for number in range(1, 100_000))]
        assert len(state_from_json({"p": row[::-1]}, RULES)) == 100_000

    def test_lineage_without_a_partition_is_refused(self):
        with pytest.raises(InvalidCursor, match="no partition"):
            state_from_json({"p": []}, RULES)
        assert state_from_json(Lineage([Entry.read("p", 1)], RULES).to_json(), RULES).active()

    def test_it_is_not_handed_out_either(self, make_bench):
        """If a start returns no partition, the application must repeat the call. A token without partitions
        would never return a change.
        """

        class Vague(WrappedProvider):
            def start(self, feed, position, partition_id, deadline):
                return []

        bench = make_bench()
        bench.connect(provider=Vague(SimulationProvider(bench.sim)), attempts=1)
        assert bench.refused(ErrorCategory.TRANSIENT_FAILURE, match="names no partition").retryable
