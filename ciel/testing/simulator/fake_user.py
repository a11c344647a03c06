"""A user of a simulation: retries or removes jobs some time after they have ended."""

from __future__ import annotations

from collections.abc import Callable

from ciel.core.graph.endings import saw_error
from ciel.core.jobs import ENDED, Job, JobState
from ciel.core.refs import Failure
from ciel.testing.operations import at_once
from ciel.testing.simulator.fake_client import FakeClient
from ciel.testing.simulator.fake_master import FakeMaster
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.world import World

TRIES_MAX = 2
AWKWARD_SHARE = 0.5  # of jobs to remove: the user prefers a moment when lost results are recomputed
AWKWARD_INTERVAL_S = 0.05
_RETRIABLE = (JobState.FAILED, JobState.CANCELLED)


class FakeUser:
    """Draws at the start which jobs to retry or remove. Before it removes a job that has all its
    results, it calls `check` with the job's client.
    """

    def __init__(
        self,
        world: World[FakeWorker],
        master: Callable[[], FakeMaster],
        clients: list[FakeClient],
        check: Callable[[FakeClient], bool],
    ) -> None:
        self.retried = 0
        self.removed: dict[str, bool] = {}  # by job: whether an unsurvivable fault hit it
        self._world = world
        self._master = master
        self._check = check
        self._tries: dict[str, int] = {}
        self.revived: set[str] = set()  # cancelled jobs that were retried
        self._doomed: dict[str, bool] = {}  # jobs: whether to wait for an awkward moment
        options = world.options
        for client in clients:
            job_id = client.plan.job.id
            if options.retry_share and world.chance.random() < options.retry_share:
                self._tries[job_id] = world.chance.randint(1, TRIES_MAX)
            if options.remove_share and world.chance.random() < options.remove_share:
                self._doomed[job_id] = world.chance.random() < AWKWARD_SHARE
            if job_id in self._tries or job_id in self._doomed:
                self._poll_later(client)

    def _poll_later(self, client: FakeClient) -> None:
        self._poll_after(self._world.mean(self._world.options.after_end_mean_s), client)

    def _poll_after(self, delay_s: float, client: FakeClient) -> None:
        self._world.timeline.after(delay_s, self._poll, client)

    def _poll(self, client: FakeClient) -> None:
        master = self._master()
        machine = master.machine
        job = machine.jobs.get(client.plan.job.id)
        if job is not None and job.state in ENDED and not master.is_dead:
            if self._tries.get(job.spec.id):
                self._retry(client, job)
            elif job.spec.id in self._doomed and not (any(client.unrest()) or master.has_unsent):
                has_faults = self._world.timeline.now_s < self._world.options.faults_end_s
                if self._doomed[job.spec.id] and has_faults and not job.unsettled:
                    self._poll_after(AWKWARD_INTERVAL_S, client)
                else:
                    self._remove(client, job)
                return
        self._poll_later(client)

    def _retry(self, client: FakeClient, job: Job) -> None:
        machine, witness = self._master().machine, self._world.witness
        job_id = job.spec.id
        wanted = [machine.graph.objects.nodes[object_id] for object_id in job.wanted]
        failed = [node for node in wanted if isinstance(node.ref, Failure) and node.producer]
        was_cancelled = job.state is JobState.CANCELLED
        can_retry = was_cancelled or (job.state is JobState.FAILED and not job.is_cancelled)
        seer = at_once(saw_error(machine.graph, job))
        is_final = seer is not None  # a task has used an error as its input
        is_excused = witness.is_excused(machine, job)
        refusal = self._master().change("retry", job_id)
        while machine.operations.is_judged(job):  # the machine may refuse it in a later slice
            machine.bulk.end_tick()
            machine.bulk.resume()
            refusal = job.reason if job.state in _RETRIABLE else ""
        if (refusal and can_retry and failed and not is_final) or not (refusal or can_retry):
            raise Violation(job_id, f"retrying it: {refusal or 'the master did not refuse it'}")
        if refusal:
            self._tries[job_id] = 0
            return
        if was_cancelled:
            self.revived.add(job_id)
        self._tries[job_id] -= 1
        self.retried += 1
        client.plan.truth.retry()
        witness.retried.add(job_id)
        if client.plan.heals:
            witness.excused.discard(job_id)  # every task that used an error runs again
        elif is_excused:
            witness.excused.add(job_id)  # the task that used the error does not run again
        client.watch()

    def _remove(self, client: FakeClient, job: Job) -> None:
        job_id = job.spec.id
        self.removed[job_id] = not job.unsettled and self._check(client)
        self._world.witness.forgets_job(self._master().machine, job)
        refusal = self._master().change("remove", job_id)
        if refusal:
            raise Violation(job_id, f"removing it: {refusal}")
        del self._doomed[job_id]
        client.leave()

    def unrest(self) -> list[tuple[str, str]]:
        """Return a problem for each job that is still to be retried or removed."""
        jobs = self._master().machine.jobs
        to_retry = [job_id for job_id, tries in self._tries.items() if tries]
        failed = [j for j in to_retry if j in jobs and jobs[j].state in _RETRIABLE]
        doomed = [job_id for job_id in self._doomed if job_id in jobs]
        text = "its user has still to retry or remove it"
        return [(job_id, text) for job_id in (*failed, *doomed)]
