"""Options, reports and the autoscaler of launchers of workers."""
