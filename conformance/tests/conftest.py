"""Provides a run of pytest inside a test, in the same process.

`pytester` of pytest empties `sys.modules` after each run and fills it again. While it does that, an import in
another thread changes what it iterates over, or makes a module a second time.
"""

import contextlib
import io
import uuid
from dataclasses import dataclass, field

import pytest


@dataclass(slots=True)
class Ran:
    """Collects what an inner run of pytest reports, printed, and returned."""

    ret: int = 0
    outcomes: dict[str, set[str]] = field(default_factory=dict)
    deselected: int = 0
    printed: str = ""

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            outcome = report.outcome if report.when == "call" else f"{report.outcome} in {report.when}"
            self.outcomes.setdefault(outcome, set()).add(report.nodeid.partition("::")[2])

    def pytest_deselected(self, items):
        self.deselected += len(items)


@pytest.fixture
def run_inside(tmp_path, monkeypatch):
    """Run the text of a test module with the plugin of the suite alone; return a `Ran`."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    plugins = ["-p", "multiclouddb_conformance.plugin", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    options = [f"--rootdir={tmp_path}", "-c", "/dev/null", "--capture=no", "--strict-markers"]

    def run(text, *args, names=()):
        # No other module has this name, because an imported module stays.
        path = tmp_path / f"test_{uuid.uuid4().hex}.py"
        path.write_text(text)
        ran, printed = Ran(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            chosen = [f"{path.name}::{name}" for name in names] or [path.name]
            ran.ret = pytest.main([*plugins, *options, *args, *chosen], plugins=[ran])
        ran.printed = printed.getvalue()
        return ran

    return run
