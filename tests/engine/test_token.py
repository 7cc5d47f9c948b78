"""Tests that old tokens stay readable, and that a token is not longer than needed and contains only data."""

import base64
import json
import zlib

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiclouddb_api import (
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    PhysicalPartition,
    ResourceAddress,
)
from multiclouddb_spi.continuation.entry import Entry, Stage
from multiclouddb_spi.continuation.lineage import Lineage
from multiclouddb_spi.continuation.token import Envelope, ReadUntil, decode_token, encode_token, scope_text

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

FULL = Envelope(
    "simulation",
    ResourceAddress("sim", "items"),
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
    ResourceAddress(None, "t"),
    "arn",
    "collection",
    "d1",
    [[f"shard-{number}", f"49{number}"] for number in range(20)],
    issued_at=1767225600,
)
SHORT = Envelope("s", ResourceAddress(None, "t"), None, "collection", "", [], issued_at=0)

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


def token_of(payload, *, deflate=False):
    """Make a token with any payload and a correct checksum."""
    raw = json.dumps(payload).encode() if not isinstance(payload, bytes) else payload
    return sealed(b"z" + squeezed(raw) if deflate else b"j" + raw)


def squeezed(raw):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(raw) + squeeze.flush()


def sealed(flagged):
    """Return the text of a flag and a payload."""
    raw = flagged[:1] + zlib.crc32(flagged[1:]).to_bytes(4, "big") + flagged[1:]
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def body(**changes):
    fields = {"v": 1, "p": "s", "r": ["d", "c", None], "s": "collection", "o": "", "t": 0, "c": []}
    return {name: value for name, value in {**fields, **changes}.items() if value is not ...}


def refused(token):
    with pytest.raises(MulticloudDbError) as caught:
        decode_token(token)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert caught.value.message.startswith("continuation_token: ")
    return caught.value.message


class TestRoundTrip:
    @pytest.mark.parametrize("envelope", [FULL, LARGE, SHORT], ids=["full", "large", "short"])
    def test_everything_in_it_comes_back(self, envelope):
        assert decode_token(encode_token(envelope)) == envelope

    def test_time_of_issue_is_now_by_default(self):
        import time

        issued = Envelope("s", ResourceAddress(None, "t"), None, "collection", "", []).issued_at
        assert abs(time.time() - issued) < 60

    @given(
        state=st.recursive(
            st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=20,
        ),
        texts=st.tuples(st.text(), st.text(), st.text()),
        watermark=st.none() | st.integers(-62135596800_000000, 253402300799_999999),
        skipped=st.lists(st.tuples(st.text(), st.text()), max_size=3),
    )
    def test_any_state_comes_back(self, state, texts, watermark, skipped):
        provider, scope, digest = texts
        state = json.loads(json.dumps(state).replace("Infinity", "0"))
        envelope = Envelope(
            provider, ResourceAddress("d", "c"), None, scope, digest, state, 7, watermark, tuple(skipped)
        )
        token = encode_token(envelope)
        assert decode_token(token) == envelope
        assert set(token) <= set(ALPHABET)

    @pytest.mark.parametrize("token", GOLDEN, ids=["full", "large", "plain"])
    def test_token_of_version_1_stays_readable(self, token):
        assert decode_token(token) == GOLDEN[token]


class TestSize:
    def test_payload_is_deflated_where_that_is_shorter(self):
        assert base64.urlsafe_b64decode(encode_token(LARGE)[:4])[:1] == b"z"
        assert len(encode_token(LARGE)) < len(json.dumps(LARGE.state))

    def test_deflating_never_makes_it_longer(self):
        for count in range(40):
            entries = [[f"{number * 7919 % 1000:x}", number * 104729] for number in range(count)]
            envelope = attrs.evolve(SHORT, state=entries)
            plain = len(json.dumps(body(p="s", r=[None, "t", None], c=entries), separators=(",", ":")))
            assert len(encode_token(envelope)) <= (plain + 5) * 4 / 3 + 1

    @pytest.mark.parametrize("failed_last", [False, True])
    def test_a_partition_costs_at_most_24_bytes_of_ours_before_deflating(self, failed_last):
        names = [f"shardId-{number:020d}-{number:08x}" for number in range(500)]
        cursors = [f"4957{number:020d}" for number in range(500)]
        state = Lineage(
            (
                Entry(name, Stage.READ, (cursor,), failed_last=failed_last)
                for name, cursor in zip(names, cursors, strict=True)
            ),
            max,
        ).to_json()
        whole = len(json.dumps(state, separators=(",", ":")))
        theirs = sum(len(json.dumps(text)) for text in [*names, *cursors])
        assert whole - theirs <= 24 * len(names)


