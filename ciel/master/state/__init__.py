"""What the master decides: events and the time go in, messages for peers come out. Core only."""
