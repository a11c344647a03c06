"""What a worker decides: events and the time go in, orders for its service come out. Core only."""
