from orderlymq_spark.times import parse_duration_ms, parse_timestamp_ms


def test_a_time_in_iso_is_that_millisecond() -> None:
    """Computed as a float, a quarter of the milliseconds of 2038 were one too low."""
    second = 2_147_483_648_000

    found = [parse_timestamp_ms(f"2038-01-19T03:14:08.{ms:03}Z") for ms in range(1000)]

    assert found == [second + ms for ms in range(1000)]
    assert parse_timestamp_ms("2038-01-19T03:14:08.001") == second + 1
    assert parse_timestamp_ms("2038-01-19T04:14:08.001+01:00") == second + 1


def test_durations() -> None:
    assert [parse_duration_ms(each) for each in ("500ms", "15s", "1.5m", "2h")] == [
        *(500, 15_000, 90_000, 7_200_000)
    ]
