"""Tests continuation tokens: old ones stay readable, they hold only data, and none costs much to refuse."""

import base64
import json
import math
import subprocess
import sys
import tracemalloc
import zlib

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multiclouddb_api as api
from multiclouddb_conformance.delegating import WrappedProvider
from multiclouddb_conformance.explore.world import RULES
from multiclouddb_conformance.simulation import SimulationProvider
from multiclouddb_spi import InvalidCursor
from multiclouddb_spi.continuation import token as module
from multiclouddb_spi.continuation.entry import (
    Audited,
    Entry,
    NextSearch,
    Plan,
    Stage,
    audited_from_json,
    audited_to_json,
    entry_from_json,
    entry_to_json,
    shown,
)
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.state import end_from_json, state_from_json
from multiclouddb_spi.continuation.token import (
    MAX_BYTES,
    MAX_LEVELS,
    MAX_VALUES,
    Envelope,
    ReadUntil,
    beyond_bounds,
    decode_token,
    encode_token,
    scope_text,
)

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
MEBIBYTE = 1024 * 1024
MOST = 2**53
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""

FULL = Envelope(
    "simulation",
    api.ResourceAddress("sim", "items"),
    "i1",
    "collection",
    "",
    [["p1", [7, 2]], ["p2", 12, 2], ["p3", 9, 1], ["p5", [7, 8], ["p2"]]],
    issued_at=1767225600,
    watermark=1767225600123456,
    skipped=(("simulation:x.y:p1", "commit 3, record 1"),),
)
LARGE = Envelope(
    "dynamo",
    api.ResourceAddress(None, "t"),
    "arn",
    "collection",
    "d1",
    [[f"shard-{number}", f"49{number}"] for number in range(20)],
    issued_at=1767225600,
)
SHORT = Envelope("s", api.ResourceAddress(None, "t"), None, "collection", "", [], issued_at=0)

# Tokens of version 1 as they were returned. Add tokens here, but never change one.
GOLDEN = {
    "eiedE7tNjs0OwiAQhF-lmfPGFLCt8iqEg8EeiEUawL8Y392FNNHTzk6-nZ037tCCsEIj-3BbTsXHKwgJ2lSHpS9zyHUKWEJm0sV"
    "lmd1GRjZ4FM6ZxknKYex7guN7g1WAzETSWuJFgoTkpWoFOpJocmjMYUMss3j8hwmp9sNIuLTIX0v93L10_cB9QvClU9Sl2cV07r"
    "ip_XwB": FULL,
    "euV_639Vz9EKgkAUhOF3Odcb7Jjuqq8iXogGBaahFkT07q3nFExX4re78M9LHlLDyU1qGZ5Td53FySJ1M93H0cmW_rplktbJmm70"
    "8zie-u0yT8nn_Qlkv1QjhphlRfDeSZ9eN7Keu2U4-HScVz69_wlUQJKpZCRHlSNJrpKTFCoFSVAJJFElkpQqJUmlUnGhReOv-pvN3"
    "bBwcDksHdwOiwfXw_LB_bAB4AWwCeANsBHgFbAZ6dO27w8": LARGE,
    "atCO8UR7InYiOjEsInAiOiJzIiwiciI6W251bGwsInQiLG51bGxdLCJzIjoiY29sbGVjdGlvbiIsIm8iOiIiLCJ0IjowLCJj"
    "IjpbXX0": SHORT,
}  # fmt: skip


def squeezed(raw):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(raw) + squeeze.flush()


def signed(flag, payload):
    """Make a token with a correct checksum."""
    raw = flag + zlib.crc32(payload).to_bytes(4, "big") + payload
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sealed(payload, flag=b"z"):
    """Make a token with this payload, which is deflated by default."""
    return signed(flag, squeezed(payload) if flag == b"z" else payload)


def body(**changes):
    fields = {"v": 1, "p": "s", "r": ["d", "c", None], "s": "collection", "o": "", "t": 0, "c": []}
    return {name: value for name, value in {**fields, **changes}.items() if value is not ...}


