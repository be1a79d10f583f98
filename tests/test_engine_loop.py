"""The whole engine: the simulator's loop, policies and pool over steps that are really run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engines import BLOCK, MINI, alone, runner

from calibration.executor import Measured
from calibration.sampling import Sampling
from calibration.streams import Streams
from policies.chunked import Chunked
from policies.continuous import Continuous
from policies.fast_lane import FastLane
from policies.static import Static
from simulator.engine import Engine
from simulator.run import simulate
from traces.trace import Segment, Trace

BLOCKS = 24
ENGINE = Engine(kv_tokens=BLOCKS * BLOCK, block_size=BLOCK, max_running=12, gate=False)
POLICY = Chunked(token_budget=48)


def workload(requests: int = 200, **columns: object) -> Trace:
    """Far more than the pool holds, at once: sequences grow into each other."""
    draw = np.random.default_rng(3)
    prompt, output = draw.integers(4, 60, requests), draw.integers(2, 20, requests)
    return Trace.of(arrival=0, prompt=prompt, output=output, declared=output, **columns)


def served(trace: Trace, policy=POLICY, engine=ENGINE, **settings):
    """Run the trace on a fresh engine: records and what every request said."""
    measured = Measured.on(runner(blocks=engine.blocks), trace.requests(), **settings)
    records = simulate(trace, policy, engine, measured)
    return records, {request: measured.outputs(request) for request in range(len(trace))}


def test_200_requests_with_preemptions_say_what_each_says_alone():
    trace = workload()
    records, said = served(trace)
    assert (records.requests["reason"] == "stop").all()
    assert records.requests["preemptions"].sum() > 20
    assert said == alone(trace.requests())


@pytest.mark.parametrize(
    "policy",
    [
        Continuous(token_budget=96),
        Static(token_budget=1000, batch=4),
        FastLane(token_budget=48),
        Chunked(token_budget=48, long_prefill=16),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_no_policy_changes_what_is_said(policy):
    trace = workload(30)
    assert served(trace, policy)[1] == alone(trace.requests())


def test_sampled_outputs_survive_preemption_too():
    def sampling(request: int) -> Sampling:
        return Sampling(temperature=0.5 + 0.1 * (request % 5), top_p=0.95, seed=request)

    trace = workload(60)
    records, said = served(trace, sampling=sampling)
    assert records.requests["preemptions"].sum() > 5
    assert said == alone(trace.requests(), sampling=sampling)


def test_prefix_hits_change_the_work_but_not_the_words():
    content = [(Segment(i % 3, 0, 3 * BLOCK),) for i in range(60)]
    base = workload(60, content=content)
    trace = replace(base, prompt=base.prompt + 3 * BLOCK)
    records, said = served(trace, engine=replace(ENGINE, prefix_cache=True))
    assert records.requests["hit"].sum() > 0
    assert records.requests["preemptions"].sum() > 0
    assert said == alone(trace.requests())


def test_the_clock_advances_by_what_the_steps_took():
    trace = workload(20)
    measured = Measured.on(runner(blocks=BLOCKS), trace.requests())
    records = simulate(trace, POLICY, ENGINE, measured)
    assert records.steps["duration"].tolist() == [duration for _, duration, _ in measured.log]
    assert records.requests["finished"].max() == sum(duration for _, duration, _ in measured.log)


def test_an_end_of_sequence_ends_a_request_early():
    trace = workload(40)
    eos = 7
    records, said = served(trace, sampling=Sampling(eos=eos))
    free = alone(trace.requests())
    for request, words in free.items():
        ends = words.index(eos) + 1 if eos in words else len(words)
        assert said[request] == words[:ends]
    assert records.requests["produced"].tolist() == [len(words) for words in said.values()]


def test_streams_deliver_everything_in_the_order_of_finishing():
    trace = workload(40)
    streams = Streams()
    records, said = served(trace, listener=streams)
    assert {request: list(streams.read(request)) for request in said} == said
    ended = [streams.ended.get()[0] for _ in said]
    finished = records.requests.set_index("request")["finished"]
    assert finished[ended].is_monotonic_increasing


def test_equal_seeds_build_equal_engines():
    trace = workload(10)
    settings = {"model": "tiny", "blocks": BLOCKS, "block_size": BLOCK}
    runs = []
    for seed in (1, 1, 2):
        measured = Measured.create(requests=trace.requests(), seed=seed, **settings)
        simulate(trace, POLICY, ENGINE, measured)
        runs.append([measured.outputs(request) for request in range(len(trace))])
    assert runs[0] == runs[1] != runs[2]


def test_the_vocabulary_is_the_models():
    _, said = served(workload(10))
    assert all(0 <= token < MINI.vocab for words in said.values() for token in words)
