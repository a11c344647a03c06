"""Jobs over a connection: add tasks, want objects, read results, forward the output of tasks."""

from ciel.client.jobs.job import LOSS_NOTICE_S, Job, archive_of

__all__ = ["LOSS_NOTICE_S", "Job", "archive_of"]
