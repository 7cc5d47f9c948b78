"""Provides the programs, commands and tables of a page, and its servers, for tests."""

import atexit
import functools
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import chdir, contextmanager, redirect_stdout
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r'^```python title="(?P<name>[^"]+)"\n(?P<code>.*?)^```$', re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^(?:from|import) ((?:multiclouddb_|boto3|pymongo|azure)[\w.]*)", re.MULTILINE)
MARK = "=== end of block ==="
# A process that forks for each program, after the imports of this and all earlier programs. Blocks run in
# __main__, so that their definitions can be pickled. Tracebacks show the lines of the page.
HELPER = f"""
def serve():
    import importlib, json, os, sys
    for line in sys.stdin:
        asked = json.loads(line)
        for name in asked["modules"]:
            try:
                importlib.import_module(name)
            except Exception:
                pass  # the program itself reports it
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        for number, name in enumerate([os.devnull, *asked["files"]]):
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
            os.close(file)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(":")
        return asked
    sys.exit()
def run_blocks():
    import pathlib
    asked = serve()
    for line, file, code in asked["steps"]:
        if file:
            pathlib.Path(file).write_text(code, encoding="utf-8")
        else:
            exec(compile("\\n" * line + code, asked["page"], "exec"), globals())
            print({MARK!r}, flush=True)
def end():
    import atexit, os, sys, threading
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Arrow's threads sometimes end a forked process with SIGABRT when the interpreter is taken down.
    os._exit(0)
run_blocks()
end()
"""


@functools.cache
def helper():
    """Start the process that forks for each program."""
    started = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HELPER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip

    def end():
        started.stdin.close()
        started.wait()
        started.stdout.close()

    atexit.register(end)
    return started


def run_blocks(page, steps, folder="."):
    """Run code and write files in a process of its own; return the output of each code."""
    text = "\n".join(code for _, _, code in steps)
    schemes = {"dynamo", "mongo", "cosmos", "embedded"}
    providers = [f"multiclouddb_{each}" for each in schemes if f"{each}://" in text or f"{each}db://" in text]
    with tempfile.TemporaryDirectory() as outside:
        files = [f"{outside}/{name}" for name in ("stdout", "stderr")]
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        asked = {"page": str(page), "steps": steps, "folder": str(Path(folder).resolve()), "files": files}
        asked |= {"environment": ours, "modules": [*IMPORT.findall(text), *providers]}
        process = helper()
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        try:
            status = process.stdout.readline()
        except BaseException:
            # The next page would read the answer to this one, which may still run.
            os.killpg(process.pid, signal.SIGKILL)
            helper.cache_clear()
            raise
        printed, complaints = (Path(file).read_text(encoding="utf-8") for file in files)
    assert status == "0\n", printed + complaints
    return printed.split(f"{MARK}\n")[:-1]


@contextmanager
def session_in(spark, folder):
    """Run programs here with the Spark session of the tests: they find it running, and do not stop it."""
    java, shuffles = spark.sparkContext._jvm, "spark.sql.shuffle.partitions"
    before = spark.conf.get(shuffles)

    def enter(place):
        # Paths that the JVM gets are below the folder, too.
        java.System.setProperty("user.dir", place)
        java.org.apache.hadoop.fs.FileSystem.closeAll()

    started = java.System.getProperty("user.dir")
    with chdir(folder), mock.patch.object(type(spark), "stop"), mock.patch.dict(os.environ):
        enter(os.getcwd())
        try:
            yield
        finally:
            enter(started)
            spark.conf.set(shuffles, before)


def run_with(spark, page, steps, folder="."):
    """Run code and write files as `run_blocks` does, but in this process, with a running Spark session."""
    printed, names = [], {"__name__": "__main__"}
    with session_in(spark, folder):
        for line, file, code in steps:
            if file:
                Path(file).write_text(code, encoding="utf-8")
                continue
            with redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * line + code, str(page), "exec"), names)
            printed.append(out.getvalue())
    return printed


class Page:
    """A page of docs/, or several pages that belong together.

    Attributes:
        text: The whole text.
        programs: The programs on the page that have a name.
    """

    def __init__(self, *names):
        self.text = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in names)
        self.programs = {found["name"]: found["code"] for found in PROGRAM.finditer(self.text)}

    def blocks(self, language):
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE)

    def commands(self, start):
        """Return the shell commands that start with this text, each as a list of words."""
        lines = [line for block in self.blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
        found = [shlex.split(line) for line in lines if line.startswith(start)]
        return [[os.path.expandvars(word) for word in words] for words in found]

    def run(self, name, spark=None):
        """Run a program, perhaps with a running Spark session, and return its output."""
        steps = [(0, name, self.programs[name]), (0, None, self.programs[name])]
        (printed,) = run_blocks(name, steps) if spark is None else run_with(spark, name, steps)
        return printed

    def said_behind(self, name):
        """Return the output that the page shows below a program."""
        end = next(found.end() for found in PROGRAM.finditer(self.text) if found["name"] == name)
        return re.match(r"\n\n```text\n(.*?)^```$", self.text[end:], re.DOTALL | re.MULTILINE)[1]

    def programs_run_in(self, file):
        """Return the programs that a file of tests runs, by name."""
        return set(re.findall(r'(?:run|param)\("([^"]+\.py)"', Path(file).read_text(encoding="utf-8")))

    def rows_below(self, heading, number=0):
        """Return the rows of a table below a heading or a paragraph, without the header."""
        below = self.text[self.text.index(heading) :]
        table = re.findall(r"^\|.*?\n\n", below, re.DOTALL | re.MULTILINE)[number]
        rows = [line.strip("|").split("|") for line in table.strip().splitlines()]
        return [[cell.strip() for cell in row] for row in rows[2:]]


@functools.cache
def servers(provider):
    """Import modules of a provider's test servers, which are not an installed package."""
    folder = "checkpoints/tests" if provider == "checkpoints" else f"providers/{provider}/tests/servers"
    spec = ModuleSpec(f"{provider}_servers", None, is_package=True)
    spec.submodule_search_locations = [str(ROOT / folder)]
    sys.modules[spec.name] = module_from_spec(spec)
    return lambda module: import_module(f"{spec.name}.{module}")
