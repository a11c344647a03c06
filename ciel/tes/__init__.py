"""The Task Execution Service of GA4GH, version 1.1, on the master: `/ga4gh/tes/v1`.

A task of TES is a job with one task of the executor `tes`, so that commands, the journal and limits
treat it like any other. `documents` reads and writes the documents of TES, `routes` serves them.
"""