def token_of(**changes):
    return sealed(json.dumps(body(**changes)).encode(), b"j")


def refused(token):
    with pytest.raises(api.MulticloudDbError) as caught:
        decode_token(token)
    assert caught.value.category == api.ErrorCategory.INVALID_REQUEST
    assert caught.value.message.startswith("continuation_token: ")
    return caught.value.message


class TestRoundTrip:
    @pytest.mark.parametrize("token", GOLDEN, ids=["full", "large", "plain"])
    def test_a_token_of_version_1_stays_readable(self, token):
        assert decode_token(token) == GOLDEN[token] == decode_token(encode_token(GOLDEN[token]))

    @given(
        state=st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        ),
        texts=st.tuples(st.text(), st.text(), st.text()),
        watermark=st.none() | st.integers(FIRST, LAST),
        skipped=st.lists(st.tuples(st.text(), st.text()), max_size=3),
    )
    def test_any_state_comes_back(self, state, texts, watermark, skipped):
        provider, scope, digest = texts
        state = json.loads(json.dumps(state).replace("Infinity", "0"))
        address = api.ResourceAddress("d", "c")
        envelope = Envelope(provider, address, None, scope, digest, state, 7, watermark, tuple(skipped))
        token = encode_token(envelope)
        assert decode_token(token) == envelope
        assert set(token) <= set(ALPHABET)

    @pytest.mark.parametrize(
        "found", [None, ReadUntil(7, estimated=False), ReadUntil(1767225600123457, estimated=True)]
    )
    def test_the_moment_until_which_it_was_read_comes_back(self, found):
        envelope = attrs.evolve(FULL, read_until=found)
        assert decode_token(encode_token(envelope)) == envelope

    def test_every_scope_has_a_text_of_its_own_and_a_key_cannot_be_read_in_it(self):
        keys = [
            {"customer": "secret name"}, {"customer": "another"}, {"k": 1}, {"k": 1.0}, {"k": True},
            {"k": "1"},
            {"_id": {"a": 1, "b": 2}}, {"_id": {"b": 2, "a": 1}},
        ]  # fmt: skip
        texts = [
            scope_text(api.EntireCollection()),
            scope_text(api.EntireDatabase()),
            scope_text(api.EntireCluster()),
            scope_text(api.PhysicalPartition("any"), "p1"),
            scope_text(api.PhysicalPartition("any"), "p2"),
            *[scope_text(api.LogicalPartition(api.MulticloudDbKey(key))) for key in keys],
        ]
        assert len(set(texts)) == len(texts)
        assert not any("secret" in text for text in texts)
        whole = api.MulticloudDbKey({"customer": "secret name", "order": 8})
        assert scope_text(api.LogicalPartition(whole)) in texts, "only the partition key counts"

    def test_repr_does_not_show_a_whole_token(self):
        token = next(iter(GOLDEN))
        assert token not in repr(api.FromContinuationToken(token))


class TestSize:
    def test_a_payload_is_deflated_where_that_is_shorter(self):
        assert base64.urlsafe_b64decode(encode_token(LARGE)[:4])[:1] == b"z"
        for count in range(40):
            entries = [[f"{number * 7919 % 1000:x}", number * 104729] for number in range(count)]
            plain = len(json.dumps(body(p="s", r=[None, "t", None], c=entries), separators=(",", ":")))
            assert len(encode_token(attrs.evolve(SHORT, state=entries))) <= (plain + 5) * 4 / 3 + 1

    @pytest.mark.parametrize("failed_last", [False, True])
    def test_a_partition_costs_at_most_24_bytes_of_ours_before_deflating(self, failed_last):
        pairs = [(f"shardId-{number:020d}-{number:08x}", f"4957{number:020d}") for number in range(500)]
        entries = [Entry(name, Stage.READ, (at,), failed_last=failed_last) for name, at in pairs]
        whole = len(json.dumps(Lineage(entries, max).to_json(), separators=(",", ":")))
        theirs = sum(len(json.dumps(text)) for pair in pairs for text in pair)
        assert whole - theirs <= 24 * len(pairs)

    def test_one_of_exactly_the_bound_is_read(self, bench, monkeypatch):
        text = bench.page(api.Now()).continuation_token
        monkeypatch.setattr(module, "_MOST_CHARACTERS", len(text))
        assert bench.page(text).idle
        monkeypatch.setattr(module, "_MOST_CHARACTERS", len(text) - 1)
        bench.refused(api.ErrorCategory.INVALID_REQUEST, text, match="too large")

    def test_none_is_too_long_whose_json_is_within_the_bound(self):
        raw = len(b"j") + 4 + MAX_BYTES
        assert "not base64url text" in refused("é".ljust(math.ceil(raw * 4 / 3), "A"))


