"""`MulticloudDbError`: a message, facts that survive pickling, and categories open to new ones."""

import copy
import pickle
import re
import subprocess
import sys

import attrs
import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, errors, invalid_request
from multiclouddb_api.text import redact_url, shorten

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
)


class TestError:
    def test_pickles_with_its_detail(self):
        error = MulticloudDbError("it failed; do that", DETAIL)
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is MulticloudDbError
        assert (back.message, back.detail) == (error.message, error.detail)
        assert type(back.category) is ErrorCategory

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_pickles_with_every_protocol(self, protocol):
        error = MulticloudDbError("it failed", DETAIL)
        assert pickle.loads(pickle.dumps(error, protocol)).detail == DETAIL

    def test_copies(self):
        assert copy.deepcopy(MulticloudDbError("it failed", DETAIL)).detail == DETAIL

    def test_notes_survive_pickling(self):
        error = MulticloudDbError("it failed", DETAIL)
        error.add_note("page 7")
        assert pickle.loads(pickle.dumps(error)).__notes__ == [
            *MulticloudDbError("", DETAIL).__notes__,
            "page 7",
        ]

    def test_reads_as_category_and_message(self):
        assert str(MulticloudDbError("it failed; do that", DETAIL)) == "[PROVIDER_ERROR] it failed; do that"

    def test_shows_no_token(self):
        assert "t" * 100 not in repr(MulticloudDbError("it failed", DETAIL))

    def test_has_short_ways_to_its_facts(self):
        error = MulticloudDbError("it failed", DETAIL)
        assert (error.category, error.retryable) == (ErrorCategory.PROVIDER_ERROR, True)


LINK = "https://multiclouddb.readthedocs.io/reference/errors/#provider_error"


def through_pickle(error, times=3):
    for _ in range(times):
        error = pickle.loads(pickle.dumps(error))
    return error


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

    def test_the_message_stays_one_line(self):
        error = MulticloudDbError("it failed; do that", DETAIL)
        assert LINK not in str(error) + repr(error) + error.message

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
        assert set(ErrorCategory.known()) == {
            "INVALID_REQUEST",
            "AUTHENTICATION_FAILED",
            "AUTHORIZATION_FAILED",
            "NOT_FOUND",
            "CONFLICT",
            "THROTTLED",
            "TRANSIENT_FAILURE",
            "PERMANENT_FAILURE",
            "PROVIDER_ERROR",
            "UNSUPPORTED_CAPABILITY",
            "CHECKPOINT_EXPIRED",
        }

    def test_each_is_declared_and_explained(self):
        assert set(ErrorCategory.__annotations__) == set(ErrorCategory.known())
        table = re.findall(r"^    ([A-Z_]+)  ", errors.__doc__, re.MULTILINE)
        assert table == list(ErrorCategory.known())

    def test_each_is_its_own_name(self):
        for category in ErrorCategory.known():
            assert getattr(ErrorCategory, category) is category
            assert category == str(category)

    def test_one_of_a_later_version_is_carried(self):
        later = ErrorCategory("QUOTA_EXCEEDED")
        error = pickle.loads(pickle.dumps(MulticloudDbError("no", ErrorDetail(later))))
        assert error.category == "QUOTA_EXCEEDED"
        assert error.category not in ErrorCategory.known()


class TestInvalidRequest:
    def test_names_field_problem_and_way_out(self):
        error = invalid_request("max_page_size", "is -1", "use 0")
        assert error.message == "max_page_size: is -1; use 0"
        assert error.detail == ErrorDetail(ErrorCategory.INVALID_REQUEST)


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
            ("dynamo://eu-west-1?secret=hunter2#x", "dynamo://eu-west-1?secret=***#x"),
            ("dynamo://r?endpoint_url=http://u:hunter2@h", "dynamo://***@h"),
            ("embedded:///data/store.db", "embedded:///data/store.db"),
            ("embedded:///home/me@work/store.db", "embedded:///home/me@work/store.db"),
        ],
    )
    def test_urls_lose_their_secrets(self, url, shown):
        assert redact_url(url) == shown

    def test_short_values_are_shown_and_long_ones_cut(self):
        assert shorten("token") == "'token'"
        assert shorten("x" * 100) == "'xxxxxxxxxxxx…' (100 characters)"
        assert len(shorten({"a": "b" * 1000})) < 60
