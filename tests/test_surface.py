"""Tests that the public surface equals `surface.txt`, and that every parameter and field in it is described.

A change to the surface affects users. Update the file with `python tests/test_surface.py`, and describe the
change in the change log.
"""

import difflib
import functools
import importlib
import inspect
import re
import typing
from enum import Enum
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "surface.txt"
AGAIN = "python tests/test_surface.py"
PACKAGES = (
    "multiclouddb_api",
    "multiclouddb_api.aio",
    "multiclouddb_spi",
    "multiclouddb_certify",
    "multiclouddb_checkpoints",
    "multiclouddb_dynamo",
    "multiclouddb_embedded",
    "multiclouddb_mirror",
    "multiclouddb_mongo",
    "multiclouddb_postgres",
    "multiclouddb_tables",
    "multiclouddb_tables.sqlite",
    "multiclouddb_verify",
    "pyspark_multiclouddb",
)
PLACES = [ROOT, *(ROOT / "providers" / name for name in ("dynamo", "embedded", "mongo"))]
PLACES += [
    ROOT / name
    for name in ("spark", "tables", "tables/verify", "tables/postgres", "tables/mirror", "checkpoints")
]
PLACES += [ROOT / "conformance/certify"]


class Shown:
    """A text that is its own `repr`, for annotations and defaults in a signature."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def kind(annotation):
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def value(default):
    """Format a default value as a person would write it; the result is the same in every process."""
    if isinstance(default, attrs.Factory):
        return f"{default.factory.__name__}()"
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    return (
        repr(default)
        if isinstance(default, str | int | float | tuple | None)
        else f"{type(default).__name__}(…)"
    )


def signature(function, *, bound):
    """Return `(name: type = default, …) -> type`, with annotations as in the source."""
    found = inspect.signature(function)
    parameters = [
        parameter.replace(
            annotation=parameter.empty
            if parameter.annotation is parameter.empty
            else Shown(kind(parameter.annotation)),
            default=parameter.empty
            if parameter.default is parameter.empty
            else Shown(value(parameter.default)),
        )
        for parameter in list(found.parameters.values())[bound:]
    ]
    returned = found.return_annotation
    returns = found.empty if returned is found.empty else Shown(kind(returned))
    return str(found.replace(parameters=parameters, return_annotation=returns))


def ours(owner):
    return owner.__module__.partition(".")[0] in PACKAGES


def members(owner):
    """Return the names and definitions of the members that the project's code gives a class and its base
    classes.
    """
    for name in sorted(dir(owner)):
        definer = next((base for base in owner.__mro__ if name in vars(base)), type)
        if ours(definer) and (not name.startswith("_") or name == "__init__"):
            yield name, vars(definer)[name]


def member(name, found):
    """Return one line for a member of a class, or None if another line covers the member."""
    if isinstance(found, property | functools.cached_property):
        getter = found.fget if isinstance(found, property) else found.func
        return f"{name}: {kind(getter.__annotations__['return'])} (property)"
    if isinstance(found, classmethod | staticmethod):
        bound = isinstance(found, classmethod)
        return f"{name}{signature(found.__func__, bound=bound)} ({type(found).__name__})"
    return f"{name}{signature(found, bound=True)}" if inspect.isfunction(found) else None


def field(found):
    default = "" if found.default is attrs.NOTHING else f" = {value(found.default)}"
    return f"{found.alias}: {kind(found.type)}{default}{' (keyword)' if found.kw_only else ''}"


def class_lines(owner):
    """Return the lines of a class: values, fields, annotations, methods."""
    if issubclass(owner, Enum):
        return [f"{item.name} = {item.value!r}" for item in owner]
    if typing.is_typeddict(owner):
        return [
            f"{name}: {kind(getattr(type_, '__forward_arg__', type_))}"
            for name, type_ in owner.__annotations__.items()
        ]
    lines = [field(each) for each in attrs.fields(owner) if each.init] if attrs.has(owner) else []
    named = {each.name for each in attrs.fields(owner)} if attrs.has(owner) else set()
    lines += [
        f"{name}: {kind(type_)}"
        for name, type_ in vars(owner).get("__annotations__", {}).items()
        if not name.startswith("_") and name not in named
    ]
    told = ("__init__",) if attrs.has(owner) or getattr(owner, "_is_protocol", False) else ()
    return lines + [
        line
        for name, found in members(owner)
        if name not in told and (line := member(name, found)) is not None
    ]


def lines_of(name, element):
    """Return the lines of the surface for one exported name."""
    if inspect.isclass(element):
        return [name, *(f"{name}.{line}" for line in class_lines(element))]
    if inspect.isfunction(element):
        return [f"{name}{signature(element, bound=False)}"]
    cases = typing.get_args(element)
    if cases:
        return [f"{name} = {' | '.join(getattr(case, '__name__', str(case)) for case in cases)}"]
    return [f"{name}: {type(element).__name__}"]


def surface():
    """Return every exported name, with a line for each part whose change breaks users."""
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            lines += [f"{package}.{line}" for line in lines_of(name, getattr(module, name))]
    return lines


@functools.cache
def elements():
    """Return the griffe object of every public class and function by its path, without running the code."""
    import griffe  # importing it takes seconds

    found, loader = {}, griffe.GriffeLoader(search_paths=PLACES)
    modules = {package: loader.load(package) for package in PACKAGES}
    loader.resolve_aliases()
    for package, module in modules.items():
        for name in importlib.import_module(package).__all__:
            element = module[name].final_target if module[name].is_alias else module[name]
            if element.is_class or element.is_function:
                found[f"{package}.{name}"] = element
            if element.is_class:
                for method in element.functions.values():
                    if not method.name.startswith("_"):
                        found[f"{package}.{name}.{method.name}"] = method
    assert len(found) > 300
    return found


def sections(element):
    """Map the name of each section to the names that it describes."""
    parsed = element.docstring.parse("google", warnings=False) if element.docstring else []
    return {
        part.kind.value: [item.name.lstrip("*") for item in part.value]
        for part in parsed
        if part.kind.value in ("parameters", "attributes")
    }


def parameters(function):
    return [each.name for each in function.parameters if each.name not in ("self", "cls")]


def expected(element):
    """Return the names that a docstring must describe: the parameters of a function or `__init__`, or attrs
    fields.
    """
    if element.is_function:
        return parameters(element)
    if any(re.match(r"(attrs\.)?(frozen|define)\b", str(each.value)) for each in element.decorators):
        return [
            name
            for name, found in element.attributes.items()
            if not name.startswith("_")
            and found.annotation
            and "ClassVar" not in str(found.annotation)
            and "property" not in found.labels
        ]
    return parameters(element.functions["__init__"]) if "__init__" in element.functions else []


def described(path):
    """Return the names that a docstring describes, in a section or (only in the SPI) in plain sentences."""
    element = elements()[path]
    names = set().union(*sections(element).values())
    text = element.docstring.value if element.docstring else ""
    if element.is_class:  # properties, and fields with a docstring
        names |= {name for name, found in element.attributes.items() if "property" in found.labels}
        names |= {name for name, found in element.attributes.items() if found.docstring}
    if path.startswith("multiclouddb_spi."):
        names |= set(re.findall(r"`(\w+)`", text))
    if same := re.search(
        r", as `([\w.]+)` does\.|(?:^Like|See also) `([\w.]+)`", text
    ):  # that docstring describes the same parameters
        other = same[1] or same[2]
        near, far = f"{path.rpartition('.')[0]}.{other}", f"multiclouddb_api.{other}"
        names |= described(near if near in elements() else far)
    return names


class TestSurface:
    def test_is_what_the_file_says(self):
        kept = FILE.read_text(encoding="utf-8").splitlines()
        changed = "\n".join(difflib.unified_diff(kept, surface(), "surface.txt", "today", n=0, lineterm=""))
        if changed:
            pytest.fail(
                f"the public surface has changed; if it should, run: {AGAIN}\n{changed}", pytrace=False
            )

    def test_is_the_same_in_every_process(self):
        assert not [line for line in surface() if " at 0x" in line or "<" in line]


class TestDescriptions:
    def test_every_parameter_and_field_is_described(self):
        missing = {
            path: [name for name in expected(element) if name not in described(path)]
            for path, element in elements().items()
        }
        assert {path: names for path, names in missing.items() if names} == {}

    def test_an_editor_shows_what_a_field_is(self):
        """An editor shows the text below a field, not a section of the class."""
        missing = {
            path: [name for name in expected(element) if not element.attributes[name].docstring]
            for path, element in elements().items()
            if element.is_class
            and "__init__" not in element.functions
            and not path.startswith("multiclouddb_spi.")
        }
        assert {path: names for path, names in missing.items() if names} == {}

    def test_nothing_is_described_that_is_not_there(self):
        wrong = {}
        for path, element in elements().items():
            there = {*expected(element), *(element.attributes if element.is_class else ())}
            wrong[path] = {name for names in sections(element).values() for name in names} - there
        assert {path: names for path, names in wrong.items() if names} == {}


if __name__ == "__main__":
    FILE.write_text("\n".join(surface()) + "\n", encoding="utf-8")
