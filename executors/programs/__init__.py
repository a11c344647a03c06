"""Programs of ciel that executors run; each knows only the protocol of its worker."""
