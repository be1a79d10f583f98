"""Length distributions: what was asked for is what comes out."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.lengths import Distribution, Empirical, Fixed, Lengths, Lognormal, Pareto, Uniform
from traces.seeds import stream
from traces.settings import load


def draw(table: Any, count: int = 200_000) -> np.ndarray:
    made: Distribution = load(Lengths, table)
    return made.draw(stream(3, "test"), count)


def test_fixed_is_fixed_and_a_bare_number_will_do() -> None:
    assert draw(512, 3).tolist() == [512, 512, 512]
    assert load(Lengths, 512) == Fixed(value=512)


def test_uniform_holds_both_ends_equally_often() -> None:
    values, counts = np.unique(draw({"kind": "uniform", "min": 3, "max": 6}), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert counts / counts.sum() == pytest.approx([0.25] * 4, abs=0.01)


def test_exponential_and_pareto_have_their_means() -> None:
    assert draw({"kind": "exponential", "mean": 300}).mean() == pytest.approx(300, rel=0.01)
    pareto = draw({"kind": "pareto", "mean": 300, "alpha": 3.0})
    assert pareto.mean() == pytest.approx(300, rel=0.02)
    # The share above twice the scale of 200 is 2^-3.
    assert np.mean(pareto > 400) == pytest.approx(1 / 8, rel=0.03)


def test_lognormal_comes_out_at_its_mean_and_p99() -> None:
    lengths = draw({"kind": "lognormal", "mean": 1000, "p99": 4000})
    assert lengths.mean() == pytest.approx(1000, rel=0.01)
    assert np.percentile(lengths, 99, method="inverted_cdf") == pytest.approx(4000, rel=0.03)


@given(st.floats(10, 1e4), st.floats(1, 14.9))
def test_of_two_lognormals_the_smaller_sigma_is_meant(mean: float, ratio: float) -> None:
    one = Lognormal(mean=mean, p99=mean * ratio)
    assert 0 <= one.sigma <= 2.3264
    mu = math.log(mean) - one.sigma**2 / 2
    assert math.exp(mu + 2.3263478740 * one.sigma) == pytest.approx(mean * ratio, rel=1e-6)


@pytest.mark.parametrize("p99", [999, 15_000, 1e9])
def test_impossible_pairs_are_refused(p99: float) -> None:
    with pytest.raises(ValueError, match="no lognormal has mean 1000 and p99"):
        Lognormal(mean=1000, p99=p99)


def test_the_achieved_mean_is_known_after_cutting() -> None:
    cut = Lognormal(mean=1000, p99=8000, max=2000)
    lengths = cut.draw(stream(1, "x"), 200_000)
    assert cut.achieved["mean"] == pytest.approx(lengths.mean(), rel=0.01)
    assert cut.achieved["mean"] < 850
    assert cut.achieved["cut_share"] == pytest.approx(np.mean(lengths == 2000), abs=0.005)
    assert lengths.max() == cut.achieved["p99"] == 2000


def test_empirical_draws_what_occurs(tmp_path: Path) -> None:
    assert set(draw({"kind": "empirical", "values": [3, 3, 9]}).tolist()) == {3, 9}
    assert draw({"kind": "empirical", "values": [3, 3, 9]}).mean() == pytest.approx(5, rel=0.02)
    file = tmp_path / "t.csv"
    file.write_text("arrival,prompt,output\n0,10,1\n1,20,2\n")
    one = load(Lengths, {"kind": "empirical", "file": str(file), "column": "prompt"})
    assert isinstance(one, Empirical)
    assert set(one.draw(stream(0, "x"), 100).tolist()) == {10, 20}


def test_the_same_request_is_long_under_every_distribution() -> None:
    share = stream(0, "prompt").random(1000)
    light = Lognormal(mean=100, p99=300).lengths(share)
    heavy = Pareto(mean=5000, alpha=2).lengths(share)
    order = np.argsort(share)
    assert (np.diff(light[order]) >= 0).all()
    assert (np.diff(heavy[order]) >= 0).all()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"kind": "lognormal", "meen": 5, "p99": 9}, "unknown key; did you mean 'mean'"),
        ({"kind": "lognormel", "mean": 5}, "did you mean 'lognormal'"),
        ({"mean": 5}, "needs a kind"),
        ({"kind": "exponential"}, "prompt.mean: missing"),
        ({"kind": "exponential", "mean": 0}, "prompt.mean: 0, expected greater than 0"),
        ({"kind": "exponential", "mean": math.nan}, "prompt.mean: nan"),
        ({"kind": "exponential", "mean": math.inf}, "prompt.mean: inf"),
        ({"kind": "pareto", "mean": 5, "alpha": 1}, "prompt.alpha: 1, expected greater than 1"),
        ({"kind": "uniform", "min": 5, "max": 4}, "max 4 is below min 5"),
        ({"kind": "empirical"}, "either values or a file"),
        ({"kind": "empirical", "values": [0]}, "prompt.values.0: 0"),
        (0, "prompt.value: 0, expected greater than or equal to 1"),
        ("long", "'long', expected a table"),
        (True, "True, expected a table"),
    ],
)
def test_wrong_settings_are_one_line_that_names_them(table: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        load(Lengths, table, "prompt")
    assert "prompt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_uniform_of_one_value() -> None:
    assert Uniform(min=4, max=4).achieved["mean"] == 4
