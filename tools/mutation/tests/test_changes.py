"""Tests the changes that the operators make, and the code that they do not change."""

import ast
import textwrap

import pytest

from mutation.mutant import mutants_of, sample


@pytest.fixture
def changed(tmp_path):
    """Return the changed lines of a module with this source, as pairs of the old and the new line."""

    def find(source):
        (tmp_path / "module.py").write_text(textwrap.dedent(source))
        return {(each.before, each.after) for each in mutants_of(tmp_path, "module.py")}

    return find


CASES = [
    ("x = a < b", "x = (a <= b)"),
    ("x = a >= b", "x = (a > b)"),
    ("x = a == b", "x = (a != b)"),
    ("x = a is None", "x = (a is not None)"),
    ("x = a in b", "x = (a not in b)"),
    ("x = a and b", "x = (a or b)"),
    ("x = not a", "x = a"),
    ("x = a + b", "x = (a - b)"),
    ("x = -a", "x = a"),
    ("x = a[b:]", "x = a[(b + 1):]"),
    ("x = True", "x = False"),
    ("x = 1", "x = 0"),
    ("x = 1", "x = 2"),
    ("x = 600", "x = 600000"),
    ("x = 0.5", "x = 0"),
    ("x = min(a, b)", "x = max(a, b)"),
    ("x = f(a, b)", "x = f(b, a)"),
    ("f(a)", "pass"),
    ("a.b = c", "pass"),
    ("x = 1 if a else 2", "x = 1 if (not a) else 2"),
    ("x = [a for a in b if a]", "x = [a for a in b if (not a)]"),
    ('x = "ö" if a < b else c', 'x = "ö" if (a <= b) else c'),
]


class TestOperators:
    @pytest.mark.parametrize(("before", "after"), CASES)
    def test_a_change_is_found(self, changed, before, after):
        assert (before, after) in changed(before)

    @pytest.mark.parametrize("value", ["0", "1", "10", "11", "600", "0.0", "0.5", "1e9", "True", "None"])
    def test_a_constant_never_gets_an_equal_value(self, changed, value):
        def constant(line):
            return ast.literal_eval(line.removeprefix("x = "))

        assert constant(value) not in [constant(after) for _, after in changed(f"x = {value}")]

    def test_statements_and_jumps(self, changed):
        found = changed(
            """
            def f(items):
                for item in items:
                    if item:
                        continue
                    if not item:
                        return 5
                    raise item
                return items
            """
        )
        assert {
            ("continue", "break"),
            ("continue", "pass"),
            ("return 5", "pass"),
            ("raise item", "pass"),
            ("if item:", "if (not item):"),
        } <= found
        assert ("return items", "pass") not in found

    def test_a_statement_of_several_lines_is_one_line_of_text(self, changed):
        assert ("f( a, b, )", "pass") in changed("f(\n    a,\n    b,\n)\n")


class TestLeftAlone:
    @pytest.mark.parametrize(
        "source",
        [
            '"""Text of 1 and 2."""',
            "def f(a: Literal[1]) -> Literal[2]: ...",
            "def f(a=None): ...",
            "if TYPE_CHECKING:\n    x = 1",
            "assert a == 1",
            "class A:\n    def __repr__(self):\n        return f(1, 2)",
            "_log.info('%d', a + 1)",
            "x = f'{a + 1}'",
            "x = 'a' + b",
            "__all__ = ['a', 'b']",
            "A: TypeAlias = B[1]",
            "x = dict[str, None]()",
            "@attrs.frozen(eq=False)\nclass A: ...",
            "x = a.get(b, None)",
            "import a",
        ],
    )
    def test_nothing_is_changed(self, changed, source):
        assert changed(source) == {
            pair for pair in changed(source) if pair[1].startswith(("x = a.get(None",))
        }


class TestSample:
    SOURCE = "def f(a, b):\n" + "".join(f"    if a < b + {number}: g({number})\n" for number in range(40))

    @pytest.fixture
    def module(self, tmp_path):
        (tmp_path / "module.py").write_text(self.SOURCE)
        return tmp_path

    def test_is_the_same_for_the_same_source_and_seed(self, module):
        first, second = (sample(mutants_of(module, "module.py"), 7, 20) for _ in range(2))
        assert first == second
        assert len(first) == 20

    def test_is_another_for_another_seed(self, module):
        found = mutants_of(module, "module.py")
        assert sample(found, 7, 20) != sample(found, 8, 20)

    def test_stays_the_same_where_other_lines_are_edited(self, module):
        before = {each.identity for each in sample(mutants_of(module, "module.py"), 7, 20)}
        (module / "module.py").write_text("# another line\n" + self.SOURCE.replace("g(39)", "g(41)"))
        after = {each.identity for each in sample(mutants_of(module, "module.py"), 7, 20)}
        assert len(before & after) >= 15

    def test_names_differ_where_the_text_does_not(self, module):
        (module / "module.py").write_text("x = 1\nx = 1\n")
        found = mutants_of(module, "module.py")
        assert len({each.name for each in found}) == len(found) == 4
        assert len({(each.before, each.after) for each in found}) == 2
        assert sorted(each.nth for each in found) == [0, 0, 1, 1]
