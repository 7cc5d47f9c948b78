"""Tests `MulticloudDbError`: its message, its details (also after pickling), and unknown categories."""

import copy
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from multiclouddb_api import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    errors,
    invalid_request,
)
from multiclouddb_api.redaction import redact_url, shorten

DETAIL = ErrorDetail(
    category=ErrorCategory.PROVIDER_ERROR,
    provider="dynamo",
    operation="read_changes",
    retryable=True,
    native_class="botocore.exceptions.ClientError",
    native_code="400",
    native_text="too much",
    oldest_position="sequence 7",
    skip_token="t" * 100,
    retry_after_seconds=2.5,
    reason=ErrorReason.UNDECODABLE,
)

SECRET = "hunter2"


def text_around(word):
    """Generate parts of URLs; every part contains the secret word."""
    piece = st.text(alphabet=":/@?&;#=%…[],. \\\na1ü", max_size=8) | st.text(max_size=4)
    return st.tuples(piece, st.just(word), piece).map("".join)


class TestError:
    def test_pickles_and_copies_with_its_detail_and_notes(self):
        error = MulticloudDbError("it failed; do that", DETAIL)
        error.add_note("page 7")
        pickled = [pickle.loads(pickle.dumps(error, each)) for each in range(pickle.HIGHEST_PROTOCOL + 1)]
        for back in (*pickled, copy.deepcopy(error)):
            assert type(back) is MulticloudDbError
            assert (back.message, back.detail, back.__notes__) == (error.message, DETAIL, error.__notes__)
            assert type(back.category) is ErrorCategory
            assert type(back.reason) is ErrorReason

    def test_reads_as_category_and_message_without_a_token(self):
        error = MulticloudDbError("it failed; do that", DETAIL)
        assert str(error) == "[PROVIDER_ERROR] it failed; do that"
        assert "t" * 100 not in repr(error)
        assert (error.category, error.retryable) == (ErrorCategory.PROVIDER_ERROR, True)


LINK = "https://multiclouddb.readthedocs.io/latest/reference/errors/#provider_error"


def through_pickle(error, times=3):
    for _ in range(times):
        error = pickle.loads(pickle.dumps(error))
    return error


