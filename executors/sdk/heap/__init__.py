"""Programs whose heap lies in a store: `ciel-cc`, its LLVM pass, and their run-time."""
