"""Commands that write help for shells and for `man`, from the parsers of all commands."""
