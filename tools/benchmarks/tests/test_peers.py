"""Tests the parts of the comparison with peers: checks, figures, output and page. No peer runs."""

import json
import struct
import sys
import time

import pytest
from typer.testing import CliRunner

from benchmarks.peers import command, environments, run
from benchmarks.peers.command import app, choose, plan
from benchmarks.peers.data import FIELDS, LostError, check_keys, document, item, key, keys_in
from benchmarks.peers.feeds import Size
from benchmarks.peers.page import page_text, write_docs
from benchmarks.peers.peer import Command, Group, MissingError, Peer
from benchmarks.peers.peers import PEERS
from benchmarks.peers.programs.meter import Meter
from benchmarks.peers.record import Record
from benchmarks.peers.report import Outcome, PeerError, Report
from benchmarks.record import ROOT

SIZE = Size(events=6, warm_up=2, tail=2)
FIGURES = {"count": 8, "events": 6, "seconds": 2.0, "cpu": 0.5, "mebibytes": 40.0}


def program(text):
    """Return a peer that runs this Python code. `spec` describes the work, and `keys` is the file to
    write."""
    head = "import json, sys, time\nspec = json.load(open(sys.argv[1]))\nkeys = open(spec['keys'], 'w')\n"
    return Command((sys.executable, "-c", head + text), versions={"thing": "1.2"})


def delivering(*numbers, **figures):
    """Return a peer that delivers these changes."""
    lines = "".join(f"{key(number)}\n" for number in numbers)
    return program(f"keys.write({lines!r})\nprint({json.dumps({**FIGURES, **figures})!r})")


def once(command, tmp_path):
    return run.run_once(command, SIZE, {}, tmp_path)


class TestData:
    def test_a_change_has_325_bytes(self):
        from bson import encode

        assert {len(encode(document(number))) for number in (0, 129_999)} == {325}
        texts = item(129_999)
        number = texts.pop("number")["N"]
        counted = sum(len(name) + len(value["S"]) for name, value in texts.items())
        assert counted + len("number") + (len(number) + 1) // 2 + 1 == 325
        assert item(0).keys() == {"pk", "number", *FIELDS}

    def test_keys_are_found_in_what_a_peer_returns(self, tmp_path):
        file = tmp_path / "keys.txt"
        file.write_text(f'{key(3)}\n{{"id":"\\"{key(12)}\\""}}\n{{"_id":"{key(7)}"}}\n')
        assert keys_in(file) == [3, 12, 7]

    def test_a_line_without_a_key_is_refused(self, tmp_path):
        file = tmp_path / "keys.txt"
        file.write_text("heartbeat\n")
        with pytest.raises(LostError, match="no change of the test: 'heartbeat'"):
            keys_in(file)


class TestCheck:
    def test_every_change_once_in_any_order_is_right(self):
        check_keys([4, 0, 3, 1, 2], 5, 5)

    def test_more_than_the_least_is_right_if_there_is_no_hole(self):
        check_keys(range(7), 5, 9)

    @pytest.mark.parametrize(
        ("delivered", "message"),
        [
            ([0, 1, 3, 4], "it lost 1 of 5, the first is key-0000002"),
            ([0, 1, 2, 3], "it lost 1 of 5, the first is key-0000004"),
            ([0, 1, 2, 3, 4, 6], "it lost 1 of 7, the first is key-0000005"),
            ([0, 1, 2, 3, 4, 1], "it delivered more than once 1 of 5, the first is key-0000001"),
            (range(10), "it delivered unknown changes: 1 of 10, the first is key-0000009"),
            ([], "it lost 5 of 5, the first is key-0000000"),
        ],
    )
    def test_a_lost_repeated_or_unknown_change_is_refused(self, delivered, message):
        with pytest.raises(LostError, match=f"^{message}$"):
            check_keys(delivered, 5, 9)


