"""Where a worker keeps its files."""

from ciel.testing.homes import HandCluster, Home


def test_a_spool_may_be_named_from_where_the_worker_is_started(
    home: Home, hand_cluster: HandCluster
) -> None:
    for worker in hand_cluster.workers:
        worker.terminate()
        worker.communicate(timeout=20)
    hand_cluster.start_worker("--spool", "my-spool")
    done = home.run("ciel", "submit", "--", "sh", "-c", "echo found; head -c 5000 /dev/zero")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("found\n")
    assert (home.path / "my-spool" / "store").is_dir()
