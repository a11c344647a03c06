"""What an executor is given and what it gives back; the same for every executor and every store."""
