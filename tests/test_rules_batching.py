"""Rules A1-A4, A8, A15: who gets tokens in a step, in which order, and when they are done."""

from __future__ import annotations

import pytest
from serving import Serve, ask

from policies import Chunked, Continuous, FastLane
from simulator.scenario import Scenario, ScenarioError


def test_running_come_before_waiting(serve: Serve) -> None:
    """A1, A2: the chunk in progress goes on before the newcomer gets what is left."""
    run = serve(ask(20, 3), ask(10, 2, at=1), policy=Chunked(token_budget=16))
    assert run.fed == [{0: 16}, {0: 4, 1: 10}, {0: 1, 1: 1}, {0: 1}]


def test_an_early_long_prefill_takes_budget_before_a_later_decode(serve: Serve) -> None:
    """A1: one list in admission order. Request 1 decodes while 0 is still being prefilled, and
    gets its token only when 0 leaves some."""
    policy = Chunked(token_budget=8, long_prefill=6)
    run = serve(ask(20, 1), ask(2, 3), policy=policy)
    assert run.fed == [{0: 6, 1: 2}, {0: 6, 1: 1}, {0: 6, 1: 1}, {0: 2}]
    greedy = serve(ask(20, 1), ask(2, 3, at=0), policy=Chunked(token_budget=8))
    assert greedy.fed[:3] == [{0: 8}, {0: 8}, {0: 4, 1: 2}]


def test_zero_tokens_are_a_skip_and_no_barrier(serve: Serve) -> None:
    """A1: in step 2 the fast lane feeds decodes first: request 0, a prompt, stands in front of
    request 1 and gets nothing then, but bars nobody."""
    policy = FastLane(token_budget=4, share=0.5, fast_prompt=2)
    run = serve(ask(8, 1), ask(2, 4, at=1), policy=policy)
    assert run.fed == [{0: 4}, {0: 2, 1: 2}, {0: 2, 1: 1}, {1: 1}, {1: 1}]


def test_a_resumed_request_goes_to_the_end(serve: Serve) -> None:
    """A1: blocks of one token, 17 of them. In step 2 they run out, request 0 is evicted, and
    with request 2 gone it comes back behind request 1."""
    run = serve(
        ask(3, 6), ask(2, 8), ask(8, 3),
        kv_tokens=17, block_size=1, policy=Chunked(victim="longest-running"),
    )  # fmt: skip
    assert [list(fed.items()) for fed in run.fed] == [
        [(0, 3), (1, 2), (2, 8)],
        [(0, 1), (1, 1), (2, 1)],
        [(1, 1), (2, 1)],
        [(1, 1), (0, 5)],
        *[[(1, 1), (0, 1)]] * 3,
        [(1, 1)],
    ]


def test_the_first_that_does_not_fit_ends_the_loop(serve: Serve) -> None:
    """A2: 6 blocks; the head needs 5 of the 4 that are free, the small one behind it none more."""
    run = serve(
        ask(4, 4), ask(10, 1, at=1), ask(2, 1, at=1), kv_tokens=12, block_size=2,
    )  # fmt: skip
    assert run.fed == [{0: 4}, {0: 1}, {0: 1}, {0: 1}, {1: 10, 2: 2}]
    assert run.column("wait_blocks") == [0, 3 * 10**12, 0]
    assert run.column("wait_behind") == [0, 0, 3 * 10**12]


def test_seats_are_a_limit(serve: Serve) -> None:
    """A2: two seats; the third is scheduled when the first has left."""
    run = serve(ask(4, 2), ask(4, 4), ask(4, 1), max_running=2)
    assert run.scheduled == [0, 0, 2]
    assert run.column("wait_seats") == [0, 0, 2 * 10**12]


def test_the_long_prefill_threshold_caps_running_and_waiting_alike(serve: Serve) -> None:
    """A3: chunks of 3, the first and the later ones."""
    run = serve(ask(9, 1), ask(8, 1), policy=Chunked(token_budget=16, long_prefill=3))
    assert run.fed == [{0: 3, 1: 3}, {0: 3, 1: 3}, {0: 3, 1: 2}]


def test_the_threshold_is_off_for_one_alone(serve: Serve) -> None:
    """A3: counted at the start of the schedule, so the arrival at second 1 counts at once."""
    run = serve(ask(20, 1), ask(5, 1, at=1), policy=Chunked(token_budget=8, long_prefill=3))
    assert run.fed == [{0: 8}, {0: 3, 1: 3}, {0: 3, 1: 2}, {0: 6}]