class TestDamage:
    @pytest.mark.parametrize("token", list(GOLDEN)[1:], ids=["large", "plain"])
    def test_every_change_of_one_character_is_refused(self, token):
        for index, character in enumerate(token):
            for other in set(ALPHABET) - {character}:
                refused(token[:index] + other + token[index + 1 :])
            refused(token[:index])
            refused(token[index + 1 :])
            refused(token[:index] + token[index] + token[index:] if index % 4 else token + token[: index + 4])

    @pytest.mark.parametrize(("payload", "unused"), [(b"{}   ", 4), (b"{}    ", 2)])
    def test_the_unused_bits_of_the_last_character_are_zero(self, payload, unused):
        """Base64 reads the same bytes, whatever these bits are; but each token has only one text."""
        token = sealed(payload, b"j")
        place = ALPHABET.index(token[-1])
        assert place % (1 << unused) == 0
        for bits in range(1, 1 << unused):
            assert "its last characters" in refused(token[:-1] + ALPHABET[place + bits])

    @pytest.mark.parametrize("extra", ["=", "==", "\n", " ", "+", "/", "A", "AAAA", "é", "\0", "\ud800"])
    def test_every_addition_is_refused(self, extra):
        for token in GOLDEN:
            refused(token + extra)
            refused(extra + token)

    @given(st.sampled_from([b"j", b"z", b"x", b"\0"]), st.binary())
    def test_any_payload_with_a_right_checksum_is_refused(self, flag, payload):
        refused(signed(flag, payload))

    def test_deflated_data_that_is_cut_or_goes_on_is_refused(self):
        good = squeezed(json.dumps(body()).encode())
        for payload in (good + b"more", good[:-3]):
            refused(signed(b"z", payload))


class TestFields:
    def test_a_token_that_is_made_by_hand_is_read(self):
        assert decode_token(token_of()).provider_id == "s"
        for value in (FIRST, LAST):
            assert decode_token(token_of(w=value)).watermark == value

    def test_a_newer_version_says_to_upgrade(self):
        message = refused(sealed(b'{"v":99,"anything":"else"}', b"j"))
        assert "version 99" in message
        assert "upgrade multiclouddb" in message

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("v", [0, -1, 1.5, "1", None, [1], ...]),
            *[(name, [1, None, ["x"], {"x": 1}, ...]) for name in "pso"],
            ("r", [None, "d/c", [], ["d", "c"], ["d", "c", 1], ...]),
            ("r", [[1, "c", None], ["", "c", None], ["d", "", None]]),
            ("t", ["now", 1.5, None, [0], ...]),
            ("w", ["now", 1.5, True, [0], 2**58, -(2**57), LAST + 1, FIRST - 1]),
            ("u", ["now", 1.5, 7, [], [7], [7, 0], [7, None], [None, True], [2**58, True], [7, True, 1], {}]),
            ("k", [None, "x", {}, [1], [["a"]], [["a", 1]], [["a", "b", "c"]]]),
        ],
    )
    def test_one_of_another_type_is_refused(self, name, values):
        for value in values:
            refused(token_of(**{name: value}))

    @pytest.mark.parametrize("payload", [b"", b"[]", b"7", b"null", b'"text"', b"{", b"\xff", b'{"v":1}'])
    def test_a_payload_that_is_no_token_is_refused(self, payload):
        refused(sealed(payload, b"j"))

    @pytest.mark.parametrize("since", [FIRST, 0, LAST, None])
    def test_an_audit_counts_from_any_time_that_a_user_can_name(self, since):
        assert audited_from_json([since, 1, 0]) == Audited(since, 1, NextSearch.REGULAR)

    @pytest.mark.parametrize("following", NextSearch)
    def test_what_the_last_audit_left_open_is_kept(self, following):
        audited = Audited(None, 1, following)
        assert audited_from_json(audited_to_json(audited)) == audited

    @pytest.mark.parametrize("since", [FIRST - 1, LAST + 1, 2**59, True, "0", 1.5])
    def test_an_audit_counts_from_no_other_time(self, since):
        """If a forged token made every audit fail, missed partitions would stay hidden."""
        with pytest.raises(InvalidCursor):
            audited_from_json([since, 1, 0])


