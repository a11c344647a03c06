"""Test suites that stores and executors inherit, builders of jobs and tasks, and a simulator."""
