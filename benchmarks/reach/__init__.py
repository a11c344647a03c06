"""Measurements of what connects ciel with other machines and tools."""