class TestRunning:
    def test_the_figures_of_a_peer_that_delivered_all(self, tmp_path):
        report = once(delivering(*range(8)), tmp_path)
        assert (report.rate, report.cpu_for_many) == (3.0, pytest.approx(0.5 / 6 * 100_000))

    def test_a_peer_that_lost_a_change_has_no_figures(self, tmp_path):
        with pytest.raises(LostError, match="lost 1 of 8, the first is key-0000005"):
            once(delivering(0, 1, 2, 3, 4, 6, 7), tmp_path)

    def test_a_peer_that_counted_another_number_has_no_figures(self, tmp_path):
        with pytest.raises(LostError, match="it counted 9 changes, and delivered 8"):
            once(delivering(*range(8), count=9), tmp_path)

    def test_a_program_that_failed_says_why(self, tmp_path):
        with pytest.raises(PeerError, match="ended with status 1: ValueError: no server"):
            once(program("raise ValueError('no server')"), tmp_path)

    def test_a_program_that_hangs_is_ended(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run, "_limit", lambda size: 0.5)
        with pytest.raises(PeerError, match="did not deliver all changes in time"):
            once(program("time.sleep(600)"), tmp_path)

    def test_a_program_gets_its_work_and_its_variables(self, tmp_path):
        command = program(
            "sys.exit(f\"{spec['warm_up']} {spec['jvm']} {sys.modules['os'].environ['WHERE']}\")"
        )
        command = Command(command.arguments, spec={"jvm": "lib"}, environment={"WHERE": "here"})
        with pytest.raises(PeerError, match="2 lib here"):
            once(command, tmp_path)


class TestMeasuring:
    @pytest.fixture
    def measured(self, monkeypatch):
        """Measure peers without a server. Tests give each peer as a command, or as the reason why the peer is
        missing."""
        from contextlib import contextmanager

        @contextmanager
        def feed(folder, size):
            yield {}

        monkeypatch.setattr(run, "FEEDS", {Group.MONGO: feed})

        def measure(**commands):
            def preparing(found):
                def prepare():
                    if isinstance(found, str):
                        raise MissingError(found)
                    return found

                return prepare

            peers = [
                Peer(name, Group.MONGO, name, "About.", preparing(found)) for name, found in commands.items()
            ]
            steps = []
            size = run.Plan(SIZE, runs=3)
            outcomes = run.measure(peers, size, lambda peer, number: steps.append((peer.name, number)))
            return outcomes, steps

        return measure

    def test_the_median_of_three_in_rounds(self, measured):
        good = delivering(*range(8), versions={"Python": "3"})
        (first, second), steps = measured(first=good, second=good)
        assert steps == [(name, number) for number in (1, 2, 3) for name in ("first", "second")]
        assert (first.state, first.runs, first.rate, first.mebibytes) == ("measured", 3, 3.0, 40.0)
        assert second.versions == {"Python": "3", "thing": "1.2"}

    def test_a_missing_and_a_failed_peer_leave_the_others(self, measured):
        outcomes, steps = measured(gone="no javac", lost=delivering(0, 1), good=delivering(*range(8)))
        assert [outcome.state for outcome in outcomes] == ["missing", "failed", "measured"]
        assert [outcome.verdict for outcome in outcomes[:2]] == [
            "missing: no javac",
            "failed: it lost 6 of 8, the first is key-0000002",
        ]
        assert [name for name, _ in steps] == ["lost", "good", "good", "good"]
        assert outcomes[1].rate is None


class TestReport:
    def test_the_last_line_counts(self):
        assert Report.parse("ready\nhello\n" + json.dumps(FIGURES)).count == 8

    @pytest.mark.parametrize(
        "output", ["", "hello", "[1]", '{"count": 1}', json.dumps({**FIGURES, "odd": 1})]
    )
    def test_other_output_is_refused(self, output):
        with pytest.raises(PeerError, match="its last line is not its figures"):
            Report.parse(output)

    def test_nothing_measured_is_refused(self):
        with pytest.raises(PeerError, match="use more --events"):
            Report.parse(json.dumps({**FIGURES, "events": 0}))

    def test_medians(self):
        reports = [Report(**{**FIGURES, "seconds": seconds}) for seconds in (1.0, 6.0, 2.0)]
        assert Outcome.of("peer", reports, {}).rate == 3.0