class TestDamage:
    @pytest.mark.parametrize("token", GOLDEN, ids=["full", "large", "plain"])
    def test_every_mutation_of_one_character_is_refused(self, token):
        for index, character in enumerate(token):
            for other in ALPHABET:
                if other != character:
                    refused(token[:index] + other + token[index + 1 :])

    @pytest.mark.parametrize("token", GOLDEN, ids=["full", "large", "plain"])
    def test_every_cut_and_every_repetition_is_refused(self, token):
        for index in range(len(token)):
            refused(token[:index])
            refused(token[index + 1 :])
            refused(token[:index] + token[index] + token[index:] if index % 4 else token + token[: index + 4])

    @pytest.mark.parametrize(("payload", "unused"), [(b"{}   ", 4), (b"{}    ", 2)])
    def test_the_unused_bits_of_the_last_character_are_zero(self, payload, unused):
        """Base64 reads the same bytes, whatever these bits are; but each token has only one text."""
        token = sealed(b"j" + payload)
        place = ALPHABET.index(token[-1])
        assert place % (1 << unused) == 0
        for bits in range(1, 1 << unused):
            assert "its last characters" in refused(token[:-1] + ALPHABET[place + bits])

    @pytest.mark.parametrize("extra", ["=", "==", "\n", " ", "+", "/", "A", "AAAA", "é", "\0", "\ud800"])
    def test_every_addition_is_refused(self, extra):
        for token in GOLDEN:
            refused(token + extra)
            refused(extra + token)

    @given(st.text())
    def test_any_text_is_refused(self, text):
        refused(text)

    @given(st.binary())
    def test_any_bytes_as_base64_are_refused(self, raw):
        refused(base64.urlsafe_b64encode(raw).decode())
        refused(base64.urlsafe_b64encode(raw).rstrip(b"=").decode())

    @given(st.sampled_from([b"j", b"z", b"x", b"\0"]), st.binary())
    def test_any_payload_with_a_right_checksum_is_refused(self, flag, payload):
        refused(sealed(flag + payload))

    def test_what_is_not_base64_is_called_so(self):
        assert "base64url" in refused("ü")

    def test_damage_is_told_with_the_way_out(self):
        message = refused(next(iter(GOLDEN))[:-1])
        assert "damaged" in message
        assert "unchanged" in message


class TestInflating:
    def test_small_token_that_inflates_without_end_is_refused(self):
        """1 GiB of zeros deflates to 1 MiB; the full 1 GiB must never be in memory."""
        import resource

        squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
        mebibyte = squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
        bomb = 1024 * mebibyte + squeeze.flush()
        token = sealed(b"z" + bomb)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "too large" in refused(token)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024

    def test_deflated_data_with_something_behind_it_is_refused(self):
        refused(sealed(b"z" + squeezed(json.dumps(body()).encode()) + b"more"))

    def test_deflated_data_that_is_cut_is_refused(self):
        refused(sealed(b"z" + squeezed(json.dumps(body()).encode())[:-3]))


