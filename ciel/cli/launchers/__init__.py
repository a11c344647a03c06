"""What the commands share about launchers of workers."""
