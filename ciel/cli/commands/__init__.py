"""One module for each command. `main` imports only the module of the command that runs."""
