"""Tests queries, through the unmodified azure-cosmos."""

import random

import pytest
from azure.cosmos.exceptions import CosmosHttpResponseError

ITEMS = [
    {
        "id": str(number),
        "pk": f"p{number % 5}",
        "n": number,
        "even": number % 2 == 0,
        "name": f"Item {number:02}",
        "tags": ["a", "b", "c"][: number % 4],
        "deep": {"x": number / 2},
        **({"maybe": None} if number % 3 == 0 else {}),
    }
    for number in range(20)
]

WORDS = (
    "* c.n c.tags ( ) , = != < + - AND OR NOT IN BETWEEN LIKE 'x' 1 2.5 @p TOP OFFSET LIMIT VALUE AS z "
    "DISTINCT JOIN t GROUP BY ORDER [ ] { } : ? ?? COUNT(1) SUM(c.n) MIN( LOWER( null true undefined . %"
)


@pytest.fixture
def stocked(shop):
    """Make twenty items in three partitions."""
    container = shop.create(partitions=3)
    for item in ITEMS:
        container.create_item(item)
    return container


def numbers(container, where, **more):
    """Return the numbers of the items that a filter accepts."""
    more = more or {"enable_cross_partition_query": True}
    return sorted(container.query_items(f"SELECT VALUE c.n FROM c WHERE {where}", **more))


class TestFilters:
    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ("c.n = 3", [3]),
            ("c.n != 3 AND c.n < 5", [0, 1, 2, 4]),
            ("c.n >= 17 OR c.id = '0'", [0, 17, 18, 19]),
            ("c.even AND c.n < 5", [0, 2, 4]),
            ("c.n IN (1, 5, 99)", [1, 5]),
            ("c.deep.x = 4.5", [9]),
            ('c["deep"]["x"] > 9', [19]),
            ("c.tags[1] = 'b' AND c.n < 8", [2, 3, 6, 7]),
            ("IS_DEFINED(c.maybe) AND c.n < 7", [0, 3, 6]),
            ("IS_DEFINED(c.maybe) = false AND c.n < 4", [1, 2]),
            ("IS_NUMBER(c.maybe) OR IS_NUMBER(c.n) = false", []),
            ("c.n % 10 = 0", [0, 10]),
            ("(c.n + 1) * 2 = 8", [3]),
            ("c.n - 5 = -2", [3]),
            ("c.n = '3'", []),
            ("c.none = c.none", []),
            ("c.none > 1 OR c.n = 1", [1]),
            ("c.deep = {'x': 1}", [2]),
            ("c.deep != {'x': 1} OR c.tags != []", []),
            ("c.tags = ['a', 'b']", [2, 6, 10, 14, 18]),
            ("c.n = 1 -- a comment", [1]),
        ],
    )
    def test_a_filter(self, stocked, where, expected):
        assert numbers(stocked, where) == expected

    def test_parameters(self, stocked):
        found = stocked.query_items(
            "SELECT * FROM c WHERE c.n > @low AND c.pk IN (@a, @b)",
            parameters=[
                {"name": "@low", "value": 12},
                {"name": "@a", "value": "p0"},
                {"name": "@b", "value": "p1"},
            ],
            enable_cross_partition_query=True,
        )
        assert sorted(each["n"] for each in found) == [15, 16]

    @pytest.mark.parametrize("text", ["it's", 'a "b"', "back\\slash", "ü日", "%_"])
    def test_a_text_with_signs(self, container, text):
        container.create_item({"id": "1", "pk": "a", "text": text})
        found = container.query_items(
            "SELECT * FROM c WHERE c.text = @text",
            parameters=[{"name": "@text", "value": text}],
            partition_key="a",
        )
        assert len(list(found)) == 1


class TestResults:
    def test_whole_items_come_with_the_system_s_properties(self, stocked):
        (found,) = stocked.query_items("SELECT * FROM c WHERE c.id = '7'", partition_key="p2")
        assert found == stocked.read_item("7", "p2")

    def test_columns_have_names(self, stocked):
        query = "SELECT c.n, c.deep.x AS half, c.n + 1, c.none, {'a': c.n, 'b': [c.id]} AS made FROM c"
        (found,) = stocked.query_items(f"{query} WHERE c.id = '7'", partition_key="p2")
        assert found == {"n": 7, "half": 3.5, "$1": 8, "made": {"a": 7, "b": ["7"]}}

    def test_a_value_that_is_not_there_gives_no_result(self, stocked):
        found = stocked.query_items("SELECT VALUE c.maybe FROM c", enable_cross_partition_query=True)
        assert list(found) == [None] * 7

    def test_one_logical_partition_is_served_whole(self, stocked):
        whole = {"partition_key": "p1"}
        query = "SELECT VALUE c.n FROM c ORDER BY c.n DESC"
        assert list(stocked.query_items(query, **whole)) == [16, 11, 6, 1]
        assert list(stocked.query_items("SELECT TOP 2 VALUE c.n FROM c", **whole)) == [1, 6]
        query = "SELECT VALUE c.n FROM c ORDER BY c.n OFFSET 1 LIMIT 2"
        assert list(stocked.query_items(query, **whole)) == [6, 11]
        query = "SELECT COUNT(1) AS many, MAX(c.n) AS most FROM c"
        assert list(stocked.query_items(query, **whole)) == [{"many": 4, "most": 16}]
        assert list(stocked.query_items("SELECT DISTINCT VALUE c.even FROM c", **whole)) == [False, True]