class TestMeter:
    @pytest.fixture
    def meter(self, tmp_path):
        with Meter({"warm_up": 2, "events": 3, "keys": str(tmp_path / "keys.txt")}) as meter:
            yield meter

    def figures(self, meter, capsys):
        meter.report()
        return json.loads(capsys.readouterr().out)

    def test_changes_one_by_one(self, meter, capsys, tmp_path):
        assert [meter.take(key(number)) for number in range(5)] == [False] * 4 + [True]
        found = self.figures(meter, capsys)
        assert (found["count"], found["events"]) == (5, 3)
        assert found["seconds"] > 0
        meter.__exit__(None, None, None)
        assert keys_in(tmp_path / "keys.txt") == list(range(5))

    def test_batches_are_measured_from_the_end_of_one_to_the_end_of_another(self, meter, capsys):
        ends = [meter.take_all(map(key, numbers)) for numbers in (range(1), range(1, 4), range(4, 7))]
        assert ends == [False, False, True]
        found = self.figures(meter, capsys)
        assert (found["count"], found["events"]) == (7, 3)

    def test_what_comes_after_the_last_batch_is_ignored(self, meter, capsys, tmp_path):
        for numbers in (range(3), range(3, 6), range(6, 9)):
            meter.take_all(map(key, numbers))
        assert self.figures(meter, capsys)["count"] == 6
        meter.__exit__(None, None, None)
        assert keys_in(tmp_path / "keys.txt") == list(range(6))

    def test_a_batch_of_everything_measures_nothing(self, meter, capsys):
        assert meter.take_all(map(key, range(9)))
        assert self.figures(meter, capsys)["events"] == 0