def test_the_adaptive_threshold_is_an_equal_share_where_that_is_more(serve: Serve) -> None:
    """A3: 12 // 2 = 6 for each of two; 12 // 3 = 4 for each of three."""
    policy = Chunked(token_budget=12, long_prefill=2, adaptive=True)
    assert serve(ask(9, 1), ask(9, 1), policy=policy).fed == [{0: 6, 1: 6}, {0: 3, 1: 3}]
    three = serve(ask(6, 1), ask(6, 1), ask(6, 1), policy=policy)
    assert three.fed == [{0: 4, 1: 4, 2: 4}, {0: 2, 1: 2, 2: 2}]


def test_without_chunks_a_prompt_longer_than_what_is_left_ends_the_loop(serve: Serve) -> None:
    """A4: 16 - 10 = 6 tokens are left, 8 do not fit; the 2 behind them wait too."""
    run = serve(ask(10, 2), ask(8, 1), ask(2, 1), policy=Chunked(token_budget=16, chunks=False))
    assert run.fed == [{0: 10}, {0: 1, 1: 8, 2: 2}]
    assert run.column("wait_tokens") == [0, 10**12, 0]


TRACE = {"trace.arrivals": "constant", "trace.rate": 1.0, "trace.requests": 3, "trace.output": 5}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy.token_budget": 8, "engine.max_running": 9, "trace.prompt": 4},
         "token_budget = 8: smaller than engine.max_running = 9"),
        ({"policy.chunks": False, "policy.token_budget": 512, "trace.prompt": 513},
         "token_budget = 512: smaller than the longest prompt .513 tokens"),
        ({"policy.kind": "continuous", "policy.token_budget": 512, "trace.prompt": 513},
         "token_budget = 512: smaller than the longest prompt .513 tokens"),
        ({"engine.kv_tokens": 1600, "engine.max_model_len": 1601, "trace.prompt": 4},
         "max_model_len = 1601: larger than the pool"),
    ],
)  # fmt: skip
def test_settings_that_can_never_work_are_refused_before_the_run(changes, said):
    """A4."""
    with pytest.raises(ScenarioError, match=said):
        Scenario().with_values(TRACE | changes).build()


def test_a_pool_smaller_than_the_model_only_lowers_the_limit(serve: Serve) -> None:
    """A4: max_model_len is the least of the model's limit (131,072) and the pool (20 tokens).

    The request says at the door that it may need more than there is, and is turned away.
    """
    run = serve(ask(8, 8), ask(8, 50), kv_tokens=20, block_size=4)
    assert run.reasons[0] == "stop"
    assert run.reasons[1].startswith("rejected")


def test_blocks_of_a_finished_request_are_free_before_the_next_schedule(serve: Serve) -> None:
    """A8: 5 blocks, all taken in step 1 that ends request 0; request 1 needs 4 in step 2."""
    run = serve(ask(8, 2), ask(8, 2), kv_tokens=10, block_size=2)
    assert run.fed == [{0: 8}, {0: 1}, {1: 8}, {1: 1}]
    assert run.steps("free_blocks") == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [({}, 10, "stop"), ({"output_cap": 4}, 4, "length"), ({"max_model_len": 12}, 6, "length")],
)
def test_every_end_has_its_reason(serve, limits, tokens, reason):
    """A15: its own end, the cap on outputs, or known tokens = max_model_len."""
    run = serve(ask(6, 10), **limits)
    assert (run.column("produced"), run.reasons) == ([tokens], [reason])
    assert run.finished == [tokens]


def test_a_declared_maximum_below_the_output_cuts_it(serve: Serve) -> None:
    """A15: the client asked for 3 tokens at most."""
    run = serve(ask(6, 10, declares=3))
    assert (run.column("produced"), run.reasons) == ([3], ["length"])


def test_an_arrival_at_the_end_of_a_step_is_seen_by_the_next(serve: Serve) -> None:
    """At one instant clients come before replicas; in mid-step one waits for its end."""
    run = serve(ask(4, 3), ask(4, 1, at=1.0), ask(4, 1, at=1.25))
    assert run.scheduled == [0, 1, 2]
    assert run.column("wait_boundary") == [0, 0, 75 * 10**10]


def test_a_prefill_step_of_the_prefill_first_policy_does_not_decode(serve: Serve) -> None:
    """C5 in small: request 0 stands still while 1 is prefilled."""
    run = serve(ask(4, 3), ask(6, 2, at=1), policy=Continuous(token_budget=8))
    assert run.fed == [{0: 4}, {1: 6}, {0: 1, 1: 1}, {0: 1}]