class TestFlags:
    PLAN = ("f", 5, None, None, 0, None, 0, None, 0)

    @pytest.mark.parametrize("flags", [16 | 1, 16 | 256, 64, 128 | 1, 256, 2**60])
    def test_those_of_a_newer_version_say_to_upgrade(self, flags):
        with pytest.raises(api.MulticloudDbError, match=r"newer version .* upgrade multiclouddb") as caught:
            entry_from_json(["p", None, flags, list(self.PLAN)])
        assert caught.value.category == api.ErrorCategory.INVALID_REQUEST

    @pytest.mark.parametrize("flags", [0, -1, True, 1.0, 2.0, 3, 6, 32, None])
    def test_those_of_no_version_are_refused(self, flags):
        for rest in ([], [["c"], 0], [["c"]], [list(self.PLAN)]):
            with pytest.raises(InvalidCursor):
                entry_from_json(["p", [5], flags, *rest])

    def test_those_that_are_written_are_read(self):
        for entry in (
            Entry.read("p", 5),
            Entry("p", Stage.READ, (5,), failed_last=True),
            Entry("p", Stage.READ, (5,), failed_last=True, listed=False),
            Entry("p", Stage.WAIT, (5, 6), ("q",), listed=False),
            Entry("p", Stage.END, (), children=("c",), looks=MOST),
            Entry("p", Stage.END, (5,), final=True),
            Plan("p", None, *self.PLAN[:2], auto=True, rows=MOST, records=MOST),
        ):
            assert entry_from_json(json.loads(json.dumps(entry_to_json(entry)))) == entry

    def test_a_count_that_is_too_high_is_refused(self):
        assert shown(MOST) == MOST
        assert shown(MOST + 1) is shown(-1) is None
        with pytest.raises(InvalidCursor):
            entry_from_json(["p", 5, 1, ["c"], MOST + 1])
        with pytest.raises(InvalidCursor):
            end_from_json({"retired": "p", "children": [], "watch": [5, MOST, []]})


HEAD = b'{"v":1,"p":"s","r":["d","c",null],"s":"collection","o":"","t":0,"c":'
EMPTY = Envelope("s", api.ResourceAddress("d", "c"), None, "collection", "", [], issued_at=0)
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
COUNTED = [kind for kind in FORGERIES if kind not in TAKEN]
TEXTS = st.text(st.sampled_from('[]{},:"\\ab\n\u00e9')) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
LIMITED = """
import resource, sys
from multiclouddb_api import MulticloudDbError
from multiclouddb_spi.continuation.token import decode_token
token = sys.stdin.read()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
for more in (100, 1000, 1300):
    resource.setrlimit(resource.RLIMIT_AS, (used + more * 2**20, hard))
    try:
        decode_token(token)
        print("read")
    except MulticloudDbError as error:
        print(error.category)
"""


