"""The executor: Snakemake's jobs are tasks of one job of ciel, over one connection."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from ciel import Client
from ciel.client.errors import ClientError, WaitTimeoutError
from ciel.client.jobs.caller_context import caller_context
from ciel.core.refs import Failure, Reference
from snakemake_executor_plugin_ciel.commands import direct_command, logged, needs_of, variables

LOGS = ".snakemake/ciel_logs"
NEWS_S = 0.5
"""How long the executor waits for an ended task before it looks whether Snakemake ends."""
CANCEL_S = 60.0
"""How long the programs of cancelled tasks may take to end."""
_SHARED = (
    SharedFSUsage.INPUT_OUTPUT, SharedFSUsage.PERSISTENCE, SharedFSUsage.SOURCES,
    SharedFSUsage.STORAGE_LOCAL_COPIES,
)  # fmt: skip


class Executor(RemoteExecutor):
    """Runs jobs as tasks. The master reports each ended task, so nothing is polled."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # The base class starts the thread that checks jobs before it calls `__post_init__`.
        self._is_open = threading.Event()
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        storage, remote = self.workflow.storage_settings, self.workflow.remote_execution_settings
        if missing := [each for each in _SHARED if each not in storage.shared_fs_usage]:
            names = " ".join(each.item_to_choice() for each in missing)
            raise WorkflowError(
                "the executor ciel needs a file system that all workers share; add to "
                f"--shared-fs-usage: {names}"
            )
        if remote.immediate_submit:
            raise WorkflowError(
                "the executor ciel does not support --immediate-submit, since its tasks end with "
                "Snakemake; leave the option out"
            )
        settings = self.workflow.executor_settings
        self._resources = [name for name in settings.resources.split(",") if name]
        self._whole_jobs = settings.whole_jobs
        self._ended: deque[Reference] = deque()
        self._results: dict[str, Reference] = {}
        self._logs = os.path.abspath(LOGS)
        self.next_seconds_between_status_checks = 0
        try:
            self._client = Client(settings.master, name="snakemake")
            self._job = self._client.job("snakemake", context=caller_context())
        except ClientError as error:
            raise WorkflowError(str(error)) from error
        self._is_open.set()

    # --- starting jobs ----------------------------------------------------------------------------

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit all jobs that are ready in one message."""
        outputs = []
        for job in jobs:
            self.run_job_pre(job)
            outputs.append(self._add(job))
        try:
            self._job.want(outputs, self._ended)
        except ClientError as error:
            raise WorkflowError(str(error)) from error

    def run_job(self, job: Any) -> None:
        self._job.want(self._add(job), self._ended)

    def _add(self, job: Any) -> Reference:
        log = self._log_of(job)
        deployment = self.workflow.deployment_settings.deployment_method
        command = None if self._whole_jobs else direct_command(job, deployment)
        needs = needs_of(job, self._resources, is_direct=command is not None)
        env = None
        if command is None:
            command = self.format_job_exec(job)
        else:
            self.workflow.async_run(job.prepare())
            env = variables(job)
        output = self._job.run(logged(command, log), needs=needs, env=env, name=job.name)
        aux = {"output": output, "log": log}
        task = output.id.removesuffix(":out:0")
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=task, aux=aux))
        return output

    def _log_of(self, job: Any) -> str:
        directory = os.path.join(self._logs, job.name)
        os.makedirs(directory, exist_ok=True)
        return os.path.join(directory, f"{job.jobid}-{job.attempt}.log")

    # --- ended jobs -------------------------------------------------------------------------------

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncIterator[SubmittedJobInfo]:
        """Wait for news of the master, and report the jobs that have ended."""
        if not await asyncio.to_thread(self._is_open.wait, NEWS_S):
            return
        if not self._results:
            await asyncio.to_thread(self._await_news)
        while self._ended:
            result = self._ended.popleft()
            self._results[result.id] = result
        for info in active_jobs:
            result = self._results.pop(info.aux["output"].id, None)
            if result is None:
                yield info
            else:
                self._report(info, result)

    def _await_news(self) -> None:
        with suppress(WaitTimeoutError):
            self._job.wait_until(lambda: bool(self._ended), NEWS_S, "a task")

    def _report(self, info: SubmittedJobInfo, result: Reference) -> None:
        output, log = info.aux["output"], info.aux["log"]
        if isinstance(result, Failure):
            text = f"The task failed ({result.reason}): {result.text}\n"
            self.report_job_error(info, msg=text, aux_logs=[log])
        else:
            with suppress(OSError):
                os.unlink(log)
            self.report_job_success(info)
        self._job.release(output, for_good=True)

    # --- the end ----------------------------------------------------------------------------------

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all tasks, and wait until their programs have ended."""
        with suppress(ClientError):
            self._job.cancel("cancelled by Snakemake")
            self._job.wait(CANCEL_S)

    def shutdown(self) -> None:
        super().shutdown()
        with suppress(ClientError):
            self._job.close()
        self._client.close()
