"""Views for people: progress, timelines, and explanations of what a task waits for."""
