"""Tests the checks of `connection` that every provider makes: option names and the library's own URLs."""

import re

import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_spi.connection import (
    Location,
    check_names,
    checked_native,
    merged,
    parse_location,
    split_url,
)

SECRET = "hunter2"


def refused(*words):
    match = ".*".join(map(re.escape, words))
    return pytest.raises(
        MulticloudDbError, match=match, check=lambda error: error.category == ErrorCategory.INVALID_REQUEST
    )


def parsed(url):
    return parse_location(
        url,
        "db",
        options=["profile", "tls"],
        form="write db://HOST",
        credentials="set it in the environment",
    )


class TestLocation:
    @pytest.mark.parametrize(
        ("url", "location"),
        [
            ("db://", Location("", "", {})),
            ("db://host", Location("host", "", {})),
            ("db://host:81/a/b", Location("host:81", "/a/b", {})),
            ("db:///a%20b@c", Location("", "/a%20b@c", {})),
            ("db://host?tls=false", Location("host", "", {"tls": "false"})),
            ("db://host?tls=&profile=x", Location("host", "", {"tls": "", "profile": "x"})),
            ("db://host?profile=http://a:1/b", Location("host", "", {"profile": "http://a:1/b"})),
        ],
    )
    def test_the_parts_of_a_url(self, url, location):
        assert parsed(url) == location

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            (7, ["connection.url", "text", "int", "db://HOST"]),
            (None, ["connection.url", "text", "NoneType"]),
            ("", ["connection.url", "scheme ''", "db://HOST"]),
            ("host", ["connection.url", "scheme", "db://HOST"]),
            ("dbs://host", ["connection.url", "'dbs'", "db://HOST"]),
            ("db://[host", ["connection.url", "no address", "db://HOST"]),
            ("db://host:port", ["connection.url", "no address", "db://HOST"]),
            ("db://host:99999", ["connection.url", "no address"]),
            ("db://host#place", ["connection.url", "after a #"]),
            ("db://host?tlss=1", ["connection.url", "'tlss'", "did you mean 'tls'?"]),
            ("db://host?x=1", ["connection.url", "'x'", "profile, tls"]),
            ("db://host?tls=1&tls=1", ["'tls'", "second time", "once"]),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_named_with_the_way_out(self, url, words):
        with refused(*words):
            parsed(url)

    @pytest.mark.parametrize(
        "url",
        [
            f"db://user:{SECRET}@host",
            f"db://{SECRET}@host",
            f"db://user:{SECRET}@",
            f"db://host#{SECRET}",
            f"db://host?tls={SECRET}&tls={SECRET}",
            f"db://host?password={SECRET}",
            f"db://host:{SECRET}",
        ],
    )
    def test_no_message_has_a_secret(self, url):
        with refused("connection") as caught:
            parsed(url)
        assert SECRET not in str(caught.value)

    def test_a_password_in_a_url_is_refused_with_the_place_for_it(self):
        with refused("connection.url", "@", "password", "the environment"):
            parsed("db://user:password@host")


class TestNames:
    def test_a_name_that_nobody_reads_is_refused(self):
        check_names({"url": "x", "path": "y"}, ["path", "url"])
        with refused("connection", "'pth'", "did you mean 'path'?"):
            check_names({"pth": "x"}, ["path", "url"])

    def test_the_url_and_the_options_are_put_together(self):
        assert merged({"a": 1}, {"b": 2}) == {"a": 1, "b": 2}
        with refused("connection", "'a'", "second time", "the url names it too", "name it once"):
            merged({"a": 1}, {"a": 1})

    def test_a_url_with_a_port_that_is_none_is_none(self):
        assert split_url("http://host:x") is None
        assert split_url("http://host:80").port == 80


class TestNativeClient:
    def test_one_of_the_vendor_s_is_taken_as_it_is(self):
        client = ["client"]
        assert checked_native(client, list, "pass a list") is client

    def test_anything_else_is_refused_with_what_to_pass(self):
        with refused("native_client", "is a str", "pass a list"):
            checked_native("client", list, "pass a list")
