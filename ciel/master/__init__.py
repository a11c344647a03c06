"""The master: holds the task graph and the object table, and places tasks. It stores no objects."""
