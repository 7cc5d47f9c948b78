"""Tests that test servers are fetched once, completely, and only with the expected digest."""

import shlex
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256, sha512

import pytest

from multiclouddb_conformance.servers import ServerUnavailableError, cache_folder, download, fetch_once

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


class TestCacheFolder:
    def test_is_where_the_user_has_caches(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_folder("server-1.0") == tmp_path / "multiclouddb" / "server-1.0"

    @pytest.mark.parametrize("empty", [True, False], ids=["empty", "unset"])
    def test_is_in_the_home_by_default(self, monkeypatch, tmp_path, empty):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        if not empty:
            monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_folder("server-1.0") == tmp_path / ".cache" / "multiclouddb" / "server-1.0"


class TestFetchOnce:
    def test_what_unpacking_gives_is_kept_and_nothing_else(self, folder):
        assert fetch_once(folder, bring, DIGEST, unpack) == folder
        assert (folder / "server").read_bytes() == CONTENT
        assert names(folder) == ["server-1.0", "server-1.0.lock"]

    def test_it_is_unpacked_beside_its_place(self, folder):
        """The server is unpacked on the target's file system, because a folder cannot be renamed across file
        systems.
        """
        seen = []
        fetch_once(folder, bring, DIGEST, lambda *each: seen.extend(each) or unpack(*each))
        assert all(path.is_relative_to(folder.parent) for path in seen)

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

    def test_one_that_waited_does_not_fetch_again(self, folder):
        """After it has waited for the lock, the process finds the complete folder."""
        fetching, waiting = threading.Event(), threading.Event()

        def held(into):
            fetching.set()
            assert waiting.wait(SOON)
            bring(into)

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(fetch_once, folder, held, DIGEST, unpack)
            assert fetching.wait(SOON)
            assert not folder.exists()
            second = pool.submit(fetch_once, folder, lambda _: pytest.fail("again"), DIGEST, unpack)
            waiting.set()
            assert first.result(SOON) == second.result(SOON) == folder

    def test_any_algorithm_will_do(self, folder):
        assert fetch_once(folder, bring, f"sha512:{sha512(CONTENT).hexdigest()}", unpack) == folder

    def test_another_package_is_not_unpacked(self, folder):
        wanted = "sha256:" + 64 * "0"
        with pytest.raises(
            ServerUnavailableError, match=r"made\.tgz .* not 0{64}: it was not unpacked"
        ) as caught:
            fetch_once(folder, bring, wanted, lambda *_: pytest.fail("unpacked"))
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


class TestDownload:
    def shell(self, script, into, **options):
        download(["npm", "-c", script], into, program="/bin/sh", **options)

    def test_runs_in_the_folder(self, tmp_path):
        self.shell("echo text > brought", tmp_path)
        assert (tmp_path / "brought").read_text() == "text\n"

    def test_runs_the_command_itself_where_no_program_is_named(self, tmp_path):
        download([sys.executable, "-c", "open('brought', 'w').close()"], tmp_path)
        assert (tmp_path / "brought").exists()

    def test_a_failure_is_told_as_a_person_would_type_the_command(self, tmp_path):
        script = "echo no such host >&2; exit 3"
        with pytest.raises(ServerUnavailableError) as caught:
            self.shell(script, tmp_path)
        assert str(caught.value) == f"`npm -c {shlex.quote(script)}` failed: status 3\nno such host"

    def test_one_that_hangs_is_given_up(self, tmp_path):
        with pytest.raises(ServerUnavailableError, match=r"took more than 0\.3 s"):
            self.shell("exec sleep 60", tmp_path, seconds=0.3)

    def test_one_that_is_not_there_is_told(self, tmp_path):
        with pytest.raises(ServerUnavailableError, match="`npm pack` cannot be run"):
            download(["npm", "pack"], tmp_path, program=str(tmp_path / "npm"))
