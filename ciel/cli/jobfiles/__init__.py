"""Job files: reads the tasks of a TOML file, checks them, and submits them as one job."""
