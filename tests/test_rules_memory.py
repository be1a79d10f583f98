"""Rules A5-A7: blocks a request holds, the gate at admission, the reserve."""

from __future__ import annotations

import pytest
from serving import Serve, ask

from policies import Chunked


def test_blocks_come_chunk_by_chunk(serve: Serve) -> None:
    """A5: 4 tokens a step in blocks of 3: ceil(4/3), ceil(8/3), ceil(10/3) blocks of the 9."""
    run = serve(ask(10, 1), kv_tokens=27, block_size=3, policy=Chunked(token_budget=4))
    assert [9 - free for free in run.steps("free_blocks")] == [2, 3, 4]


def test_a_token_takes_its_slot_when_it_is_fed(serve: Serve) -> None:
    """A5: 4 + 1 tokens sampled, but the second block is taken in the step that feeds the fifth."""
    run = serve(ask(4, 3), kv_tokens=40, block_size=4)
    assert [10 - free for free in run.steps("free_blocks")] == [1, 2, 2]


@pytest.mark.parametrize(
    ("prompt", "output", "block_size", "blocks"),
    [(1, 1, 16, 1), (16, 1, 16, 1), (16, 2, 16, 2), (10, 23, 16, 2), (10, 24, 16, 3), (5, 5, 1, 9)],
)
def test_the_peak_is_all_but_the_last_token(serve, prompt, output, block_size, blocks):
    """A5: ceil((P + O - 1) / B) blocks, P + O - 1 tokens computed, O steps."""
    run = serve(ask(prompt, output), block_size=block_size)
    assert run.column("blocks_peak") == [blocks]
    assert run.column("computed") == [prompt + output - 1]
    assert run.finished == [output]


def test_the_gate_wants_room_for_all_known_tokens(serve: Serve) -> None:
    """A6: at second 3 request 0 takes its seventh of 10 blocks, and 3 tokens of budget are left.
    A chunk of 3 would fit into the 3 blocks; the whole prompt needs 5."""
    asks, policy = (ask(12, 2), ask(10, 1, at=3)), Chunked(token_budget=4)
    with_gate = serve(*asks, kv_tokens=20, block_size=2, policy=policy)
    without = serve(*asks, kv_tokens=20, block_size=2, policy=policy, gate=False)
    assert with_gate.scheduled == [0, 4]
    assert without.scheduled == [0, 3]


def test_the_gate_reserves_nothing_for_later(serve: Serve) -> None:
    """A6: each of the two prompts of 6 fits into 7 blocks of 2, so both enter; both grow, and
    one has to go."""
    run = serve(ask(6, 6), ask(6, 6), kv_tokens=14, block_size=2)
    assert run.scheduled == [0, 0]
    assert run.column("preemptions") == [0, 1]


def test_the_reserve_is_kept_at_admission_only(serve: Serve) -> None:
    """A7: int(0.25 · 10) = 2 blocks. Requests 0 and 1 take 2 + 4; 3 more would leave 1, so the
    third waits. The two that run grow into the reserve all the same, to 4 + 6 blocks."""
    run = serve(
        ask(4, 4), ask(8, 4), ask(6, 1), kv_tokens=20, block_size=2, reserve=0.25
    )  # fmt: skip
    assert run.scheduled == [0, 0, 4]
    assert run.column("wait_reserve")[2] == 1 * 10**12
    assert run.column("wait_blocks")[2] == 3 * 10**12
    assert run.steps("free_blocks")[:4] == [4, 2, 2, 0]
    assert run.column("preemptions") == [0, 0, 0]


def test_the_reserve_never_blocks_an_empty_engine(serve: Serve) -> None:
    """A7: the prompt alone takes 9 of 10 blocks, the reserve is 9."""
    run = serve(ask(18, 2), ask(2, 1), kv_tokens=20, block_size=2, reserve=0.9)
    assert run.scheduled == [0, 2]
    assert run.served == 2


@pytest.mark.parametrize("reserve", [1.0, 1.5, -0.1])
def test_a_reserve_of_everything_is_refused(reserve):
    """A7."""
    from simulator.scenario import Scenario, ScenarioError

    with pytest.raises(ScenarioError, match=r"engine\.reserve"):
        Scenario().with_values({"engine.reserve": reserve})
