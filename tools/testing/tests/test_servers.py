"""Tests that test servers are fetched once, completely, and only with the expected digest."""

import shlex
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256, sha512

import pytest

from multiclouddb_conformance.waiting import assert_prompt, wait_until
from testing.servers import ServerUnavailableError, cache_folder, download, fetch_once

CONTENT = b"a package"
DIGEST = f"sha256:{sha256(CONTENT).hexdigest()}"
SOON = 30.0


def bring(into):
    (into / "made.tgz").write_bytes(CONTENT)


def unpack(package, scratch):
    (scratch / "inner").mkdir()
    shutil.copy(package, scratch / "inner" / "server")
    return scratch / "inner"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "server-1.0"


def names(folder):
    return sorted(path.name for path in folder.parent.iterdir())


@pytest.mark.parametrize(("cache", "parent"), [("caches", "caches"), ("", ".cache"), (None, ".cache")])
def test_the_cache_is_where_the_user_has_caches_or_in_the_home(monkeypatch, tmp_path, cache, parent):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache) if cache else "")
    if cache is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("server-1.0") == tmp_path / parent / "multiclouddb" / "server-1.0"


class TestFetchOnce:
    @pytest.mark.parametrize("digest", [DIGEST, f"sha512:{sha512(CONTENT).hexdigest()}"])
    def test_what_unpacking_gives_is_kept_and_nothing_else(self, folder, digest):
        """The server is unpacked beside its place, because a folder cannot be renamed across file systems."""
        seen = []
        assert fetch_once(folder, bring, digest, lambda *each: seen.extend(each) or unpack(*each)) == folder
        assert all(path.is_relative_to(folder.parent) for path in seen)
        assert (folder / "server").read_bytes() == CONTENT
        assert names(folder) == ["server-1.0", "server-1.0.lock"]

    def test_what_is_there_is_neither_fetched_nor_locked(self, folder):
        folder.mkdir(parents=True)
        assert fetch_once(folder, None, DIGEST, None) == folder
        assert names(folder) == ["server-1.0"]

    def test_many_at_once_fetch_once(self, folder):
        """The first process waits, so another process has time to start a second fetch by mistake."""
        runs, begin, again = [], threading.Barrier(4), threading.Event()

        def slow(into):
            runs.append(into)
            if len(runs) > 1:
                again.set()
            again.wait(0.5)
            bring(into)

        def ask(_):
            begin.wait(SOON)
            return fetch_once(folder, slow, DIGEST, unpack)

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(ask, range(4))) == {folder}
        assert len(runs) == 1

    def test_another_package_is_not_unpacked(self, folder):
        with pytest.raises(ServerUnavailableError, match=r"made\.tgz .* not 0{64}") as caught:
            fetch_once(folder, bring, "sha256:" + 64 * "0", lambda *_: pytest.fail("unpacked"))
        assert DIGEST.partition(":")[2] in str(caught.value)
        assert names(folder) == ["server-1.0.lock"]

    @pytest.mark.parametrize("files", [[], ["a", "b"]], ids=["none", "two"])
    def test_it_has_to_be_one_file(self, folder, files):
        def wrong(into):
            for name in files:
                (into / name).write_bytes(CONTENT)

        with pytest.raises(ServerUnavailableError, match="got a, b" if files else "got nothing"):
            fetch_once(folder, wrong, DIGEST, unpack)

    def test_a_failure_leaves_nothing_behind_and_the_next_one_fetches(self, folder):
        def broken(package, scratch):
            unpack(package, scratch)
            raise OSError("no space left")

        with pytest.raises(OSError, match="no space left"):
            fetch_once(folder, bring, DIGEST, broken)
        assert names(folder) == ["server-1.0.lock"]
        assert fetch_once(folder, bring, DIGEST, unpack) == folder


SHELL = {"program": "/bin/sh"}


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("echo no such host >&2; exit 3", SHELL, "failed: status 3\nno such host"),
        ("exec sleep 60", SHELL | {"seconds": 0.3}, "took more than 0.3 s"),
        ("pack", {"program": "/no/such/npm"}, "cannot be run"),
    ],
)
def test_a_download_that_fails_is_told_as_a_person_would_type_it(tmp_path, script, options, message):
    with pytest.raises(ServerUnavailableError) as caught:
        download(["npm", "-c", script], tmp_path, **options)
    assert str(caught.value).startswith(f"`npm -c {shlex.quote(script)}` ")
    assert message in str(caught.value)


def test_a_download_runs_in_the_folder(tmp_path):
    download(["npm", "-c", "echo text > brought"], tmp_path, **SHELL)
    assert (tmp_path / "brought").read_text() == "text\n"
    download([sys.executable, "-c", "open('by itself', 'w').close()"], tmp_path)
    assert (tmp_path / "by itself").exists()


def test_a_wait_returns_what_came_true_or_says_that_nothing_did():
    answers = iter([0, None, "yes"])
    assert wait_until(lambda: next(answers)) == "yes"
    with pytest.raises(TimeoutError, match=r"0\.1 seconds"):
        wait_until(lambda: False, 0.1)


@pytest.mark.parametrize(
    ("seconds", "made", "message"),
    [
        ((0.9, 5), 1, None),
        ((5, 1, 0.9, 5), 3, None),
        ((1, 5, 2, 0.5), 3, r"no attempt took less than 1 seconds: \[1, 5, 2\]"),
        ((2, 10, 0.5), 2, r"10\.0 seconds.* it hung"),  # although the next one is quick
    ],
)
def test_one_quick_attempt_is_enough(seconds, made, message):
    left = list(seconds)

    def attempt():
        return assert_prompt(1, lambda: left.pop(0), at_most=10, tries=3)

    if message is None:
        attempt()
    else:
        with pytest.raises(AssertionError, match=message):
            attempt()
    assert len(seconds) - len(left) == made