def forged(kind, size):
    piece, last = FORGERIES[kind]
    return HEAD + b"[" + piece * (size // len(piece)) + last + b"]}"


def levels(value):
    """Return the nesting depth of a value, computed from the value itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels, inner), default=0)


def nested(depth):
    return orjson.loads(b"[" * depth + b"]" * depth)


class TestBounds:
    @given(VALUES, st.integers(0, MAX_LEVELS + 2), st.booleans())
    def test_levels_are_those_of_the_value_whatever_its_texts_hold(self, value, more, objects):
        for _ in range(more):
            value = {'"]': value, "[": 0} if objects else [value, "]"]
        text = json.dumps(value, ensure_ascii=False).encode()
        assert (beyond_bounds(text) is None) == (levels(value) <= MAX_LEVELS), text

    @given(st.binary() | st.text(st.sampled_from('[]{},:"\\a'), max_size=60).map(str.encode))
    def test_nothing_that_a_parser_takes_is_refused_for_less(self, text):
        found = beyond_bounds(text)
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        assert (found is None) == (levels(value) <= MAX_LEVELS)

    def test_each_bound_is_sharp(self):
        texts = [b'"' + b"a" * (MAX_BYTES - 2 + more) + b'"' for more in (0, 1)]
        deep = [b"[" * depth + b"]" * depth for depth in (MAX_LEVELS, MAX_LEVELS + 1)]
        strings = [b"[" + b'"ab",' * (MAX_VALUES - 2 + more) + b'"ab"]' for more in (0, 1)]
        for fits, does_not in (texts, deep, strings):
            assert beyond_bounds(fits) is None
            assert beyond_bounds(does_not) is not None

    def test_each_reason_is_told(self):
        assert "2000000 values" in refused(sealed(HEAD + b"[" + b"0," * MAX_VALUES + b"0]}"))
        assert "16 levels" in refused(sealed(HEAD + b"[" * 16 + b"]" * 16 + b"}"))
        assert decode_token(sealed(HEAD + b"[" * 15 + b"]" * 15 + b"}")).state == nested(15)
        assert "too large" in refused(sealed(b"0" * (MAX_BYTES + 100), b"j"))
        assert "too large" in refused("A" * (MAX_BYTES * 2))
        assert "too large" in refused(sealed(forged("spaces", 65 * MEBIBYTE)))


class TestForged:
    @pytest.mark.parametrize(
        "kinds",
        [["lists", "escaped quotes"], pytest.param(COUNTED, marks=pytest.mark.soak)],
        ids=["some", "all"],
    )
    def test_a_small_token_of_many_values_is_refused_for_a_few_times_what_is_inflated(self, kinds):
        for kind in kinds:
            token = sealed(forged(kind, 63 * MEBIBYTE))
            assert len(token) < 700_000
            tracemalloc.start()
            try:
                refused(token)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 6 * MAX_BYTES, kind

    @given(
        st.lists(st.sampled_from([*FORGERIES]), min_size=1, max_size=3), st.integers(0, 2000), st.booleans()
    )
    def test_any_mixture_is_a_token_or_refused(self, kinds, times, closed):
        text = HEAD + b"[" + b",".join(FORGERIES[kind][0] * times + FORGERIES[kind][1] for kind in kinds)
        found = None
        try:
            decode_token(sealed(text + b"]}" * closed))
        except api.MulticloudDbError as error:
            found = error.category
        assert found in (None, api.ErrorCategory.INVALID_REQUEST)

    def test_texts_with_commas_are_counted_in_little_memory(self, monkeypatch):
        monkeypatch.setattr(module, "MAX_VALUES", 100)
        text = b"[" + FORGERIES["texts with commas"][0] * 100_000 + b"0]"
        tracemalloc.start()
        try:
            assert beyond_bounds(text) == "it has more than 100 values"
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 6 * len(text)

    def test_a_process_with_little_memory_survives_it(self):
        """The token has nearly the most values, and a text that fills the remaining bytes."""
        many = b'{"a":0},' * ((MAX_VALUES - 100) // 3)
        text = b"a" * (MAX_BYTES - len(HEAD) - len(many) - 10)
        token = sealed(HEAD + b"[" + many + b'"' + text + b'"]}')
        command = [sys.executable, "-c", LIMITED]
        ran = subprocess.run(command, input=token, capture_output=True, text=True, check=False)
        assert (ran.stdout.split(), ran.stderr) == (["INVALID_REQUEST", "INVALID_REQUEST", "read"], "")


class Deep(WrappedProvider):
    def fetch(self, reader, max_records, max_bytes, wait, deadline):
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return attrs.evolve(batch, end=nested(20))


class Vague(WrappedProvider):
    def start(self, feed, position, partition_id, deadline):
        return []


class TestMaking:
    @pytest.mark.parametrize(
        ("state", "match"),
        [
            ([["p", nested(14)]], r"nests? deeper than 16 levels.* the provider must write it as text"),
            ([["p", nested(300)]], r"nests? deeper than 16 levels.* the provider must write it as text"),
            ([["p", "x" * MAX_BYTES]], "64 MiB"),
            ([[str(each), 0] for each in range(MAX_VALUES // 3)], r"2000000 values.*client\.plan_partitions"),
        ],
        ids=["deep", "deeper", "long", "many"],
    )
    def test_one_that_could_not_be_read_again_is_not_handed_out(self, state, match):
        with pytest.raises(api.MulticloudDbError, match=match) as caught:
            encode_token(attrs.evolve(EMPTY, state=state))
        assert caught.value.category == api.ErrorCategory.PERMANENT_FAILURE

    def test_a_position_that_nests_less_comes_back(self):
        state = [["p", nested(13)], ["c", [nested(12)], ["p"]]]
        assert decode_token(encode_token(attrs.evolve(EMPTY, state=state))).state == state

    def test_a_page_with_such_a_position_raises_and_the_token_before_it_stays(self, bench):
        token = bench.page().continuation_token
        bench.fill(3)
        bench.connect(provider=Deep(SimulationProvider(bench.sim)))
        bench.refused(api.ErrorCategory.PERMANENT_FAILURE, token, match="16 levels")
        bench.connect()
        assert len(bench.drain(token)[0]) == 3

    def test_one_without_a_partition_is_not_handed_out(self, bench):
        """It would never return a change, so the application must repeat the start."""
        bench.connect(provider=Vague(SimulationProvider(bench.sim)), attempts=1)
        assert bench.refused(api.ErrorCategory.TRANSIENT_FAILURE, match="names no partition").retryable


def waiting(name, *parents):
    return [name, [f"from {name}"], 4, list(parents)]


class TestWaits:
    @pytest.mark.parametrize(
        "value",
        [
            [waiting("a", "a")],
            [waiting("a", "b"), waiting("b", "a")],
            [["p", 1], waiting("a", "p", "b"), waiting("b", "c"), waiting("c", "a"), waiting("d", "p")],
            [["p", 1, 1], waiting("a", "elsewhere", "b"), waiting("b", "p", "a")],
            [],
        ],
        ids=str,
    )
    def test_children_that_can_never_start_are_refused(self, bench, value):
        with pytest.raises(InvalidCursor, match="wait for each other" if value else "no partition"):
            state_from_json({"p": value}, RULES)
        token = bench.page().continuation_token
        made = encode_token(attrs.evolve(decode_token(token), state={"p": value}))
        error = bench.refused(api.ErrorCategory.INVALID_REQUEST, made)
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

    def test_many_thousands_in_a_row_are_read(self):
        row = [["p0", 1], *(waiting(f"p{number}", f"p{number - 1}") for number in range(1, 20_000))]
        assert len(state_from_json({"p": row[::-1]}, RULES)) == 20_000


def test_a_token_of_another_provider_is_not_inspected(bench):
    token = bench.page(api.Now()).continuation_token
    other = attrs.evolve(decode_token(token), provider_id="elsewhere")
    with pytest.raises(api.MulticloudDbError, match="elsewhere") as caught:
        bench.engine.inspect(encode_token(other), api.OperationOptions(), None, None)
    assert caught.value.category == api.ErrorCategory.INVALID_REQUEST
