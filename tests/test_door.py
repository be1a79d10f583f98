"""Limits at the door, timeouts and retries (C11); every step takes one second."""

from __future__ import annotations

import pytest
from serving import Serve, ask

from policies import Chunked
from simulator.clients import RetrySettings
from simulator.door import DoorSettings, Pace
from simulator.scenario import Scenario
from traces.trace import PS_PER_S

AT_ONCE = [ask(10, 2)] * 3
"""Each takes two steps: one for the prompt and the first token, one for the second."""


def held(run) -> list[float]:
    return run.seconds("wait_door")


class TestRoom:
    def test_beyond_the_limit_requests_wait_outside_in_order(self, serve: Serve):
        run = serve(*AT_ONCE, door=DoorSettings(max_in_flight=1))
        assert run.scheduled == run.queued == held(run) == [0, 2, 4]
        assert run.reasons == ["stop"] * 3

    def test_or_are_turned_away(self, serve: Serve):
        run = serve(*AT_ONCE, door=DoorSettings(max_in_flight=1, when_full="reject"))
        assert run.reasons == ["stop"] + ["rejected: too many in flight"] * 2
        assert run.finished == [2, 0, 0]
        assert run.column("replica") == [0, -1, -1]

    def test_a_step_that_ends_makes_room_for_who_comes_at_that_instant(self, serve: Serve):
        door = DoorSettings(max_in_flight=1, when_full="reject")
        assert serve(ask(10, 2), ask(10, 1, at=2), door=door).served == 2
        assert serve(ask(10, 2), ask(10, 1, at=1.5), door=door).served == 1

    def test_nobody_passes_those_who_are_held(self, serve: Serve):
        run = serve(*AT_ONCE, ask(10, 1, at=2), door=DoorSettings(max_in_flight=1))
        assert run.scheduled == [0, 2, 4, 6]

    def test_a_follow_up_is_sent_when_its_forerunner_was_turned_away(self, serve: Serve):
        run = serve(
            ask(10, 4), ask(10, 1), ask(10, 1, at=3, after=1),
            door=DoorSettings(max_in_flight=1, when_full="reject"),
        )  # fmt: skip
        assert run.arrived == [0, 0, 3]
        assert run.reasons[2].startswith("rejected")

    def test_what_can_never_run_is_refused_first(self, serve: Serve):
        door = DoorSettings(max_in_flight=1)
        run = serve(ask(10, 2), ask(5000, 2), door=door, kv_tokens=160)
        assert run.reasons[1] == "rejected: prompt reaches max_model_len" or run.finished[1] == 0

    def test_held_at_the_horizon_is_unfinished(self, serve: Serve):
        run = serve(*AT_ONCE, door=DoorSettings(max_in_flight=1), horizon=3.5)
        assert run.reasons == ["stop", "", ""]
        assert run.column("replica") == [0, 0, -1]


class TestRate:
    def test_a_token_every_two_seconds(self, serve: Serve):
        run = serve(*[ask(10, 1)] * 4, door=DoorSettings(max_rate=0.5))
        assert run.scheduled == held(run) == [0, 2, 4, 6]

    def test_a_burst_passes_at_once_and_no_larger_one_after_quiet(self, serve: Serve):
        later = [ask(10, 1, at=100)] * 3
        run = serve(*[ask(10, 1)] * 3, *later, door=DoorSettings(max_rate=0.5, burst=2))
        assert run.scheduled == [0, 0, 2, 100, 100, 102]

    def test_or_the_rest_is_turned_away(self, serve: Serve):
        door = DoorSettings(max_rate=0.5, when_fast="reject")
        run = serve(*[ask(10, 1, at=at) for at in (0, 1, 2, 3)], door=door)
        assert run.reasons == ["stop", "rejected: rate limit"] * 2

    def test_held_for_the_rate_then_turned_away_for_room(self, serve: Serve):
        door = DoorSettings(max_rate=1, max_in_flight=1, when_full="reject")
        run = serve(ask(10, 5), ask(10, 1), door=door)
        assert run.reasons[1] == "rejected: too many in flight"
        assert run.finished == [5, 1]

    def test_the_bucket_counts_in_whole_picoseconds(self):
        pace = Pace(rate=3, burst=2)
        assert [pace.take(0), pace.take(0), pace.take(0)] == [True, True, False]
        assert pace.next == round(PS_PER_S / 3)
        assert not pace.take(pace.next - 1)
        assert pace.take(pace.next)


