"""What holds for the tests of every distribution."""

import pytest
from xdist.scheduler import LoadScopeScheduling

# Folders whose tests start a JVM. Node ids begin with the folder.
JVM_FOLDERS = ("demo/", "spark/")
# Pages of the documentation that do, see docs/tests/test_blocks.py.
JVM_PAGE = "-jvm]"


class OneJvmScheduling(LoadScopeScheduling):
    """Spreads single tests over the workers, but gives all that need a JVM to one of them.

    Two JVMs at a time do not fit on a small machine. (The `xdist_group` mark would say the same, but pytest
    9.2 makes it do nothing: https://github.com/pytest-dev/pytest-xdist/issues/1386.)
    """

    def _split_scope(self, nodeid):
        return "jvm" if nodeid.startswith(JVM_FOLDERS) or nodeid.endswith(JVM_PAGE) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneJvmScheduling(config, log)
