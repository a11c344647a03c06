"""Executors: each translates tasks into programs, and the ends of programs into outcomes.

All are pure.
"""