class TestTimeout:
    def test_who_is_not_scheduled_in_time_leaves(self, serve: Serve):
        run = serve(
            ask(10, 5), ask(10, 1), ask(10, 1, at=2.5),
            max_running=1, door=DoorSettings(timeout=3),
        )  # fmt: skip
        assert run.reasons == ["stop", "timeout", "stop"]
        assert run.finished == [5, 3, 6]
        assert run.column("replica") == [0, 0, 0]

    def test_at_the_very_instant_it_leaves_before_anybody_is_scheduled(self, serve: Serve):
        asks = ask(10, 5), ask(10, 1, at=2)
        assert serve(*asks, max_running=1, door=DoorSettings(timeout=3)).reasons[1] == "timeout"
        assert serve(*asks, max_running=1, door=DoorSettings(timeout=3.001)).served == 2

    @pytest.mark.parametrize(("timeout", "free_at"), [(3, 3), (2.5, 3), (3.5, 4)])
    def test_a_head_that_leaves_lets_others_in_with_the_next_step(
        self, serve: Serve, timeout: float, free_at: float
    ):
        """Eight blocks do not fit beside the first; the small one behind would."""
        run = serve(
            ask(64, 30), ask(128, 1), ask(16, 1, at=1),
            kv_tokens=160, door=DoorSettings(timeout=timeout),
        )  # fmt: skip
        assert run.reasons == ["stop", "timeout", "stop"]
        assert run.scheduled == [0, -1, free_at]
        assert run.seconds("wait_behind")[2] == free_at - 1

    def test_a_preempted_request_does_not_time_out(self, serve: Serve):
        run = serve(
            ask(40, 60), ask(40, 60), kv_tokens=128, gate=False, door=DoorSettings(timeout=1)
        )
        assert sum(run.column("preemptions")) > 0
        assert run.served == 2

    def test_those_who_left_are_no_longer_counted_as_waiting(self, serve: Serve):
        run = serve(ask(10, 6), *[ask(10, 1)] * 3, max_running=1, door=DoorSettings(timeout=3))
        assert run.steps("waiting") == [3, 3, 3, 0, 0, 0]

    def test_those_held_outside_leave_too(self, serve: Serve):
        run = serve(*AT_ONCE, door=DoorSettings(max_in_flight=1, timeout=3))
        assert run.reasons == ["stop", "stop", "timeout"]
        assert run.finished[2] == 3
        slow = serve(*[ask(10, 1)] * 3, door=DoorSettings(max_rate=0.5, timeout=3))
        assert slow.reasons == ["stop", "stop", "timeout"]


class TestRetries:
    DOOR = DoorSettings(max_in_flight=1, when_full="reject")

    def test_pauses_double_and_latency_counts_from_the_first_send(self, serve: Serve):
        retry = RetrySettings(count=2, backoff=2, jitter=0)
        run = serve(ask(10, 4), ask(10, 1, at=1), door=self.DOOR, retry=retry)
        assert run.column("retries") == [0, 2]
        assert run.arrived == [0, 1]
        assert run.scheduled == [0, 1 + 2 + 4]
        assert run.queued == held(run) == [0, 6]

    def test_after_the_last_one_the_client_gives_up(self, serve: Serve):
        retry = RetrySettings(count=1, backoff=2, jitter=0)
        run = serve(ask(10, 4), ask(10, 1, at=1), door=self.DOOR, retry=retry)
        assert run.reasons[1] == "rejected: too many in flight"
        assert run.column("retries") == [0, 1]
        assert run.finished[1] == 3

    def test_after_a_timeout_too(self, serve: Serve):
        run = serve(
            ask(10, 8), ask(10, 1), max_running=1,
            door=DoorSettings(timeout=3), retry=RetrySettings(count=1, backoff=4, jitter=0),
        )  # fmt: skip
        assert run.scheduled == [0, 8]  # left at 3, came again at 7
        assert run.seconds("wait_door")[1] == 7
        assert run.seconds("wait_seats")[1] == 1

    def test_what_can_never_run_is_not_tried_again(self, serve: Serve):
        run = serve(ask(10, 2), ask(500, 2), door=self.DOOR, retry=RetrySettings(count=3),
                    kv_tokens=160)  # fmt: skip
        assert run.column("retries") == [0, 0]

    def test_jitter_spreads_the_pauses_by_the_seed(self, serve: Serve):
        asks = [ask(10, 40), *[ask(10, 1, at=0.5)] * 20]
        retry = RetrySettings(count=1, backoff=10, jitter=0.5)

        def pauses(seed: int) -> list[float]:
            run = serve(*asks, door=self.DOOR, retry=retry, seed=seed)
            return [at - 0.5 for at in run.finished[1:]]

        assert all(5 <= pause <= 15 for pause in pauses(0))
        assert len(set(pauses(0))) == 20
        assert pauses(0) == pauses(0) != pauses(1)

    def test_waiting_to_try_at_the_horizon_is_unfinished(self, serve: Serve):
        retry = RetrySettings(count=1, backoff=60)
        run = serve(ask(10, 4), ask(10, 1), door=self.DOOR, retry=retry, horizon=10)
        assert run.reasons == ["stop", ""]
        assert run.column("retries") == [0, 1]


def test_a_hog_is_evicted_first(serve: Serve):
    """Fourteen blocks of sixteen are the first one's when somebody starves; it came first, but
    holds more than half."""
    asks = ask(200, 40), ask(20, 20)
    usual = serve(*asks, kv_tokens=256, policy=Chunked())
    demoted = serve(*asks, kv_tokens=256, policy=Chunked(demote=0.5))
    assert usual.column("preemptions") == [0, 1]
    assert demoted.column("preemptions") == [1, 0]
    assert demoted.finished[1] < usual.finished[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("door.burst=3",), "door.burst = 3 has no effect without door.max_rate: expected both"),
        (('door.when_full="reject"',), "without door.max_in_flight"),
        (("retry.count=2",), "retry.count = 2 has no effect: nobody is turned away without"),
        (("door.divert=5",), "door.divert = 5 contradicts fleet.replicas = 1"),
        (("door.max_in_flight=0",), "door.max_in_flight = 0: expected"),
        (("door.timeot=3",), "did you mean 'timeout'"),
    ],
)
def test_settings_without_effect_are_refused_with_both_named(settings, said: str):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        Scenario().with_set(*settings)


def test_a_door_too_narrow_for_a_batch_is_refused():
    narrow = Scenario().with_set('policy.kind="static"', "door.max_in_flight=4")
    with pytest.raises(ValueError, match=r"max_in_flight = 4 per fleet contradicts policy.batch"):
        narrow.build()
