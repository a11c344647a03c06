"""Forwards the states of the members of groups to other hosts (POOL-6).

The members on a host share a board in memory (`execution.state_board`). For each host, the master
sends the changes of members on other hosts to one worker, which writes them to the board.
"""

from __future__ import annotations

from ciel.core.events import StateChanged, StateSet
from ciel.core.ids import TaskId
from ciel.core.jobs import Job, JobState
from ciel.core.states import FAILED, GROUPS_MAX, MEMBERS_MAX, Group
from ciel.core.tasks import TaskState
from ciel.master.state.context import Context
from ciel.master.state.workers import WorkerNode

_FAILED = frozenset((TaskState.FAILED, TaskState.CANCELLED))


class _Member:
    """A member of a group. `host`: the host of its last attempt."""

    __slots__ = ("attempt", "host", "task", "word")

    def __init__(self, task: TaskId) -> None:
        self.task = task
        self.attempt = 0
        self.host = ""
        self.word = 0


class _Group:
    """A group. `checked`: what `_progress` was at the last check of its members."""

    __slots__ = ("checked", "followers", "job", "members", "size")

    def __init__(self, size: int, job: Job | None) -> None:
        self.size = size
        self.job = job
        self.checked: tuple[object, ...] | None = None
        self.members: dict[int, _Member] = {}
        self.followers: dict[str, dict[str, None]] = {}  # ids of workers, by host


class MemberStates:
    """The groups of all jobs.

    They are not in the journal: to a master that has restarted, each worker reports again what its
    members have set.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._groups: dict[Group, _Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def set(self, worker: WorkerNode, message: StateSet) -> None:
        """Note the state of a member, and send it to the hosts of other members.

        A member whose group has another size, or that is another task than before, has failed.
        """
        known = Group(message.job, message.group)
        group = self._groups.get(known)
        if group is None:
            counts = message.member < message.size <= MEMBERS_MAX
            if not counts or sum(one.job == known.job for one in self._groups) >= GROUPS_MAX:
                self._refuse(worker, message)
                return
            task = self._context.graph.tasks.get(message.task)
            job = None if task is None else task.job
            group = self._groups[known] = _Group(message.size, job)
        member = group.members.get(message.member)
        if member is None:
            member = group.members[message.member] = _Member(message.task)
            group.checked = None
        if group.size != message.size or member.task != message.task:
            self._refuse(worker, message)
            return
        if message.attempt < member.attempt:
            return  # of an attempt that another one has replaced
        host = worker.facts.host
        followers = group.followers.setdefault(host, {})
        is_first = not followers
        followers[worker.facts.id] = None
        member.attempt, member.host, member.word = message.attempt, host, message.word
        if is_first:
            self._tell_all(known, group, host)
        self._tell(known, group, message.member)

    def worker_lost(self, worker: WorkerNode) -> None:
        """Let another worker of its host follow the groups that this one has followed."""
        host = worker.facts.host
        for known, group in self._groups.items():
            followers = group.followers.get(host, {})
            first = next(iter(followers), None)
            followers.pop(worker.facts.id, None)
            if first == worker.facts.id and followers:
                self._tell_all(known, group, host)

    def check(self) -> None:
        """Forget groups of ended jobs; tell hosts which members have failed."""
        graph = self._context.graph
        for known, group in list(self._groups.items()):
            progress = None if group.job is None else _progress(group.job)
            if progress is not None and progress == group.checked:
                continue  # a group may have a thousand members, and this is called in each tick
            group.checked = progress
            is_over = True
            for number, member in group.members.items():
                task = graph.tasks.get(member.task)
                if task is not None and task.job.state is JobState.ACTIVE:
                    is_over = False
                if not member.word & FAILED and (task is None or task.state in _FAILED):
                    member.word |= FAILED
                    member.host = ""  # so the change goes to all hosts
                    self._tell(known, group, number)
            if is_over:
                del self._groups[known]

    def _tell(self, known: Group, group: _Group, number: int) -> None:
        """Tell all hosts but its own the state of a member."""
        member = group.members[number]
        for host, followers in group.followers.items():
            if followers and host != member.host:
                news = StateChanged(known.job, known.name, number, member.word)
                self._context.send(next(iter(followers)), news)

    def _tell_all(self, known: Group, group: _Group, host: str) -> None:
        """Tell a host the states of all members on other hosts."""
        follower = next(iter(group.followers[host]))
        for number, member in group.members.items():
            if member.host != host:
                news = StateChanged(known.job, known.name, number, member.word)
                self._context.send(follower, news)

    def _refuse(self, worker: WorkerNode, message: StateSet) -> None:
        news = StateChanged(message.job, message.group, message.member, FAILED)
        self._context.send(worker.facts.id, news)


def _progress(job: Job) -> tuple[object, ...]:
    """Return what changes when a task of a job fails or is forgotten, or the job ends."""
    return job.state, job.failures, job.handed_over
