"""For our tests and other people's backends: suites to inherit, builders, a seeded driver."""
