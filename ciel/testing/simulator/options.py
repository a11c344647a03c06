"""The options of a simulation: the cluster, its work, and the faults.

The engine must survive these faults: loss and restart of any worker (with or without its store),
loss of any connection or client, delays, and frozen workers. Two faults it cannot survive: the loss
of three workers that had the same task, and the loss of the only worker that had an upload.
`Witness.is_excused` recognises both. Without `journal`, the master does not fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

MEMORY = 8 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """Means are of exponential distributions; an interval of 0 means never; shares are 0 to 1."""

    # The cluster.
    workers: int = 3
    hosts: int = 2
    slots_per_worker: int = 2
    memory_per_worker: int = 0  # bytes; 0: not known
    latency_mean_s: float = 0.001
    spike_share: float = 0.01
    spike_mean_s: float = 0.3
    fetch_failure_share: float = 0.0
    steps_per_tick: int = 1000  # slices of operations in one tick
    tick_max_s: float = 0.002  # how long the master collects events in a tick
    delegates: bool = True  # the master dispatches eagerly, and workers run children inline
    through_wire: bool = True  # every message is encoded and decoded

    # The work.
    jobs: int = 2
    tasks_per_job: int = 30  # before tasks spawn others
    task_mean_s: float = 0.1
    object_mean_bytes: int = 5_000_000
    inline_share: float = 0.4
    failing_share: float = 0.0
    flaky_share: float = 0.0  # of tasks that fail a few times, within their retries
    late_failure_share: float = 0.0  # of growing flaky tasks: they create tasks before they fail
    hanging_share: float = 0.0  # of tasks that run until their time limit
    sees_errors_share: float = 0.1
    growing_share: float = 0.15
    growth_depth_max: int = 3
    growth_breadth_max: int = 3
    twin_share: float = 0.05  # tasks that share their outputs with an earlier one
    wide_share: float = 0.2  # tasks with more than one output
    blocking_share: float = 0.0  # of growing tasks: they publish more, and leave a waiting process
    streaming_share: float = 0.0  # of tasks: their outputs can be read while they run
    hungry_share: float = 0.0  # of tasks: they request a quarter of a worker's memory, or more
    disk_share: float = 0.0  # of tasks: they are bound by the I/O of one of two disks of each host
    disk_at_a_time: int = 1  # their limit
    resource_share: float = 0.0  # of tasks: they need named resources, or a worker with labels
    policy_share: float = 0.0  # of jobs with a policy other than the default, or with options
    choosing_share: float = 0.0  # of tasks with inputs: any one of some inputs is enough
    within_share: float = 0.0  # of children that may run inline: they do
    bundle_share: float = 0.0  # of tasks: they hand lots of their work to idle workers
    uploads_per_job: int = 2
    upload_inline_share: float = 1.0
    copies_share: float = 0.0  # of uploads: the master maintains two copies
    phases_max: int = 3  # in how many batches a client adds its tasks
    phase_mean_s: float = 1.0
    wanted_share: float = 0.1  # of the outputs of a batch, in addition to the last
    release_share: float = 0.2  # of the wants of an earlier batch
    hand_over_share: float = 0.0  # of results that the plan does not name again
    cancel_share: float = 0.0  # of jobs
    detached_share: float = 0.3
    healing_share: float = 0.0  # of jobs: failed tasks succeed after a retry
    retry_share: float = 0.0  # of failed jobs; some of them twice
    remove_share: float = 0.0  # of ended jobs
    after_end_mean_s: float = 1.0  # until a job is retried or removed

    # The faults, until `faults_end_s`.
    faults_end_s: float = 12.0
    kill_interval_s: float = 0.0
    blackout_interval_s: float = 0.0  # all workers at once
    wipe_share: float = 0.3
    move_share: float = 0.3  # of restarts at another address
    restart_mean_s: float = 1.0
    cut_interval_s: float = 0.0
    silent_share: float = 0.3  # of kills and cuts that no peer notices at once
    reconnect_mean_s: float = 0.3
    pause_interval_s: float = 0.0
    pause_mean_s: float = 3.0
    pause_max_s: float = 1e9
    worker_timeout_s: float = 8.0
    partition_interval_s: float = 0.0
    partition_mean_s: float = 3.0
    wall_interval_s: float = 0.0  # workers cannot fetch from each other, but reach the master
    wall_mean_s: float = 8.0
    lasting_share: float = 0.0  # of walls: they stay until the end
    flap_share: float = 0.0  # of new connections that end at once
    client_cut_interval_s: float = 0.0
    client_back_share: float = 0.8

    # The master. With a journal, clients have sessions.
    journal: bool = False
    sync_mean_s: float = 0.002  # until a group of records is durable
    crash_interval_s: float = 0.0
    power_share: float = 0.3  # of crashes that lose what the disk has not made durable
    master_restart_mean_s: float = 0.5
    lying_share: float = 0.0  # of calls that make records durable, and do nothing
    compaction_interval_s: float = 0.0
    compaction_mean_s: float = 0.2  # until the base has replaced the files

    # Further masters, which follow its journal. Crashes hit the host of any of them.
    standbys: int = 0
    freeze_interval_s: float = 0.0  # a master or standby is stopped, and continues
    freeze_mean_s: float = 2.5
    separation_interval_s: float = 0.0  # a host is separated from some or all parties
    separation_mean_s: float = 4.0
    standby_cut_interval_s: float = 0.0  # a standby loses its connection
    vote_loss_share: float = 0.0  # of questions to voters, and of answers
    full_share: float = 0.0  # of promises that a worker cannot store

    # The checks.
    ticks_per_check: int = 1
    nothing_runs_twice: bool = False
    repeats_only_lost: bool = False  # a task runs again only if its worker died before its report
    liveness_s: float = 900.0  # all work must end within this time after the last fault


_CALM = Options()
SCENARIOS: dict[str, Options] = {
    "calm": _CALM,
    "kills": replace(_CALM, kill_interval_s=4.0),
    # Workers that are killed and started again at once find their objects: none is recomputed.
    "returning": replace(
        _CALM, kill_interval_s=1.0, wipe_share=0.0, move_share=0.0, silent_share=0.0,
        restart_mean_s=0.2, inline_share=0.0, twin_share=0.0, release_share=0.0,
        growing_share=0.0, phases_max=1, repeats_only_lost=True,
    ),
    "wiped": replace(_CALM, kill_interval_s=4.0, wipe_share=1.0, inline_share=0.0),
    "cuts": replace(_CALM, cut_interval_s=3.0),
    "pauses": replace(_CALM, pause_interval_s=4.0),
    # Outages that end before a worker is declared dead, so that each task runs only once.
    "outages": replace(
        _CALM, pause_interval_s=2.0, pause_mean_s=4.0, pause_max_s=10.0, cut_interval_s=2.0,
        silent_share=0.5, worker_timeout_s=60.0, twin_share=0.0, release_share=0.0,
        growing_share=0.0, phases_max=1, nothing_runs_twice=True, steps_per_tick=1,
    ),
    "absences": replace(
        _CALM, pause_interval_s=3.0, pause_mean_s=5.0, cut_interval_s=3.0, kill_interval_s=6.0,
        silent_share=0.5, inline_share=0.2, growing_share=0.3, streaming_share=0.2,
        blocking_share=0.1, worker_timeout_s=6.0,
    ),
    "growth": replace(
        _CALM, tasks_per_job=6, growing_share=0.9, growth_depth_max=4, kill_interval_s=5.0
    ),
    "errors": replace(
        _CALM, failing_share=0.05, flaky_share=0.2, hanging_share=0.03, sees_errors_share=0.3,
        cut_interval_s=6.0, fetch_failure_share=0.1,
    ),
    "cancels": replace(_CALM, jobs=4, cancel_share=0.6, cut_interval_s=4.0, kill_interval_s=8.0),
    "wavering": replace(
        _CALM,
        phases_max=8,
        phase_mean_s=0.3,
        release_share=0.6,
        task_mean_s=0.4,
        cut_interval_s=8.0,
    ),
    "clients": replace(_CALM, jobs=4, client_cut_interval_s=1.5, cut_interval_s=5.0),
    "fetches": replace(
        _CALM, workers=5, hosts=3, fetch_failure_share=0.2, inline_share=0.0, cut_interval_s=8.0
    ),
    "streams": replace(
        _CALM, streaming_share=0.7, workers=4, task_mean_s=0.3, inline_share=0.2, flaky_share=0.1,
        kill_interval_s=4.0, cut_interval_s=6.0, fetch_failure_share=0.05, growing_share=0.05,
    ),
    "blocks": replace(
        _CALM, tasks_per_job=8, growing_share=0.9, growth_depth_max=3, blocking_share=0.8,
        inline_share=0.2, kill_interval_s=4.0, cut_interval_s=6.0, fetch_failure_share=0.05,
    ),
    "choices": replace(
        _CALM, choosing_share=0.7, workers=4, task_mean_s=0.3, inline_share=0.3, failing_share=0.03,
        sees_errors_share=0.4, streaming_share=0.1, kill_interval_s=4.0, wipe_share=0.7,
        cut_interval_s=6.0, fetch_failure_share=0.05, phases_max=5, phase_mean_s=0.5,
    ),
    "within": replace(
        _CALM, tasks_per_job=8, growing_share=0.9, growth_depth_max=4, within_share=0.9,
        flaky_share=0.1, kill_interval_s=2.0, wipe_share=0.5, cut_interval_s=3.0, cancel_share=0.2,
        release_share=0.4, fetch_failure_share=0.05,
    ),
    "bundles": replace(
        _CALM, tasks_per_job=12, bundle_share=0.6, growing_share=0.1, inline_share=0.1, workers=2,
        slots_per_worker=1, task_mean_s=0.05, hand_over_share=0.2, kill_interval_s=2.0,
        wipe_share=0.5, restart_mean_s=0.3, cut_interval_s=8.0, fetch_failure_share=0.05,
    ),
    # Stores in memory, and all workers die, often at once.
    "blackouts": replace(
        _CALM, tasks_per_job=12, bundle_share=0.6, within_share=0.5, growing_share=0.3,
        inline_share=0.1, workers=2, slots_per_worker=1, task_mean_s=0.05, phases_max=4,
        blackout_interval_s=1.5, wipe_share=1.0, restart_mean_s=0.2,
    ),
    "memory": replace(
        _CALM, jobs=3, workers=4, slots_per_worker=3, memory_per_worker=MEMORY, hungry_share=0.7,
        policy_share=0.5, inline_share=0.2, kill_interval_s=5.0, cut_interval_s=6.0,
        flaky_share=0.1, cancel_share=0.2, growing_share=0.3, fetch_failure_share=0.05,
    ),
    "disks": replace(
        _CALM, jobs=3, workers=4, disk_share=0.7, inline_share=0.2, growing_share=0.3,
        streaming_share=0.2, hanging_share=0.05, kill_interval_s=5.0, cut_interval_s=6.0,
        flaky_share=0.1, cancel_share=0.2, fetch_failure_share=0.05,
    ),
    "resources": replace(
        _CALM, jobs=3, workers=4, resource_share=0.7, hungry_share=0.2, inline_share=0.2,
        growing_share=0.3, blocking_share=0.3, streaming_share=0.2, hanging_share=0.05,
        kill_interval_s=5.0, cut_interval_s=6.0, flaky_share=0.1, cancel_share=0.2,
        fetch_failure_share=0.05, policy_share=0.2,
    ),
    "uploads": replace(
        _CALM, uploads_per_job=6, upload_inline_share=0.3, cut_interval_s=8.0,
        fetch_failure_share=0.2,
    ),
    "copies": replace(
        _CALM, journal=True, workers=4, tasks_per_job=15, uploads_per_job=6,
        upload_inline_share=0.1, copies_share=0.7, kill_interval_s=3.0, wipe_share=0.7,
        restart_mean_s=0.5, cut_interval_s=6.0, crash_interval_s=5.0, fetch_failure_share=0.1,
        object_mean_bytes=50_000_000, phases_max=6, cancel_share=0.2, remove_share=0.3,
    ),
    "thousand": replace(
        _CALM, jobs=1, tasks_per_job=1000, task_mean_s=0.05, workers=4, growing_share=0.03,
        phases_max=1, kill_interval_s=3.0, ticks_per_check=150,
    ),
    "handed": replace(
        _CALM, tasks_per_job=20, hand_over_share=0.8, wanted_share=0.5, phases_max=5,
        inline_share=0.2, kill_interval_s=4.0, client_cut_interval_s=3.0, client_back_share=1.0,
    ),
    "afterwards": replace(
        _CALM, jobs=4, tasks_per_job=20, failing_share=0.05, healing_share=0.7, retry_share=0.8,
        remove_share=0.6, hand_over_share=0.3, wanted_share=0.3, cancel_share=0.2,
        after_end_mean_s=0.3, kill_interval_s=3.0, wipe_share=0.6, cut_interval_s=6.0,
        client_cut_interval_s=6.0,
    ),
    "restarts": replace(_CALM, journal=True, crash_interval_s=1.5, flap_share=0.1),
    "compactions": replace(
        _CALM, journal=True, crash_interval_s=1.0, power_share=0.5, sync_mean_s=0.02,
        compaction_interval_s=0.3, hand_over_share=0.5, release_share=0.4, cancel_share=0.2,
        failing_share=0.1, retry_share=0.5, remove_share=0.5, copies_share=0.3,
        upload_inline_share=0.5, phases_max=4, tasks_per_job=10,
    ),
    # Nothing but the master fails, so each task runs only once.
    "redo": replace(
        _CALM, journal=True, crash_interval_s=1.5, power_share=0.5, sync_mean_s=0.02,
        worker_timeout_s=60.0, twin_share=0.0, release_share=0.0, growing_share=0.0, phases_max=1,
        nothing_runs_twice=True,
    ),
    "partitions": replace(
        _CALM, journal=True, crash_interval_s=4.0, partition_interval_s=3.0, flap_share=0.1,
        growing_share=0.3, streaming_share=0.2, inline_share=0.2,
    ),
    # Workers that do not reach each other; all but uploads can be recomputed elsewhere.
    "walls": replace(
        _CALM, journal=True, workers=4, hosts=4, wall_interval_s=2.0, lasting_share=0.3,
        inline_share=0.2, growing_share=0.3, streaming_share=0.1, choosing_share=0.1,
        kill_interval_s=12.0, crash_interval_s=8.0,
    ),
    "two apart": replace(
        _CALM, workers=2, hosts=2, wall_interval_s=1.0, lasting_share=1.0, inline_share=0.2,
    ),
    "ruins": replace(
        _CALM, journal=True, crash_interval_s=2.0, kill_interval_s=2.0, wipe_share=0.5,
        cut_interval_s=4.0, pause_interval_s=6.0, client_cut_interval_s=5.0, flap_share=0.1,
        growing_share=0.3, inline_share=0.2, flaky_share=0.1, hand_over_share=0.3,
        sync_mean_s=0.01,
    ),
    # Any of two masters is killed, stopped or separated from others; workers vote.
    "standbys": replace(
        _CALM, journal=True, standbys=1, tasks_per_job=10, growth_depth_max=2, phases_max=5,
        release_share=0.0,
        sync_mean_s=0.01, crash_interval_s=4.0, master_restart_mean_s=1.5, power_share=0.5,
        freeze_interval_s=4.0, separation_interval_s=4.0, standby_cut_interval_s=6.0,
        vote_loss_share=0.05, full_share=0.05, kill_interval_s=8.0, wipe_share=0.0, move_share=0.0,
        cut_interval_s=8.0, pause_interval_s=10.0, pause_mean_s=1.5,
        through_wire=False, ticks_per_check=4, faults_end_s=15.0,
    ),
    # A disk that says too early that records are durable.
    "lies": replace(
        _CALM, journal=True, crash_interval_s=1.5, power_share=0.8, lying_share=0.3,
        growing_share=0.3, kill_interval_s=6.0,
    ),
}  # fmt: skip


ANY, CRASHES, ELECTIONS = "any", "crashes", "elections"
DRAWN = (ANY, CRASHES, ELECTIONS)
"""Scenarios whose options the seed draws: without and with crashes of the master; with standbys."""


def options_for(scenario: str, seed: int) -> Options:
    """Return the options of a named scenario, or of `any`, which the seed draws."""
    if scenario == ANY:
        return _draw(seed)
    if scenario == ELECTIONS:
        return _draw_elections(seed)
    return _draw_crashes(seed) if scenario == CRASHES else SCENARIOS[scenario]


def _draw_elections(seed: int) -> Options:
    """Draw clusters with standbys, slow disks and lossy networks."""
    chance = Random(f"elections {seed}")
    return replace(
        SCENARIOS["standbys"],
        standbys=chance.choice((1, 1, 1, 2)),
        workers=chance.choice((3, 3, 4, 5)),
        tasks_per_job=chance.choice((3, 8)),
        sync_mean_s=chance.choice((0.002, 0.02, 0.1, 0.4)),
        crash_interval_s=chance.choice((1.0, 2.0, 5.0)),
        master_restart_mean_s=chance.choice((0.2, 1.5, 4.0)),
        power_share=chance.choice((0.0, 0.5, 1.0)),
        freeze_interval_s=chance.choice((1.5, 4.0, 1e9)),
        separation_interval_s=chance.choice((1.5, 4.0, 1e9)),
        standby_cut_interval_s=chance.choice((1.0, 6.0)),
        vote_loss_share=chance.choice((0.0, 0.05, 0.3)),
        kill_interval_s=chance.choice((2.0, 8.0, 1e9)),
        faults_end_s=chance.choice((6.0, 12.0)),
        compaction_interval_s=chance.choice((0.0, 0.0, 0.3, 2.0)),
        compaction_mean_s=chance.choice((0.01, 1.0)),
    )


def _draw_crashes(seed: int) -> Options:
    """Draw small clusters and short runs, so that many seeds can run, whose master crashes."""
    chance = Random(f"crashes {seed}")

    def sometimes(share: float, *values: float) -> float:
        return chance.choice(values) if chance.random() < share else 0.0

    any_of = _draw(seed)
    options = replace(
        any_of,
        journal=True,
        workers=min(any_of.workers, 3),
        jobs=chance.randint(1, 2),
        tasks_per_job=chance.choice((2, 5, 10)),
        growth_depth_max=2,
        phases_max=min(any_of.phases_max, 3),
        phase_mean_s=0.5,
        faults_end_s=chance.choice((2.0, 5.0)),
        spike_share=sometimes(0.5, 0.01, 0.05),
        crash_interval_s=chance.choice((0.5, 1.0, 2.0, 1e9)),
        power_share=chance.choice((0.0, 0.3, 1.0)),
        master_restart_mean_s=chance.choice((0.05, 0.5)),
        sync_mean_s=chance.choice((0.0005, 0.005, 0.05, 0.5)),
        flap_share=sometimes(0.3, 0.1, 0.3),
        partition_interval_s=sometimes(0.2, 2.0),
        lying_share=sometimes(0.05, 0.3),
        kill_interval_s=sometimes(0.3, 1.0, 3.0),
        blackout_interval_s=sometimes(0.1, 2.0),
        restart_mean_s=chance.choice((0.1, 1.0)),
        cut_interval_s=sometimes(0.3, 1.0, 3.0),
        pause_interval_s=sometimes(0.15, 2.0),
        pause_mean_s=chance.choice((1.0, 5.0)),
        pause_max_s=12.0,
        client_cut_interval_s=sometimes(0.2, 1.0),
        ticks_per_check=chance.choice((2, 16)),
        through_wire=chance.random() < 0.2,
        compaction_interval_s=sometimes(0.2, 0.3, 2.0),
        compaction_mean_s=chance.choice((0.01, 1.0)),
    )
    if Random(f"absences {seed}").random() < 0.2:
        # Workers that return when a restarted master has waited for them and assigned their tasks.
        return replace(options, pause_interval_s=2.0, pause_mean_s=12.0, pause_max_s=30.0)
    return options


def _draw(seed: int) -> Options:
    """Draw options. Most seeds switch most faults off: frequent faults prevent rare sequences."""
    chance = Random(f"options {seed}")

    def sometimes(share: float, *values: float) -> float:
        return chance.choice(values) if chance.random() < share else 0.0

    return replace(
        _CALM,
        workers=chance.randint(1, 5),
        hosts=chance.randint(1, 3),
        slots_per_worker=chance.randint(1, 4),
        latency_mean_s=chance.choice((0.0002, 0.001, 0.02)),
        spike_share=sometimes(0.5, 0.01, 0.1),
        fetch_failure_share=sometimes(0.3, 0.05, 0.3),
        tick_max_s=sometimes(0.7, 0.002, 0.05),
        jobs=chance.randint(1, 4),
        tasks_per_job=chance.choice((2, 8, 20, 40)),
        task_mean_s=chance.choice((0.01, 0.1, 0.4)),
        inline_share=chance.choice((0.0, 0.4, 1.0)),
        failing_share=sometimes(0.3, 0.02, 0.1),
        flaky_share=sometimes(0.3, 0.1, 0.4),
        hanging_share=sometimes(0.2, 0.03),
        sees_errors_share=sometimes(0.5, 0.1, 0.4),
        growing_share=sometimes(0.6, 0.1, 0.5),
        uploads_per_job=chance.randint(0, 4),
        upload_inline_share=chance.choice((1.0, 1.0, 0.5)),
        phases_max=chance.randint(1, 4),
        cancel_share=sometimes(0.2, 0.5),
        kill_interval_s=sometimes(0.5, 3.0, 6.0),
        wipe_share=chance.choice((0.0, 0.3, 1.0)),
        cut_interval_s=sometimes(0.4, 2.0, 5.0),
        pause_interval_s=sometimes(0.3, 4.0),
        pause_mean_s=chance.choice((1.0, 5.0)),
        client_cut_interval_s=sometimes(0.25, 2.0),
        wanted_share=0.1 + sometimes(0.2, 0.4),
        hand_over_share=sometimes(0.3, 0.3, 0.9),
        healing_share=sometimes(0.5, 0.5, 1.0),
        retry_share=sometimes(0.3, 0.5, 1.0),
        remove_share=sometimes(0.3, 0.3, 0.8),
        after_end_mean_s=chance.choice((0.02, 1.0)),
        delegates=chance.random() < 0.75,
        streaming_share=sometimes(0.4, 0.2, 0.7),
        blocking_share=sometimes(0.4, 0.5, 1.0),
        # Separate generators, so that seeds that have failed before still draw the same options.
        choosing_share=Random(f"select {seed}").choice((0.0, 0.0, 0.0, 0.3, 0.8)),
        within_share=Random(f"within {seed}").choice((0.0, 0.0, 0.0, 0.3, 0.8)),
        hungry_share=Random(f"hungry {seed}").choice((0.0, 0.0, 0.3, 0.9)),
        disk_share=Random(f"disks {seed}").choice((0.0, 0.0, 0.3, 0.9)),
        disk_at_a_time=Random(f"at a time {seed}").choice((1, 1, 2)),
        resource_share=Random(f"resources {seed}").choice((0.0, 0.0, 0.3, 0.9)),
        memory_per_worker=Random(f"memory {seed}").choice((0, MEMORY, MEMORY)),
        policy_share=Random(f"policy {seed}").choice((0.0, 0.0, 0.5)),
        late_failure_share=Random(f"late {seed}").choice((0.0, 0.0, 1.0)),
        bundle_share=Random(f"bundles {seed}").choice((0.0, 0.0, 0.0, 0.2, 0.6)),
        blackout_interval_s=Random(f"blackouts {seed}").choice((0.0, 0.0, 0.0, 2.0, 5.0)),
        steps_per_tick=Random(f"steps {seed}").choice((1000, 1000, 1, 7)),
        ticks_per_check=chance.choice(
            (1, 8)
        ),  # faults stay visible, and fewer checks allow more seeds
    )
