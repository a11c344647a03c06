"""Runs the jobs of Snakemake as tasks of a ciel cluster: `snakemake --executor ciel`.

Snakemake finds the plug-in by the name of this package. `common_settings`, `ExecutorSettings` and
`Executor` are names of its interface for executors.
"""

from snakemake_executor_plugin_ciel.executor import Executor
from snakemake_executor_plugin_ciel.settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
