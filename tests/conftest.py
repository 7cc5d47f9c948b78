import inspect

import pytest

from .event_loop import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in an event loop; it must leave no task and no thread."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    run(lambda: test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True
