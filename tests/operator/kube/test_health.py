from orderlymq_operator.kube.health import Health


def test_an_api_server_that_is_away_is_no_reason_to_restart() -> None:
    """Law: an operator that cannot reach the API server for an hour is alive but not ready; it must not be restarted."""
    now = [0.0]
    health = Health(60, lambda: now[0])

    for _ in range(120):
        health.begin()
        health.problem = "cannot read the API server"
        now[0] += 30
        assert health.alive()[0]


def test_a_process_that_hangs_is_not_alive() -> None:
    """Law: a process that hangs, and does not even try, is not alive."""
    now = [0.0]
    health = Health(60, lambda: now[0])
    health.begin()

    now[0] += 239
    assert health.alive()[0]
    now[0] += 2
    assert not health.alive()[0]
