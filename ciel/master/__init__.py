"""The master: holds the graph and the object table, places tasks, carries no bytes."""
