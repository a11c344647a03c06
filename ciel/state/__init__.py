"""Key-value bases: state that tasks and clients share, and may change (KVB-2).

`batches` defines the operations, as pure code. `interface` is the contract of every base, which
`ciel.testing.state` tests. `opening` finds a base by its URL, and `keyvalues` is the API for users.
"""