class TestOverPartitions:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("SELECT VALUE c.n FROM c ORDER BY c.n", list(range(20))),
            ("SELECT VALUE c.n FROM c ORDER BY c.even DESC, c.n ASC", [*range(0, 20, 2), *range(1, 20, 2)]),
            ("SELECT TOP 3 VALUE c.n FROM c ORDER BY c.n DESC", [19, 18, 17]),
            ("SELECT VALUE c.n FROM c ORDER BY c.n OFFSET 5 LIMIT 3", [5, 6, 7]),
            ("SELECT VALUE COUNT(1) FROM c", [20]),
            ("SELECT VALUE SUM(c.n) FROM c WHERE c.even", [90]),
            ("SELECT VALUE AVG(c.n) FROM c", [9.5]),
            ("SELECT VALUE MIN(c.name) FROM c", ["Item 00"]),
            ("SELECT VALUE MAX(c.none) FROM c", [None]),
            ("SELECT VALUE MAX(c.deep.x) FROM c WHERE c.n < 3", [1]),
            ("SELECT DISTINCT VALUE c.pk FROM c ORDER BY c.pk", ["p0", "p1", "p2", "p3", "p4"]),
        ],
    )
    def test_the_client_puts_them_together(self, stocked, query, expected):
        assert list(stocked.query_items(query, enable_cross_partition_query=True)) == expected

    def test_distinct_properties_that_are_named_like_keywords(self, shop):
        container = shop.create(partitions=2)
        for number in range(6):
            container.create_item({"id": str(number), "pk": number, "value": number // 3, "order": 1})
        query = 'SELECT DISTINCT c["value"], c.order FROM c'
        found = container.query_items(query, enable_cross_partition_query=True)
        assert sorted(each["value"] for each in found) == [0, 1]

    def test_distinct_values_come_once(self, stocked):
        query = "SELECT DISTINCT c.even FROM c"
        found = stocked.query_items(query, enable_cross_partition_query=True)
        assert sorted(each["even"] for each in found) == [False, True]

    def test_sorted_items_and_columns(self, stocked):
        query = "SELECT * FROM c WHERE c.n < 3 ORDER BY c.n DESC"
        found = list(stocked.query_items(query, enable_cross_partition_query=True))
        assert [each["id"] for each in found] == ["2", "1", "0"]
        assert "_etag" in found[0]
        query = "SELECT c.id, c.n AS number FROM c WHERE c.n < 2 ORDER BY c.n"
        found = stocked.query_items(query, enable_cross_partition_query=True)
        assert list(found) == [{"id": "0", "number": 0}, {"id": "1", "number": 1}]

    def test_parameters_reach_every_partition(self, stocked):
        found = stocked.query_items(
            "SELECT VALUE c.n FROM c WHERE c.n > @low ORDER BY c.n",
            parameters=[{"name": "@low", "value": 16}],
            enable_cross_partition_query=True,
        )
        assert list(found) == [17, 18, 19]

    def test_it_has_to_be_allowed(self, shop, stocked):
        call = list
        assert shop.fails(call, stocked.query_items("SELECT * FROM c")) == (400, 0)

    @pytest.mark.parametrize(
        "where", ["c.pk = 'p1'", "IS_DEFINED(c.even) AND (c.pk = @pk) AND c.n >= 0", 'c["pk"] = "p1"']
    )
    def test_a_filter_by_the_partition_key_needs_no_permission_and_no_plan(self, server, stocked, where):
        parameters = [{"name": "@pk", "value": "p1"}]
        query = f"SELECT VALUE c.n FROM c WHERE {where} ORDER BY c.n DESC"
        found = stocked.query_items(query, parameters=parameters)
        assert list(found) == [16, 11, 6, 1]
        assert server.journal.count("ReadQueryPlan") == 0

    @pytest.mark.parametrize("where", ["c.pk = 'p1' OR c.n = 1", "c.pk != 'p1'", "(c.pk = 'p1') = true"])
    def test_another_one_does(self, shop, stocked, where):
        assert shop.fails(list, stocked.query_items(f"SELECT * FROM c WHERE {where}")) == (400, 0)

    def test_an_aggregate_beside_others_is_refused_by_the_client(self, stocked):
        query = "SELECT COUNT(1) AS many FROM c"
        with pytest.raises(CosmosHttpResponseError, match="VALUE <AggregateFunc>"):
            list(stocked.query_items(query, enable_cross_partition_query=True))

    def test_a_plan_is_asked_for_once(self, server, stocked):
        list(stocked.query_items("SELECT VALUE COUNT(1) FROM c", enable_cross_partition_query=True))
        statuses = [(each.status, each.substatus) for each in server.journal.entries("QueryItems")]
        assert statuses == [(400, 1004), (200, 0), (200, 0), (200, 0)]
        assert server.journal.count("ReadQueryPlan") == 1


class TestMetrics:
    def test_they_come_when_asked_for(self, stocked):
        told = []
        found = stocked.query_items(
            "SELECT * FROM c WHERE c.n = 6",
            partition_key="p1",
            populate_query_metrics=True,
            response_hook=lambda headers, _: told.append(headers["x-ms-documentdb-query-metrics"]),
        )
        assert [each["n"] for each in found] == [6]
        assert "outputDocumentCount=1" in told[0]


class TestPages:
    def test_they_have_so_many_items_and_go_on(self, stocked):
        pages = stocked.query_items(
            "SELECT VALUE c.n FROM c", enable_cross_partition_query=True, max_item_count=7
        ).by_page()
        first = list(next(pages))
        again = stocked.query_items(
            "SELECT VALUE c.n FROM c", enable_cross_partition_query=True, max_item_count=7
        ).by_page(pages.continuation_token)
        rest = [list(page) for page in again]
        assert [len(first), *map(len, rest)] == [7, 7, 6]
        assert sorted([*first, *(number for page in rest for number in page)]) == list(range(20))

    def test_a_page_has_a_hundred_unless_told_otherwise(self, container):
        for number in range(120):
            container.create_item({"id": str(number), "pk": "a"})
        pages = container.query_items("SELECT * FROM c", partition_key="a").by_page()
        assert [len(list(page)) for page in pages] == [100, 20]

    def test_sorted_pages_of_one_logical_partition(self, stocked):
        pages = stocked.query_items(
            "SELECT VALUE c.n FROM c ORDER BY c.n DESC", partition_key="p1", max_item_count=3
        ).by_page()
        assert [list(page) for page in pages] == [[16, 11, 6], [1]]

    def test_what_is_written_meanwhile_moves_no_page(self, container):
        for number in range(10):
            container.create_item({"id": f"b{number}", "pk": "a"})
        pages = container.query_items("SELECT * FROM c", partition_key="a", max_item_count=5).by_page()
        first = [each["id"] for each in next(pages)]
        container.delete_item("b0", "a")
        container.create_item({"id": "a", "pk": "a"})
        rest = [each["id"] for page in pages for each in page]
        assert [*first, *rest] == [*(f"b{number}" for number in range(10)), "a"]

    def test_a_continuation_of_another_query_is_refused(self, shop, container):
        pages = container.query_items("SELECT * FROM c", partition_key="a").by_page("bm9uc2Vuc2U=")
        assert shop.fails(next, pages) == (400, 0)

    def test_a_split_between_two_pages(self, shop):
        container = shop.create()
        for number in range(40):
            container.create_item({"id": str(number), "pk": str(number)})
        pages = container.query_items(
            "SELECT VALUE c.id FROM c ORDER BY c.id", enable_cross_partition_query=True, max_item_count=10
        )
        found = []
        for number, item in enumerate(pages):
            found.append(item)
            if number == 12:
                shop.split()
        assert sorted(set(found), key=int) == [str(number) for number in range(40)]


class TestScopes:
    def test_a_feed_range_sees_its_items(self, stocked):
        ranges = list(stocked.read_feed_ranges())
        parts = [list(stocked.query_items("SELECT VALUE c.n FROM c", feed_range=each)) for each in ranges]
        assert sorted(number for part in parts for number in part) == list(range(20))
        assert all(len(part) < 20 for part in parts)

    def test_the_feed_range_of_a_partition_key_sees_that(self, stocked):
        one = stocked.feed_range_from_partition_key("p1")
        found = stocked.query_items("SELECT VALUE c.n FROM c", feed_range=one)
        assert sorted(found) == [1, 6, 11, 16]


class TestRefused:
    @pytest.mark.parametrize(
        ("query", "near"),
        [
            ("SELEC * FROM c", "SELEC"),
            ("SELECT * FROM c WHERE", "end of query"),
            ("SELECT * FROM c WHERE c.n ==", "="),
            ("SELECT * FROM c WHERE c.n = 1)", ")"),
            ("SELECT * FROM c ORDER c.n", "ORDER"),
            ("SELECT * FROM c WHERE c.n = $", "$"),
            ("SELECT TOP x * FROM c", "x"),
        ],
    )
    def test_what_is_no_query_is_400_with_the_place(self, container, query, near):
        with pytest.raises(CosmosHttpResponseError) as caught:
            list(container.query_items(query, partition_key="a"))
        assert caught.value.status_code == 400
        assert f"incorrect syntax near '{near}'" in caught.value.message

    def test_any_words_have_an_answer(self, direct):
        """Any text that is sent as a query gets an answer: a result, 400 or 501.

        A defect of the server would cause a 500, and `stop` would then raise the server's error.
        """
        chosen = random.Random(15)
        statuses = set()
        for _ in range(200):
            some = " ".join(chosen.choices(WORDS.split(), k=chosen.randint(1, 6)))
            form = chosen.choice(["SELECT {} FROM c", "SELECT * FROM c WHERE {}", "SELECT VALUE {}"])
            try:
                list(direct[1].query_items(form.format(some), partition_key="a"))
                statuses.add(200)
            except CosmosHttpResponseError as error:
                statuses.add(error.status_code)
        assert statuses <= {200, 400, 501}
        assert {200, 400} <= statuses

    @pytest.mark.parametrize(
        ("query", "message"),
        [
            ("SELECT * FROM c WHERE IS_NUMBER(c.n, 1)", "The IS_NUMBER function requires 1 argument(s)."),
            ("SELECT VALUE MAX() FROM c", "The MAX function requires 1 argument(s)."),
            ("SELECT * FROM c WHERE c.n = @n", "The query parameter '@n' has no value."),
            ("SELECT TOP 1 * FROM c OFFSET 0 LIMIT 1", "TOP and OFFSET LIMIT cannot be in the same query."),
        ],
    )
    def test_what_cannot_be_is_400(self, container, query, message):
        with pytest.raises(CosmosHttpResponseError) as caught:
            list(container.query_items(query, partition_key="a"))
        assert caught.value.status_code == 400
        assert message in caught.value.message.replace("\\", "")

    @pytest.mark.parametrize(
        ("query", "what"),
        [
            ("SELECT * FROM c WHERE EXISTS(SELECT VALUE t FROM t IN c.tags)", "subqueries"),
            ("SELECT ARRAY(SELECT VALUE t FROM t IN c.tags) FROM c", "subqueries"),
            ("SELECT udf.tax(c.n) FROM c", "user-defined functions"),
            ("SELECT VALUE (SELECT VALUE 1 FROM t IN c.tags) FROM c", "subqueries"),
            ("SELECT * FROM (SELECT * FROM c) AS d", "subqueries"),
            ("SELECT * FROM c WHERE ST_DISTANCE(c.a, c.b) < 1", "the function ST_DISTANCE"),
            ("SELECT * FROM c WHERE CONTAINS(c.n, 'x')", "the function CONTAINS"),
            ("SELECT * FROM c WHERE NOT c.even", "NOT"),
            ("SELECT * FROM c WHERE c.n NOT IN (1)", "NOT"),
            ("SELECT * FROM c WHERE c.name LIKE 'x%'", "LIKE"),
            ("SELECT * FROM c WHERE c.n BETWEEN 1 AND 2", "BETWEEN"),
            ("SELECT VALUE c.n ?? 1 FROM c", "the operator ??"),
            ("SELECT VALUE c.even ? 1 : 2 FROM c", "the operator ?"),
            ("SELECT VALUE c.name || 'x' FROM c", "the operator ||"),
            ("SELECT VALUE ~c.n FROM c", "the operator ~"),
            ("SELECT VALUE t FROM c JOIN t IN c.tags", "JOIN"),
            ("SELECT VALUE t FROM t IN c.tags", "FROM with a path"),
            ("SELECT VALUE t FROM c.tags t", "FROM with a path"),
            ("SELECT c.pk, COUNT(1) AS many FROM c GROUP BY c.pk", "GROUP BY"),
            ("SELECT VALUE 1 + 1", "a query without FROM"),
            ("SELECT TOP 1 * FROM c ORDER BY RANK FullTextScore(c.t, 'x')", "ORDER BY RANK"),
        ],
    )
    def test_what_the_service_has_and_this_has_not_is_501(self, direct, query, what):
        with pytest.raises(CosmosHttpResponseError) as caught:
            list(direct[1].query_items(query, partition_key="a"))
        assert caught.value.status_code == 501
        assert f"does not offer {what}." in caught.value.message