@pytest.mark.shows("Further 12")
class TestHelp:
    def test_each_category_has_a_place_on_the_page(self):
        for category in ErrorCategory.known():
            error = MulticloudDbError("it failed", ErrorDetail(category))
            assert error.help_url == f"{errors.DOCS_URL}reference/errors/#{category.lower()}"

    def test_a_traceback_ends_with_the_link(self):
        program = (
            "from multiclouddb_api import *; import pickle\n"
            "error = MulticloudDbError('it failed; do that', ErrorDetail(ErrorCategory.PROVIDER_ERROR))\n"
            "raise pickle.loads(pickle.dumps(error))"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ran.stderr.splitlines()[-2:] == [
            "multiclouddb_api.errors.MulticloudDbError: [PROVIDER_ERROR] it failed; do that",
            f"See {LINK}",
        ]

    @pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
    def test_the_link_is_there_once_however_the_error_travels(self, again):
        error = again(MulticloudDbError("it failed", DETAIL))
        assert (error.help_url, error.__notes__) == (LINK, [f"See {LINK}"])

    def test_an_error_made_of_another_one_has_its_own_link(self):
        error = MulticloudDbError("it failed", DETAIL)
        other = MulticloudDbError(error.message, attrs.evolve(error.detail, category=ErrorCategory.CONFLICT))
        assert other.__notes__ == [f"See {errors.DOCS_URL}reference/errors/#conflict"]


class TestCategory:
    def test_all_of_the_design_are_there(self):
        design = """
            INVALID_REQUEST AUTHENTICATION_FAILED AUTHORIZATION_FAILED NOT_FOUND CONFLICT THROTTLED
            TRANSIENT_FAILURE PERMANENT_FAILURE PROVIDER_ERROR UNSUPPORTED_CAPABILITY CHECKPOINT_EXPIRED
        """
        assert set(ErrorCategory.known()) == set(design.split())

    def test_each_is_its_own_name_and_declared(self):
        assert set(ErrorCategory.__annotations__) == set(ErrorCategory.known())
        for category in ErrorCategory.known():
            assert getattr(ErrorCategory, category) is category
            assert category == str(category)

    def test_one_of_a_later_version_is_carried(self):
        later = ErrorCategory("QUOTA_EXCEEDED")
        error = pickle.loads(pickle.dumps(MulticloudDbError("no", ErrorDetail(later))))
        assert error.category == "QUOTA_EXCEEDED"
        assert error.category not in ErrorCategory.known()


def test_an_invalid_request_names_field_problem_and_way_out():
    error = invalid_request("max_page_size", "is -1", "use 0")
    assert error.message == "max_page_size: is -1; use 0"
    assert error.detail == ErrorDetail(ErrorCategory.INVALID_REQUEST)


KEPT = [
    "mongodb://a:27017,b-1.example.net:27018,[::1]:27019/shop.orders?replicaSet=rs",
    "mongodb://%2Ftmp%2Fmongodb-27017.sock/shop",
    "dynamo://eu-west-1?endpoint_url=http://localhost:8000",
    "spanner://project/instance",
    "cosmos://localhost:8081?tls=false",
    "http://localhost:8000:",
    "https://example.net/docs/errors.md#not_found",
    "PROVIDER://…",
    "dynamo://REGION?endpoint_url=http://localhost:8000",
    "mongodb://HOST[:PORT][,…]/[DATABASE][?replicaSet=NAME&…]",
    "mongodb+srv://HOST/…",
]


class TestShown:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("mongodb://user:hunter2@host/db", "mongodb://***@host/db"),
            ("mongodb+srv://user:p%40ss@host", "mongodb+srv://***@host"),
            ("mongodb://u:hunter2@a,b:27018/db?replicaSet=r", "mongodb://***@a,b:27018/db?replicaSet=r"),
            ("mongodb://user:hun@ter2@host/db", "mongodb://***@host/db"),
            ("mongodb://user:hun/ter2@host/db", "mongodb://***@host/db"),
            ("mongodb://user:hun?ter2@host/db", "mongodb://***@host/db"),
            ("mongodb://user:hun#ter2@host/db", "mongodb://***@host/db"),
            ("cosmos://host:8081?tls=false&key=hunter2", "cosmos://host:8081?tls=false&key=***"),
            ("dynamo://eu-west-1?secret=hunter2#x", "dynamo://eu-west-1?secret=***#***"),
            ("dynamo://r?endpoint_url=http://u:hunter2@h", "dynamo://***@h"),
            ("embedded:///data/store.db", "embedded:///data/store.db"),
            ("embedded:///home/me@work/store.db", "embedded:///home/me@work/store.db"),
            (
                "embedded:///C:/a;b&c=d%20/ö?profile=mongo&key=hunter2",
                "embedded:///C:/a;b&c=d%20/ö?profile=mongo&key=***",
            ),
            ("embedded:///store.db#hunter2", "embedded:///store.db#***"),
            ("embedded://u:hunter2@work/store.db", "embedded://***@work/store.db"),
            # MongoDB also separates options with ; and ignores the case of their names.
            (
                "mongodb://a/?w=1;tlsCertificateKeyFilePassword=hunter2",
                "mongodb://a/?w=***;tlsCertificateKeyFilePassword=***",
            ),
            (
                "mongodb://a/?REPLICASET=rs;TLS=true;key=hunter2",
                "mongodb://a/?REPLICASET=rs;TLS=true;key=***",
            ),
            ("mongodb://a/db;key=hunter2", "mongodb://a/db;key=***"),
            ("mongodb://a/?key=AWS_SESSION_TOKEN:x=hunter2", "mongodb://a/?key=***"),
            ("mongodb://a/?replicaSet=rs=hunter2&tls=hunter2", "mongodb://a/?replicaSet=***&tls=***"),
            ("mongodb://a/?w=1&key=x;hunter2=y", "mongodb://a/?w=***&key=***"),
            ("mongodb://a/?key=x?hunter2=y", "mongodb://a/?key=***"),
            ("mongodb://a/?hunter2", "mongodb://a/?***"),
            ("mongodb://a/?hun%20ter=hunter2", "mongodb://a/?***"),
            ("mongodb://a/db#hunter2", "mongodb://a/db#***"),
            ("https://a/db#token=hunter2", "https://a/db#***"),
            ("https://user:pw/#hunter2", "https://***/#***"),
            ("dynamo://r?endpoint_url=http://h:8000/?key=hunter2", "dynamo://r?endpoint_url=***"),
            ("dynamo://r?endpoint_url=http://u:hunter2", "dynamo://r?endpoint_url=***"),
            # Malformed URLs: text that may be part of a password is removed.
            ("mongodb://user:hunter2", "mongodb://***"),
            ("mongodb://user:hunter2/db", "mongodb://***/db"),
            ("mongodb://user:hunter2%40host/db", "mongodb://***/db"),
            ("mongodb:///user:hunter2@host", "mongodb://***@host"),
            ("mongodb:///user:hunter2", "mongodb:///***"),
            ("mongodb://user:hunter2@a,user:hunter2@b", "mongodb://***@b"),
            ("mongodb://host/db?key=x@hunter2", "mongodb://***"),
            ("mongodb://user:p@host/?key=x@hunter2", "mongodb://***"),
            ("mongodb://host?x@hunter2", "mongodb://***"),
            ("mongodb://user:pw?key=x@hunter2", "mongodb://***"),
            ("mongodb://user:pw@host/?x@hunter2", "mongodb://***"),
            ("mongodb://host?key=endpoint_url=x@hunter2", "mongodb://***"),
            ("dynamo://r?endpoint_url=http://u:p@h&key=x@hunter2", "dynamo://***"),
            ("mongodb:user:hunter2@host", "***"),
            ("mongodb:/user:hunter2@host", "***"),
            ("user:hunter2@host", "***"),
            ("//user:hunter2@host", "***"),
            ("user:hunter2://host", "***"),
            (" mongodb://user:hunter2@host", "***"),
            ("", "***"),
        ],
    )
    def test_urls_lose_their_secrets(self, url, shown):
        assert redact_url(url) == shown

    def test_urls_without_secrets_and_how_to_write_one_are_kept(self):
        assert [url for url in KEPT if redact_url(url) != url] == []

    @given(text_around(SECRET), st.sampled_from(["host", "a:1,b:2/db?replicaSet=rs", "[::1]/db?key=x"]))
    def test_nothing_before_the_last_at_is_shown(self, front, tail):
        for scheme in ("mongodb", "mongodb+srv", "dynamo", "cosmos", "spanner", "MONGODB", "embedded"):
            if scheme == "embedded" and front.startswith("/"):
                continue
            shown = redact_url(f"{scheme}://{front}@{tail}")
            assert SECRET not in shown
            assert shown.startswith(f"{scheme}://***")

    @given(
        st.sampled_from(["mongodb://host/db", "mongodb://u:p@a:1,b/", "dynamo://r", "embedded:///a@b/c"]),
        st.sampled_from(["?", "?tls=true&", "?tls=true;", "?x&", "?endpoint_url=http://u:p@h&"]),
        st.sampled_from(["key", "authMechanismProperties", "password", "replicaSetx", "ü", "", "%74ls"]),
        text_around(SECRET),
    )
    def test_no_value_of_an_unknown_option_is_shown(self, front, before, name, value):
        # Such a value would make the secret a part of another option's name.
        assume(not re.search(f"[&;][^&;=]*{SECRET}[^&;=]*=", value))
        assert SECRET not in redact_url(f"{front}{before}{name}={value}")

    @given(text_around(SECRET))
    def test_nothing_behind_a_hash_is_shown(self, fragment):
        for front in ("mongodb://u:p@host/db", "mongodb://host?tls=true", "embedded:///a@b", "dynamo://r"):
            assert SECRET not in redact_url(f"{front}#{fragment}")

    @pytest.mark.parametrize("piece", ["[a]", "[:]", "%2F", "a", ":1,", "…", "/a", "?a=b", "a@"])
    def test_no_url_takes_long(self, piece):
        started = time.process_time()
        redact_url(f"mongodb://{piece * 5000}!")
        redact_url(f"mongodb://{piece * 5000}!@host")
        assert time.process_time() - started < 1

    def test_short_values_are_shown_and_long_ones_cut(self):
        assert shorten("token") == "'token'"
        assert shorten("x" * 100) == "'xxxxxxxxxxxx…' (100 characters)"
        assert len(shorten({"a": "b" * 1000})) < 60


class TestReasons:
    def test_are_open_to_new_values_and_each_known_one_is_a_constant(self):
        for reason in ErrorReason.known():
            assert getattr(ErrorReason, reason.upper()) == reason
            assert type(reason) is ErrorReason
        later = MulticloudDbError(
            "it failed", ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason("later"))
        )
        assert pickle.loads(pickle.dumps(later)).reason == "later"
        assert MulticloudDbError("it failed", ErrorDetail(ErrorCategory.CONFLICT)).reason is None
        with pytest.raises(MulticloudDbError, match="reason"):
            ErrorDetail(ErrorCategory.CONFLICT, reason="clock")

    def test_the_page_lists_each_of_them_with_what_to_do(self):
        page = (Path(__file__).parents[1] / "docs/reference/errors.md").read_text(encoding="utf-8")
        sections = "\n".join(page.split("\n## ")[1:])
        assert [reason for reason in ErrorReason.known() if f"`{reason}`" not in sections] == []
        listed = re.findall(
            r"`([a-z_]+)`", " ".join(re.findall(r"\*\*Reasons\*\*(.*?)\n\n", page, re.DOTALL))
        )
        assert {*listed} == {*ErrorReason.known()}
