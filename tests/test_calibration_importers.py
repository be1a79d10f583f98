"""Imports: the profiles that ship come out again, and each source's errors are restated."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.errors import errors_by_class, predicted_seconds
from calibration.hardware import MODELS
from calibration.importers import aiconfigurator_wheel as wheel
from calibration.importers.aiconfigurator import grid_profile, read_grid
from calibration.importers.composed import Configuration, monotone
from calibration.importers.layers import (
    LLMSERVINGSIM,
    VIDUR,
    layer_profile,
    read_llmservingsim,
    read_vidur,
)
from calibration.importers.presets import read_presets
from calibration.profile import PROFILES, ProfileError, load_profile, save_profile

DATA = Path(__file__).parents[2] / "shared/data/profiles"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")
RECORDED = sorted(
    path.name.removesuffix("_decode.csv") for path in DATA.glob("aiconfigurator/*_decode.csv")
)
LAYERS = "{}_meta-llama_Llama-3.1-8B_bf16_tp1"
KEY = "h100_sxm_vllm0.24.0_llama3.1-8b_tp1_bfloat16"


@needs_data
def test_the_shipped_presets_come_out_again(tmp_path):
    profiles = read_presets(DATA / "presets.json")

    assert len(profiles) == 23
    for profile in profiles:
        path = tmp_path / f"{profile.name}.json"
        save_profile(profile, path)
        assert path.read_bytes() == (PROFILES / path.name).read_bytes()


@needs_data
@pytest.mark.parametrize("gpu", ["RTX4090", "RTXPRO6000"])
def test_the_shipped_layer_profiles_come_out_again(gpu, tmp_path):
    times, of = read_llmservingsim(DATA / "llmservingsim" / LAYERS.format(gpu))
    profile = layer_profile(times, of, LLMSERVINGSIM)

    save_profile(profile, tmp_path / "again.json")
    shipped = PROFILES / f"{profile.name}.json"
    assert (tmp_path / "again.json").read_bytes() == shipped.read_bytes()
    assert profile.errors.fit.decode.mape < 0.015
    assert profile.errors.fit.mixed.mape < 0.05


@needs_data
def test_measured_mixed_steps_are_dearer_than_their_parts():
    """Design: decode costs 1.6 to 2 times as much a KV token, and more a sequence, in mixed."""
    for gpu in "rtx-4090", "rtx-pro-6000":
        cost = load_profile(f"{gpu}_llama3.1-8b_bf16").cost

        assert cost.mixed.dK / cost.decode.dK > 1.5
        assert cost.mixed.dD / cost.decode.dD > 3


@needs_data
@pytest.mark.parametrize("stem", RECORDED)
def test_recorded_grids_agree_with_what_ships(stem):
    grid = read_grid(DATA / "aiconfigurator" / stem)
    imported = grid_profile(grid, Configuration.parse(stem))
    shipped = load_profile(imported.name)

    fit = imported.errors.fit
    assert fit.decode.mape < 0.03
    assert abs(fit.decode.bias) < 0.005
    ours, theirs = (predicted_seconds(p.step_time(), grid.rows) for p in (imported, shipped))
    stated = max(one.p95 for _, one in shipped.errors.fit if one)
    assert np.quantile(abs(ours / theirs - 1), 0.95) < 1.5 * stated


@needs_data
def test_shipped_errors_are_those_of_the_monotone_form_on_the_recorded_grid():
    shipped = load_profile("h100-sxm_llama3.1-8b_bf16")
    rows = read_grid(DATA / "aiconfigurator" / KEY).rows
    again = errors_by_class(rows, predicted_seconds(shipped.step_time(), rows))

    for (_, stated), (_, found) in zip(shipped.errors.fit, again, strict=True):
        assert stated is found is None or stated.mape == pytest.approx(found.mape, abs=1e-5)


def test_a_dip_is_levelled_between_its_neighbours():
    table = monotone([1, 2, 4, 8], np.array([1.0, 3.0, 2.0, 4.0]))

    assert table.seconds[0] == 1.0
    assert 2.0 < table.seconds[1] == table.seconds[2] < 3.0
    assert table.seconds[3] == 4.0


def test_a_wrong_preset_is_named(tmp_path):
    path = tmp_path / "presets.json"
    path.write_text("[1")
    with pytest.raises(ProfileError, match=r"presets\.json: cannot be read as JSON"):
        read_presets(path)

    path.write_text(json.dumps({KEY: {"units": "s"}}))
    with pytest.raises(ProfileError, match=f"preset '{KEY}': units 's', expected 'ms'"):
        read_presets(path)

    path.write_text(json.dumps({"somewhere_else": {"units": "ms"}}))
    with pytest.raises(ProfileError, match="expected GPU_ENGINE"):
        read_presets(path)


def test_a_wrong_grid_is_named(tmp_path):
    (tmp_path / "x_decode.csv").write_text("batch,context\n1,2\n")
    with pytest.raises(ValueError, match=r"x_decode\.csv, line 1: column 'step_ms' is missing"):
        read_grid(tmp_path / "x")

    (tmp_path / "x_decode.csv").write_text("batch,context,step_ms,attn_ms,logits_ms\n1,2,-3,1,1\n")
    with pytest.raises(ValueError, match=r"line 2: step_ms -3, expected 0 or more"):
        read_grid(tmp_path / "x")


def fake_step():
    """A GPU whose kernels are linear, in milliseconds."""

    def decode(batch, context):
        return wheel.Split(0.1 + 4e-5 * batch * context, 0.3, 5 + 0.01 * batch)

    def prefill(requests, new, prior):
        attended = requests * new * (prior + new / 2)
        return wheel.Split(0.2 + 8e-7 * attended, 0.3, 5 + 0.01 * requests * new)

    return wheel.Step(decode, prefill)


def test_the_wheel_is_asked_for_the_grid(monkeypatch):
    monkeypatch.setattr(wheel, "_compiled", lambda *_: (fake_step(), "0.24.0"))
    grid, of = wheel.query("h100_sxm", "llama-3.1-8b", 1, "bf16")
    profile = grid_profile(grid, of)

    assert profile.name == "h100-sxm_llama3.1-8b_bf16"
    assert profile.cost.decode.dK == pytest.approx(4e-8, rel=1e-3)
    assert profile.cost.pA == pytest.approx(8e-10, rel=1e-3)
    assert profile.errors.fit.mixed.max < 0.01


def test_without_the_wheel_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(ValueError, match="pip install 'batchlab\\[aiconfigurator\\]'"):
        wheel.query("h200_sxm", "llama-3.1-70b", 8, "bf16")


def test_what_the_wheel_does_not_know_is_refused():
    with pytest.raises(ValueError, match="model 'tiny': aiconfigurator knows"):
        wheel.query("h200_sxm", "tiny", 1, "bf16")
    with pytest.raises(ValueError, match="dtype 'int4', expected one of bf16, fp8"):
        wheel.query("h200_sxm", "llama-3.1-8b", 1, "int4")


def test_the_wheel_agrees_with_what_ships():
    """Done when: within the error that the shipped profile states."""
    pytest.importorskip("aiconfigurator_core", reason="needs the extra aiconfigurator")
    grid, of = wheel.query("h200_sxm", "llama-3.1-70b", 8, "bf16")
    imported = grid_profile(grid, of)
    shipped = load_profile(imported.name)

    ours, theirs = (predicted_seconds(p.step_time(), grid.rows) for p in (imported, shipped))
    assert abs(ours / theirs - 1).mean() < shipped.errors.fit.mixed.mape


def test_vidur_tables(tmp_path):
    """Kernels of 1 µs each a token a layer, and attention of 2 ns a cached token a layer."""
    layers = MODELS["llama-3.1-8b"].layers
    kernels = ("attn_pre_proj", "mlp_up_proj", "mlp_down_proj")
    mlp = pd.DataFrame({"num_tokens": [1, 64, 2048], "num_tensor_parallel_workers": 1})
    for name in kernels:
        mlp[f"time_stats.{name}.median"] = mlp["num_tokens"] * 1e-3
    rows = [(b, 0, c, 0.0, 2e-6 * b * c) for b in (8, 32, 64) for c in (1024, 2048, 4096)]
    rows += [(1, q, c, 1e-3 * q, 0.0) for q in (64, 512, 2048) for c in (0, 1024)]
    attention = pd.DataFrame(
        rows,
        columns=[
            "batch_size",
            "prefill_chunk_size",
            "kv_cache_size",
            "time_stats.attn_prefill.median",
            "time_stats.attn_decode.median",
        ],
    )
    mlp.to_csv(tmp_path / "mlp.csv", index=False)
    attention.to_csv(tmp_path / "attention.csv", index=False)

    times, of = read_vidur(tmp_path, gpu="a100-sxm", model="llama-3.1-8b")
    profile = layer_profile(times, of, VIDUR)

    assert profile.cost.g.seconds == pytest.approx([3e-6 * layers * n for n in (1, 64, 2048)])
    assert profile.cost.decode.dK == pytest.approx(2e-9 * layers, rel=0.01)
    assert profile.cost.pP == pytest.approx(1e-6 * layers, rel=0.05)
    assert "LM head" in profile.missing
    assert "mixed-step penalty" in profile.missing

    with pytest.raises(ValueError, match=r"mlp\.csv: no rows for tp 2"):
        read_vidur(tmp_path, gpu="a100-sxm", model="llama-3.1-8b", tp=2)
