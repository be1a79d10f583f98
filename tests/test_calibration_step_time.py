"""Laws of the cost form: never free, never falling, exact in whole picoseconds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.profile import list_profiles, load_profile
from calibration.raw import shape_of
from calibration.step_time import Predicted, StepShape, StepTime, interpolate

H100 = load_profile("h100-sxm_llama3.1-8b_bf16").step_time()
MIXED = load_profile("rtx-4090_llama3.1-8b_bf16").step_time()

counts = st.integers(1, 10**12)
tables = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 10**10)), min_size=1).map(
    lambda steps: (
        tuple(sum(gap for gap, _ in steps[: i + 1]) for i in range(len(steps))),
        tuple(sum(rise for _, rise in steps[: i + 1]) for i in range(len(steps))),
    )
)
step_times = st.builds(
    StepTime,
    t0=counts,
    tS=counts,
    tB=counts,
    g=tables,
    h=tables,
    p0=counts,
    pA2=counts,
    pP=counts,
    pF=counts,
    pH=counts,
    decode=st.tuples(counts, counts, counts),
    mixed=st.none() | st.tuples(counts, counts, counts),
)
chunks = st.lists(st.tuples(st.integers(2, 4096), st.integers(0, 10**5)), max_size=4)
decodes = st.lists(st.integers(0, 10**5).map(lambda cached: (1, cached)), max_size=8)


def test_a_hand_computed_step():
    """Two decodes of 10 and 20 cached tokens beside a chunk of 4 on 6."""
    step_time = StepTime(
        t0=1000,
        tS=10,
        g=((1, 11), (0, 100)),
        p0=5,
        pA2=1,
        pH=2,
        decode=(7, 3, 1),
        mixed=(70, 30, 10),
    )
    shape = shape_of([(4, 6), (1, 10), (1, 20)])

    host, gemm = 1000 + 3 * 10, 50
    prefill = 5 + 4 * (2 * 6 + 4) + 2 * 10
    assert step_time.price(shape) == host + gemm + prefill + (70 + 2 * 30 + 30 * 10)
    assert step_time.price(shape_of([(1, 10), (1, 20)])) == 1020 + 10 + (7 + 2 * 3 + 30)


def test_beyond_the_last_knot_the_last_slope_goes_on():
    table = ((1, 11, 21), (5, 5, 105))

    assert [interpolate(table, x) for x in (1, 6, 11, 16, 21, 31)] == [5, 5, 5, 55, 105, 205]


def test_decode_only_steps_cost_as_the_captured_size():
    step_time = StepTime(g=((1, 9), (0, 80)), padded=(1, 4, 8))

    assert step_time.price(StepShape(decodes=3)) == step_time.price(StepShape(decodes=4))
    assert step_time.price(StepShape(decodes=9)) == 80  # beyond the largest: as it is
    with_prefill = StepShape(prefill_tokens=2, chunks=1, decodes=1)
    assert step_time.price(with_prefill) == 20  # so are steps with prefill


@given(step_times, chunks, decodes)
def test_no_step_is_free(step_time, chunks, decodes):
    assert step_time.price(shape_of(chunks + decodes, 16)) > 0


@given(
    step_times,
    chunks,
    decodes,
    st.sampled_from(["area2", "reach", "context", "table", "moved"]),
    st.integers(1, 10**6),
)
def test_more_of_anything_never_costs_less(step_time, chunks, decodes, name, more):
    shape = shape_of(chunks + decodes, 16)
    larger = shape._replace(**{name: getattr(shape, name) + more})

    assert step_time.price(larger) >= step_time.price(shape)


@given(step_times, chunks.filter(bool), decodes.filter(bool), st.integers(0, 10**5))
def test_another_row_of_the_same_class_never_costs_less(step_time, chunks, decodes, cached):
    prefill, decode, mixed = chunks, decodes, chunks + decodes
    for rows, more in (prefill, (64, cached)), (decode, (1, cached)), (mixed, (64, cached)):
        assert step_time.price(shape_of([*rows, more])) >= step_time.price(shape_of(rows))


@given(step_times, chunks, decodes.filter(bool), st.integers(1, 20))
def test_equal_steps_grow_by_exactly_growth(step_time, chunks, decodes, steps):
    """Each chunk moves on by its size, each decode by one token: an arithmetic series."""
    squares = sum(new * new for new, _ in chunks)
    shape = shape_of(chunks + decodes)
    grow = step_time.growth(shape.prefill_tokens, shape.decodes, squares)
    prices = [
        step_time.price(shape_of([(new, cached + k * new) for new, cached in chunks + decodes]))
        for k in range(steps + 1)
    ]

    assert prices == [prices[0] + k * grow for k in range(steps + 1)]


def test_two_batches_with_the_same_sums_cost_the_same():
    """E1: the form sees sums."""
    even = shape_of([(1, 2000)] * 32)
    uneven = shape_of([(1, 100)] * 31 + [(1, 60_900)])

    assert even == uneven
    assert H100.price(even) == H100.price(uneven)


@pytest.mark.parametrize("step_time", [H100, MIXED], ids=["added", "measured mixed"])
def test_prefill_and_decodes_together_cost_more_than_either(step_time):
    """E1: 512 tokens of prefill and 64 decodes."""
    prefill, decode = [(512, 0)], [(1, 1000)] * 64

    together = step_time.price(shape_of(prefill + decode))
    assert together > step_time.price(shape_of(prefill))
    assert together > step_time.price(shape_of(decode))


@pytest.mark.parametrize("name", list_profiles())
def test_shipped_profiles_keep_the_laws(name):
    """E2 among them: far outside the grid, never ≤ 0 and still rising."""
    step_time = load_profile(name).step_time()
    prompts = [step_time.price(shape_of([(tokens, 0)])) for tokens in (2, 512, 8192, 126_195)]
    batches = [step_time.price(shape_of([(1, 1000)] * n)) for n in (1, 64, 512, 5000)]
    mixed = [step_time.price(shape_of([(512, 0)] + [(1, 1000)] * n)) for n in (0, 64, 512, 5000)]

    for prices in prompts, batches, mixed:
        assert prices[0] > 0
        assert prices == sorted(set(prices))
    for n in (1, 16, 256):
        decode = [(1, 1000)] * n
        unpadded = replace(step_time, padded=())
        assert unpadded.price(shape_of([(2, 0), *decode])) >= unpadded.price(shape_of(decode))


def test_the_executor_charges_the_price():
    shape = shape_of([(1, 10)])

    assert Predicted(H100).run(shape, list).duration == H100.price(shape)
    assert Predicted(StepTime.constant(5)).run(shape, list).duration == 5