class TestPeers:
    def test_the_names_are_different_and_each_table_has_ours(self):
        assert len({peer.name for peer in PEERS}) == len(PEERS)
        assert all(any("multiclouddb" in p.title for p in PEERS if p.group is group) for group in Group)

    def test_without_a_compiler_the_java_programs_are_missing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(environments, "debezium_packages", lambda: tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path))
        for name in ("debezium", "java-driver"):
            (peer,) = choose([name])
            with pytest.raises(MissingError, match="no javac: install openjdk-17-jdk-headless"):
                peer.prepare()

    def test_without_its_jar_a_java_program_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(environments, "debezium_packages", lambda: tmp_path)
        monkeypatch.setattr(environments, "java_classes", lambda jars: tmp_path)
        (peer,) = choose(["java-driver"])
        with pytest.raises(MissingError, match="contain no mongodb-driver-sync-"):
            peer.prepare()

    def test_a_failed_download_is_a_missing_peer(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(sys, "executable", "false")
        with pytest.raises(MissingError, match=r"python -m pip install .* failed: status 1"):
            environments.debezium_packages()
        assert [path.suffix for path in (tmp_path / "multiclouddb-tests").iterdir()] == [".lock"]

    def test_everything_that_is_fetched_is_pinned_by_a_digest_and_names_no_registry(self):
        locks = ROOT.parent / "tools/benchmarks/peers/locks"
        packages = json.loads((locks / "package-lock.json").read_text())["packages"]
        wanted = json.loads((locks / "package.json").read_text())["dependencies"]
        assert packages.pop("")["dependencies"] == wanted
        assert all(each["integrity"].startswith("sha512-") for each in packages.values())
        for file in locks.iterdir():
            assert "://" not in file.read_text()
            assert "resolved" not in file.read_text()
        pins = (locks / "debezium.txt").read_text().replace("\\\n", "").splitlines()
        assert all("==" in line and "--hash=sha256:" in line for line in pins if not line.startswith("#"))


def outcome(name, **figures):
    return Outcome(name, "measured", runs=3, versions={"thing": "1.2"}, **figures)


@pytest.fixture
def record():
    return Record(
        "4 cores",
        "2026-01-31",
        100_000,
        (
            outcome("mongo-ours", rate=60_000.0, cpu=1.5, mebibytes=50.0),
            outcome("debezium", rate=18_000.0, cpu=6.0, mebibytes=300.0),
            Outcome("java-driver", "missing", "no javac"),
            outcome("dynamo-ours", rate=30_000.0, cpu=2.0, mebibytes=90.0),
            outcome("boto3", rate=9_000.0, cpu=9.0, mebibytes=60.0),
        ),
    )


class TestDocumentation:
    def test_the_page_has_figures_reasons_versions_and_commands(self, record):
        text = page_text(record)
        assert "| multiclouddb, `iterate_changes` | 60,000 | 1.5 | 50 |" in text
        assert "| MongoDB's Java driver | missing: no javac |  |  |" in text
        assert "Versions: thing 1.2." in text
        assert "make bench-peers ARGS=--record" in text
        assert text.rpartition("\n---\n\n")[2].startswith("*Made by `python -m benchmarks.peers --record`")

    def test_everything_is_written_and_comes_back(self, record, tmp_path):
        write_docs(record, tmp_path)
        assert Record.read(tmp_path) == record
        light, dark = ((tmp_path / f"assets/peers-{name}.png").read_bytes() for name in ("light", "dark"))
        assert light != dark
        assert all(min(struct.unpack(">II", image[16:24])) > 500 for image in (light, dark))


class TestCommand:
    def test_an_unknown_name_lists_the_names_in_one_line(self):
        ran = CliRunner().invoke(app, ["--only", "debesium"])
        assert ran.exit_code == 2
        assert ran.stderr == (
            f"error: there is no peer 'debesium'; the peers are {', '.join(peer.name for peer in PEERS)}\n"
        )

    def test_several_come_in_the_order_of_the_tables(self):
        assert [peer.name for peer in choose(["bloop pymongo,debezium"])] == ["debezium", "pymongo", "bloop"]

    def test_the_warm_up_comes_before_what_is_measured_and_more_changes_follow(self):
        size = plan(100_000, 3).size
        assert (size.events, size.least, size.written) == (100_000, 120_000, 125_000)

    @pytest.fixture
    def invoke(self, record, monkeypatch):
        """Run the command on a seemingly quiet machine, with prepared outcomes instead of real peers."""
        found = {each.name: each for each in record.outcomes}
        written = []
        monkeypatch.setattr(command, "measure", lambda peers, *_: [found[peer.name] for peer in peers])
        monkeypatch.setattr(command, "PEERS", tuple(peer for peer in PEERS if peer.name in found))
        monkeypatch.setattr(command, "write_docs", written.append)
        monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.0, 0.0))

        def invoke(*arguments):
            return CliRunner().invoke(app, arguments), written

        return invoke

    def test_the_tables_are_printed_with_what_is_missing(self, invoke):
        ran, _ = invoke()
        assert ran.exit_code == 0
        assert "| MongoDB's Java driver | missing: no javac |  |  |" in ran.stdout
        assert "| Debezium, embedded engine | 18,000 | 6 | 300 |" in ran.stdout

    def test_a_record_is_written(self, invoke, record):
        ran, (written,) = invoke("--record")
        assert ran.exit_code == 0
        assert (written.outcomes, written.events) == (record.outcomes, 100_000)
        assert written.day <= time.strftime("%Y-%m-%d", time.gmtime())

    @pytest.mark.parametrize("more", [["--only", "boto3"], ["--events", "2000"], ["--runs", "1"]])
    def test_less_than_everything_is_not_recorded(self, invoke, more):
        ran, written = invoke("--record", *more)
        assert (ran.exit_code, written) == (2, [])
        assert ran.stderr.startswith("error: --record needs all peers, 100,000 events and 3 runs")

    def test_a_busy_machine_is_reported_and_not_recorded(self, invoke, monkeypatch):
        monkeypatch.setattr("os.getloadavg", lambda: (2.5, 0.0, 0.0))
        assert "warning: the machine is busy (load 2.5)" in invoke()[0].stderr
        ran, written = invoke("--record")
        assert (ran.exit_code, written) == (2, [])
        assert "needs a quiet machine (load below 2), and its load is 2.5" in ran.stderr

    def test_a_peer_that_failed_is_not_recorded(self, invoke, monkeypatch):
        failed = Outcome("boto3", "failed", "it lost 1 of 8, the first is key-0000002")
        monkeypatch.setattr(command, "measure", lambda *_: [failed])
        monkeypatch.setattr(command, "PEERS", tuple(choose(["boto3"])))
        ran, written = invoke("--record")
        assert (ran.exit_code, written) == (1, [])
        assert "failed: it lost 1 of 8" in ran.stdout
