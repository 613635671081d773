"""Whether and when a failed job starts again."""

import pytest

from penstock.core.restarts import ExponentialDelay, FailureRate, FixedDelay, GiveUp, NoRestart, RestartAfter


def test_without_restarts_the_first_failure_ends_the_job():
    assert isinstance(NoRestart().strategy().on_failure(0.0), GiveUp)


def test_a_fixed_delay_gives_up_when_its_attempts_are_used_up_even_with_progress_in_between():
    strategy = FixedDelay(attempts=2, delay=3.0).strategy()
    assert strategy.on_failure(0.0) == RestartAfter(3.0)
    strategy.on_progress(5.0)
    assert strategy.on_failure(1000.0) == RestartAfter(3.0)
    assert strategy.on_failure(2000.0) == GiveUp("all 2 restarts are used up")


def test_exponential_restarts_at_once_then_waits_longer_and_longer_up_to_the_maximum():
    strategy = ExponentialDelay(initial=1.0, maximum=5.0, multiplier=2.0, attempts=6).strategy()
    delays = [strategy.on_failure(float(now)) for now in range(6)]
    assert delays == [RestartAfter(seconds) for seconds in (0.0, 1.0, 2.0, 4.0, 5.0, 5.0)]


def test_exponential_gives_up_when_restarts_bring_no_progress():
    strategy = ExponentialDelay(attempts=3).strategy()
    answers = [strategy.on_failure(float(now)) for now in range(4)]
    assert isinstance(answers[3], GiveUp) and "3 restarts" in answers[3].reason


def test_exponential_starts_afresh_after_a_completed_checkpoint():
    strategy = ExponentialDelay(attempts=2).strategy()
    for now in range(100):
        assert strategy.on_failure(float(now)) == RestartAfter(0.0)
        strategy.on_progress(now + 0.5)


def test_exponential_starts_afresh_after_running_stably_not_counting_the_delay_itself():
    strategy = ExponentialDelay(initial=10.0, reset_after=60.0).strategy()
    strategy.on_failure(0.0)
    assert strategy.on_failure(1.0) == RestartAfter(10.0)
    assert strategy.on_failure(1.0 + 69.9) == RestartAfter(20.0), "it had run for less than 60 s"
    assert strategy.on_failure(70.9 + 80.0) == RestartAfter(0.0)


def test_a_very_long_row_of_failures_does_not_overflow():
    strategy = ExponentialDelay(attempts=10_000, maximum=60.0).strategy()
    answers = [strategy.on_failure(0.0) for _ in range(5_000)]
    assert answers[-1] == RestartAfter(60.0)


def test_a_failure_rate_allows_so_many_within_the_window_and_forgets_older_ones():
    strategy = FailureRate(failures=2, per=60.0, delay=1.0).strategy()
    assert strategy.on_failure(0.0) == strategy.on_failure(30.0) == RestartAfter(1.0)
    assert strategy.on_failure(60.0) == RestartAfter(1.0), "the first one is out of the window"
    assert isinstance(strategy.on_failure(61.0), GiveUp)


@pytest.mark.parametrize("settings", [NoRestart(), FixedDelay(), ExponentialDelay(), FailureRate()])
def test_two_jobs_with_the_same_settings_do_not_share_their_count(settings):
    first, second = settings.strategy(), settings.strategy()
    for now in range(20):
        first.on_failure(float(now))
    fresh = settings.strategy().on_failure(0.0)
    assert second.on_failure(0.0) == fresh