class TestFields:
    def test_token_that_is_made_by_hand_is_read(self):
        assert decode_token(token_of(body())).provider_id == "s"
        assert decode_token(token_of(body(), deflate=True)).provider_id == "s"

    @pytest.mark.parametrize("version", [2, 99])
    def test_newer_version_says_to_upgrade(self, version):
        message = refused(token_of({"v": version, "anything": "else"}))
        assert f"version {version}" in message
        assert "upgrade multiclouddb" in message

    @pytest.mark.parametrize("version", [0, -1, 1.5, "1", None, [1], ...], ids=repr)
    def test_version_that_never_was_is_refused(self, version):
        refused(token_of(body(v=version)))

    @pytest.mark.parametrize("name", ["p", "s", "o"])
    @pytest.mark.parametrize("value", [1, None, ["x"], {"x": 1}, ...], ids=repr)
    def test_text_field_of_another_type_is_refused(self, name, value):
        refused(token_of(body(**{name: value})))

    @pytest.mark.parametrize(
        "address",
        [None, "d/c", [], ["d", "c"], ["d", "c", 1], [1, "c", None], ["", "c", None], ["d", "  ", None], ...],
        ids=repr,
    )
    def test_address_that_is_none_is_refused(self, address):
        refused(token_of(body(r=address)))

    @pytest.mark.parametrize("value", ["now", 1.5, None, [0], ...], ids=repr)
    def test_time_of_issue_of_another_type_is_refused(self, value):
        refused(token_of(body(t=value)))

    @pytest.mark.parametrize(
        "value", ["now", 1.5, True, [0], 2**58, -(2**57), 253402300800_000000, -62135596800_000001]
    )
    def test_watermark_that_is_no_time_is_refused(self, value):
        assert "watermark" in refused(token_of(body(w=value)))

    @pytest.mark.parametrize(
        "value", ["now", 1.5, 7, [], [7], [7, 0], [7, None], [None, True], [2**58, True], [7, True, 1], {}]
    )
    def test_moment_that_is_no_time_is_refused(self, value):
        refused(token_of(body(u=value)))

    @pytest.mark.parametrize("found", [None, ReadUntil(7), ReadUntil(1767225600123457, estimated=True)])
    def test_moment_until_which_it_was_read_comes_back(self, found):
        envelope = attrs.evolve(FULL, read_until=found)
        assert decode_token(encode_token(envelope)) == envelope

    @pytest.mark.parametrize("value", [-62135596800_000000, 253402300799_999999])
    def test_first_and_last_moment_are_times(self, value):
        assert decode_token(token_of(body(w=value))).watermark == value

    @pytest.mark.parametrize("value", [None, "x", {}, [1], [["a"]], [["a", 1]], [["a", "b", "c"]]], ids=repr)
    def test_skipped_records_of_another_form_are_refused(self, value):
        refused(token_of(body(k=value)))

    @pytest.mark.parametrize("payload", [b"", b"[]", b"7", b"null", b'"text"', b"{", b"\xff", b'{"v":1}'])
    def test_payload_that_is_no_token_is_refused(self, payload):
        refused(token_of(payload))

    @pytest.mark.parametrize("depth", [260, 600, 5_000, 200_000])
    def test_nesting_that_cannot_be_written_again_is_refused(self, depth):
        start, end = json.dumps(body(c=None)).encode().split(b"null}")
        deep = start + b"[" * depth + b"]" * depth + b"}" + end
        refused(token_of(deep))

    def test_repr_does_not_show_a_whole_token(self):
        from multiclouddb_api import FromContinuationToken

        token = next(iter(GOLDEN))
        assert token not in repr(FromContinuationToken(token))


class TestScope:
    ADDRESS_KEY = MulticloudDbKey({"customer": "secret name", "order": 7})

    def test_every_scope_has_a_text_of_its_own(self):
        texts = [
            scope_text(EntireCollection()),
            scope_text(EntireDatabase()),
            scope_text(EntireCluster()),
            scope_text(PhysicalPartition("any"), "p1"),
            scope_text(PhysicalPartition("any"), "p2"),
            scope_text(LogicalPartition(self.ADDRESS_KEY)),
            scope_text(LogicalPartition(MulticloudDbKey({"customer": "another"}))),
        ]
        assert len(set(texts)) == len(texts)

    def test_partition_key_alone_counts(self):
        assert scope_text(LogicalPartition(self.ADDRESS_KEY)) == scope_text(
            LogicalPartition(MulticloudDbKey({"customer": "secret name", "order": 8}))
        )

    def test_key_is_not_readable_in_it(self):
        assert "secret" not in scope_text(LogicalPartition(self.ADDRESS_KEY))

    def test_order_of_names_in_a_key_value_counts(self):
        values = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
        texts = {scope_text(LogicalPartition(MulticloudDbKey({"_id": value}))) for value in values}
        assert len(texts) == 2

    @settings(max_examples=50)
    @given(st.sampled_from([1, 1.0, True, "1"]), st.sampled_from([1, 1.0, True, "1"]))
    def test_types_of_key_values_count(self, one, other):
        texts = [scope_text(LogicalPartition(MulticloudDbKey({"k": value}))) for value in (one, other)]
        assert (texts[0] == texts[1]) == (type(one) is type(other))
