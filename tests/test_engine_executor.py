"""The measured executor: each request speaks as if it were alone, whatever is done to it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from engines import BLOCK, MINI, alone, engine, request, step

from calibration.prompts import prompt_tokens
from calibration.sampling import Draw, Sampling, sample
from calibration.streams import Streams
from traces.trace import Segment

A, B, C = range(8), range(8, 16), range(16, 24)


def test_preempted_and_resumed_in_chunks_it_says_what_it_would_have_said():
    requests = [request(0, 40, 12), request(1, 20, 12)]
    ours = engine(requests)
    step(ours, (0, 0, 40, A), (1, 0, 20, B))
    for at in range(5):
        step(ours, (0, 40 + at, 1, A), (1, 20 + at, 1, B))
    ours.forget(0)
    step(ours, (0, 0, 17, C))
    assert len(ours.outputs(0)) == 6, "the middle of a resumed prefill samples nothing"
    step(ours, (1, 25, 1, B), (0, 17, 29, C))
    for at in range(46, 51):
        step(ours, (0, at, 1, C), (1, at - 20, 1, B))
    assert ours.outputs(0) == alone(requests)[0]
    assert ours.outputs(1) == alone(requests)[1]


def test_two_ways_of_sampling_in_one_batch_are_each_as_alone():
    ways = [
        Sampling(temperature=0.7, top_p=0.9, seed=1),
        Sampling(temperature=1.5, seed=2),
        Sampling(),
    ]
    requests = [request(i, 10 + i, 20) for i in range(3)]
    ours = engine(requests, sampling=ways.__getitem__)
    tables = A, B, C
    step(ours, *((i, 0, 10 + i, tables[i]) for i in range(3)))
    for at in range(19):
        step(ours, *((i, 10 + i + at, 1, tables[i]) for i in range(3)))
    assert {i: ours.outputs(i) for i in range(3)} == alone(requests, sampling=ways.__getitem__)


def test_the_seed_of_a_request_decides_what_it_draws():
    def said(seed: int) -> list[int]:
        return alone([request(0, 10, 20)], sampling=Sampling(temperature=1.0, seed=seed))[0]

    assert said(1) == said(1)
    assert said(1) != said(2)


def test_streams_are_in_order_and_the_earliest_finished_is_delivered_first():
    streams = Streams()
    requests = [request(0, 8, 6), request(1, 8, 2)]
    ours = engine(requests, listener=streams)
    step(ours, (0, 0, 8, A))
    step(ours, (0, 8, 1, A), (1, 0, 8, B))
    step(ours, (0, 9, 1, A), (1, 8, 1, B))
    for at in range(10, 13):
        step(ours, (0, at, 1, A))
    assert list(streams.read(0)) == ours.outputs(0)
    assert list(streams.read(1)) == ours.outputs(1)
    assert [streams.ended.get(), streams.ended.get()] == [(1, "length"), (0, "length")]


def test_an_end_of_sequence_stops_a_request_and_its_stream():
    free = alone([request(0, 12, 10)])[0]
    streams = Streams()
    eos = free[3]
    ours = engine([request(0, 12, 10)], sampling=Sampling(eos=eos), listener=streams)
    stopped = step(ours, (0, 0, 12, A))
    at = 12
    while not stopped:
        stopped = step(ours, (0, at, 1, A))
        at += 1
    assert stopped == [0]
    assert ours.outputs(0) == free[: free.index(eos) + 1]
    assert streams.ended.get() == (0, "stop")


def test_a_step_is_timed_and_logged():
    ours = engine([request(0, 12, 2)])
    step(ours, (0, 0, 12, A))
    ((_, duration, host),) = ours.log
    assert 0 < host < duration


def test_a_step_of_no_rows_takes_no_time():
    ours = engine([])
    assert ours.run((), list).duration == 0
    assert not ours.log


def test_a_row_beyond_the_known_tokens_is_refused():
    ours = engine([request(0, 12, 2)])
    with pytest.raises(ValueError, match="request 0: fed up to position 13, but it has 12 tokens"):
        step(ours, (0, 0, 13, A))


def test_equal_content_gives_equal_tokens_at_any_cut():
    whole = request(0, 40, 1, content=(Segment(5, 0, 32),))
    cut = request(1, 40, 1, content=(Segment(5, 0, 16), Segment(5, 16, 16)))
    tail = request(2, 16, 1, content=(Segment(5, 16, 16),))
    ids = [prompt_tokens(each, MINI.vocab) for each in (whole, cut, tail)]
    assert ids[0][:32] == ids[1][:32]
    assert ids[0][16:32] == ids[2]
    assert ids[0][32:] != ids[1][32:], "beyond its content a prompt is its own"
    assert [len(each) for each in ids] == [40, 40, 16]


def test_another_seed_writes_other_prompts():
    one = request(0, 40, 1, content=(Segment(5, 0, 32),))
    assert prompt_tokens(one, MINI.vocab, seed=1) != prompt_tokens(one, MINI.vocab, seed=2)


def test_a_follow_up_quotes_what_was_really_generated():
    first = request(0, 16, 6)
    second = request(1, 30, 2, content=(Segment(3, 0, 16), Segment(-1, 0, 6)))
    ours = engine([first, second])
    step(ours, (0, 0, 16, A))
    for at in range(16, 21):
        step(ours, (0, at, 1, A))
    ours.forget(0)
    step(ours, (1, 0, 30, B))
    dialogue = ours.dialogues[1]
    assert dialogue.known is not None
    assert dialogue.known[16:22] == ours.outputs(0)


def test_a_hit_on_another_requests_blocks_is_as_a_recomputation():
    shared = (Segment(9, 0, 2 * BLOCK),)
    requests = [request(0, 40, 8, content=shared), request(1, 50, 8, content=shared)]
    ours = engine(requests)
    step(ours, (0, 0, 40, A))
    table = [*A[:2], *B]
    step(ours, (1, 2 * BLOCK, 18, table), (0, 40, 1, A))
    for at in range(7):
        step(ours, (1, 50 + at, 1, table))
    assert ours.outputs(1) == alone(requests)[1]


class TestSampling:
    ODDS = torch.tensor([0.5, 0.3, 0.15, 0.05])

    def drawn(self, **settings: float) -> Counter[int]:
        draws = [Draw(Sampling(**settings), (i + 0.5) / 1000) for i in range(1000)]
        return Counter(sample(self.ODDS.log().expand(1000, -1), draws).tolist())

    def test_temperature_zero_takes_the_likeliest(self):
        assert self.drawn(temperature=0.0) == {0: 1000}

    def test_temperature_one_draws_by_the_odds(self):
        assert self.drawn(temperature=1.0) == {0: 500, 1: 300, 2: 150, 3: 50}

    def test_top_p_draws_among_the_fewest_that_reach_it(self):
        drawn = self.drawn(temperature=1.0, top_p=0.75)
        assert drawn == {0: 625, 1: 375}

    def test_a_uniform_next_to_one_stays_in_range(self):
        draw = Draw(Sampling(temperature=1.0, top_p=0.5), 1 - 2**-53)
        assert sample(self.ODDS.log()[None], [draw]).tolist() == [0]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [({"temperature": -1}, "temperature -1"), ({"top_p": 0}, "top_p 0")],
    )
    def test_impossible_settings_are_refused(self, settings, message):
        with pytest.raises(ValueError, match=message):
            Sampling(**settings)
