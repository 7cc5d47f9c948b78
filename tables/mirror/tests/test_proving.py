"""Tests the proofs of mirrors that follow: one table at a time, while the others go on."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event, Lock

import attrs
import pytest

from multiclouddb_api import ErrorCategory, ErrorDetail, MulticloudDbError, ResourceAddress
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mirror import MirrorReport, ProvedMirror

REPORT = MirrorReport(
    ResourceAddress("main", "orders"), "t", "position", 0, 0, 0, 0.0, True, datetime.now(UTC), 0.0
)


class Job:
    """A run that ends when it is stopped, or, if it proves, when its proof is allowed to end."""

    def __init__(self, settings, proof):
        self.settings, self.proof, self.stopped = settings, proof, Event()

    def stop(self):
        self.stopped.set()

    def run(self):
        if not self.settings["prove"]:
            self.stopped.wait()
            return REPORT
        return attrs.evolve(REPORT, proof=self.proof())


class Table:
    """A proved mirror with its runs."""

    def __init__(self, turn, proof, **settings):
        self.jobs, self.ran, self.proof = [], [], proof

        def made(chosen):
            self.jobs.append(Job(chosen, self.proof))
            return self.jobs[-1]

        self.mirror = ProvedMirror(made, settings, 0.01, self.ran.append, turn)


def test_two_tables_are_proved_one_after_the_other_while_the_other_follows():
    proving, most, may_end, turn = [], [], Event(), Lock()

    def proof():
        proving.append(1)
        most.append(len(proving))
        may_end.wait()
        proving.pop()
        return "equal"

    tables = [Table(turn, proof), Table(turn, proof)]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(each.mirror.run) for each in tables]
        wait_until(lambda: proving, seconds=30)
        following = [each for each in tables if len(each.jobs) == 1]
        assert len(following) == 1
        assert not following[0].jobs[0].stopped.is_set()
        may_end.set()
        wait_until(lambda: all(len(each.jobs) > 4 for each in tables), seconds=30)
        for each in tables:
            each.mirror.stop()
        assert [each.result().proof for each in running] == ["equal", "equal"]
    assert set(most) == {1}
    assert not turn.locked()


def test_a_proof_that_fails_gives_its_turn_back_and_the_next_run_follows():
    error = MulticloudDbError("away", ErrorDetail(ErrorCategory.TRANSIENT_FAILURE, retryable=True))

    def proof():
        raise error

    turn = Lock()
    table = Table(turn, proof, resync=True)
    with pytest.raises(MulticloudDbError, match="away"):
        table.mirror.run()
    assert not turn.locked()
    assert [(job.settings["prove"], job.settings["resync"]) for job in table.jobs] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    table.mirror.stop()
    assert table.mirror.run() is not None
