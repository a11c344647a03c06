"""The options of the executor, and what Snakemake has to know about it.

Snakemake evaluates the types of the options: they have to be classes, or `Optional` of a class.
"""

from dataclasses import dataclass, field
from typing import Optional

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """The options `--ciel-…` of Snakemake."""

    master: Optional[str] = field(
        default=None,
        metadata={
            "help": "URL or HOST:PORT of the master. Without it, the executor finds a cluster as "
            "`ciel submit` does, or starts one on this host that ends with Snakemake."
        },
    )
    resources: str = field(
        default="gpu",
        metadata={
            "help": "Names of Snakemake's resources that tasks request from workers, separated by "
            "commas. Snakemake itself limits all other resources."
        },
    )
    whole_jobs: bool = field(
        default=False,
        metadata={
            "help": "Start a Snakemake for every job. Without it, the command of a plain shell "
            "rule runs directly, which starts a hundred times as fast."
        },
    )


# The environment and the working directory of Snakemake are part of each task.
common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)
