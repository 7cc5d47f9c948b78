"""Collects what an error reporter would send: the local variables of all frames of a traceback."""

from __future__ import annotations

from types import TracebackType

__all__ = ["shown_by"]


def shown_by(error: BaseException, *, without: str = "") -> list[str]:
    """Return the texts of an error and its causes, including the local variables of the traceback.

    Args:
        error: The error.
        without: The name of a source file whose stack frames are omitted, usually the test's own
            file.
    """
    texts: list[str] = []
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        texts += [str(one), repr(one), *getattr(one, "__notes__", [])]
        texts += _locals(one.__traceback__, without)
        todo += [one.__cause__, one.__context__]
    return texts


def _locals(trace: TracebackType | None, without: str) -> list[str]:
    texts = []
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename != without:
            place = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"
            texts += [f"{place}: {name} = {_shown(value)}" for name, value in frame.f_locals.items()]
        trace = trace.tb_next
    return texts


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - some objects are only half initialised
        return f"<{type(error).__name__}>"
