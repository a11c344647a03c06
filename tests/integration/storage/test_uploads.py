"""Tests how long workers keep what a client uploads for a job that is still open."""

import pytest

from ciel.client import Client, LocalCluster
from ciel.client.errors import ObjectUnreadableError
from ciel.testing.homes import wait_for

CONTENT = b"x" * 100_000


def test_a_job_can_free_an_upload_before_it_ends() -> None:
    with LocalCluster(workers=1) as cluster, Client(cluster) as client, client.job("up") as job:
        used, unused = (client.upload_content(CONTENT, name) for name in ("used", "unused"))
        size = job.run(["wc", "-c"], inputs=[used])
        assert job.read(size, timeout_s=30) == b"100000\n"
        job.release(unused)  # a later task may still read it
        assert client.read(unused) == CONTENT
        job.release(unused, for_good=True)
        with pytest.raises(ObjectUnreadableError):
            wait_for(lambda: client.read(unused) != CONTENT, "the end of the upload")
        assert client.read(used) == CONTENT
