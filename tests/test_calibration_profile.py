"""Profile files: what ships, what is refused and in which words, what lies outside the grid."""

import json
import math

import pytest

from calibration.hardware import GPUS, MODELS, find_gpu, find_model, model_from, pool_tokens
from calibration.profile import (
    PROFILES,
    Cost,
    Decode,
    Profile,
    ProfileError,
    Table,
    list_profiles,
    load_profile,
    save_profile,
)
from calibration.raw import shape_of
from calibration.step_time import StepShape

H100 = "h100-sxm_llama3.1-8b_bf16"


@pytest.fixture
def values():
    return json.loads((PROFILES / f"{H100}.json").read_text(encoding="utf-8"))


@pytest.fixture
def refused(tmp_path):
    """The message that a profile of these values is refused with, less its path."""

    def load(values):
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(ProfileError) as error:
            load_profile(path)
        message = str(error.value)
        assert message.startswith(f"{path}")
        assert "\n" not in message
        return message.removeprefix(str(path)).lstrip(":, ")

    return load


def test_every_profile_that_ships_loads_under_its_name():
    names = list_profiles()

    assert len(names) >= 23
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert profile.licence
        assert profile.source
        assert profile.missing
        assert profile.errors.fit.decode is not None


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "a100-sxm", "b200-sxm", "l40s"])
def test_the_profiles_promised_ship(gpu):
    names = list_profiles()

    assert f"{gpu}_llama3.1-8b_bf16" in names
    if gpu in ("h100-sxm", "h200-sxm"):
        for tp in (4, 8):
            assert f"{gpu}_llama3.1-70b_bf16_tp{tp}" in names
            assert f"{gpu}_llama3.1-70b_fp8_tp{tp}" in names


def test_composed_profiles_say_what_they_lack():
    profile = load_profile(H100)

    assert "host overhead and mixed-step penalty not included" in profile.note
    assert (profile.parts.host, profile.parts.mixed) == ("missing", "modelled")


def test_a_saved_profile_loads_as_it_was(tmp_path):
    profile = load_profile(H100)

    save_profile(profile, tmp_path / "again.json")
    assert load_profile(tmp_path / "again.json") == profile


def test_coefficients_are_rounded_to_picoseconds_once():
    cost = Cost(
        t0=1e-3,
        pA=3e-12,
        g=Table(knots=(1, 2), seconds=(1.4e-12, 2.6e-12)),
        decode=Decode(dK=1.6e-12),
    )
    step_time = cost.step_time()

    assert (step_time.t0, step_time.pA2, step_time.decode) == (10**9, 2, (0, 0, 2))
    assert step_time.g == ((1, 2), (1, 3))


def test_a_scaled_form_scales_every_price():
    cost = load_profile("rtx-4090_llama3.1-8b_bf16").cost
    shape = shape_of([(512, 100)] + [(1, 1000)] * 20)

    once, twice = cost.step_time().price(shape), cost.scaled(2.0).step_time().price(shape)
    assert math.isclose(twice, 2 * once, rel_tol=1e-6)
    assert cost.scaled(2.0).captured == cost.captured


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ProfileError, match=f"did you mean '{H100}'"):
        load_profile("h100-sxm_lama3.1-8b_bf16")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"none\.json: cannot be read: No such file"):
        load_profile(tmp_path / "none.json")


def test_truncated_json_is_refused_with_its_line(tmp_path):
    whole = (PROFILES / f"{H100}.json").read_text(encoding="utf-8")
    path = tmp_path / "cut.json"
    path.write_text(whole[: len(whole) // 2], encoding="utf-8")

    with pytest.raises(ProfileError, match=r"cut\.json, line \d+: not JSON"):
        load_profile(path)


def test_negative_and_nan_are_refused_with_field_and_value(values, refused):
    values["cost"]["pA"] = -1.0
    assert refused(values) == "cost.pA -1.0, expected greater than or equal to 0"

    values["cost"]["pA"] = math.nan
    assert refused(values) == "cost.pA nan, expected a finite number"

    values["cost"]["pA"] = 0.0
    values["cost"]["g"]["seconds"][3] = math.inf
    assert refused(values).startswith("cost.g.seconds[3] inf, expected")


def test_a_falling_table_is_refused_where_it_falls(values, refused):
    values["cost"]["g"]["seconds"][2:4] = [0.02, 0.01]

    assert refused(values) == "cost.g.seconds[3] 0.01, expected at least the value before, 0.02"


def test_knots_that_do_not_rise_are_refused(values, refused):
    values["cost"]["h"]["knots"][1] = 1

    assert refused(values) == "cost.h.knots[1] 1, expected more than the value before, 1"


def test_tables_of_unequal_length_are_refused(values, refused):
    values["cost"]["h"]["seconds"].pop()

    assert "10 knots and 9 seconds" in refused(values)


def test_unknown_and_missing_fields_are_named(values, refused):
    values["cost"]["decoded"] = values["cost"]["decode"]
    assert refused(values) == "unknown field 'cost.decoded', did you mean 'decode'?"

    del values["cost"]["decoded"], values["pool_tokens"]
    assert refused(values) == "field 'pool_tokens' is missing"


def test_other_schemas_and_units_are_refused(values, refused):
    values["units"] = "ms"
    assert refused(values) == "units 'ms', expected 'seconds'"

    values["schema"] = 2
    assert refused(values) == "schema 2, expected 1"


def test_outside_the_measured_grid_is_seen():
    """E2: a profile to 8 K of context and 64 sequences, a prompt of 126,195."""
    profile = load_profile(H100)
    ranges = {
        "tokens": (1, 8192),
        "sequences": (1, 64),
        "decode_context": (0, 400_000),
        "context": (1, 8192),
    }
    small = Profile.model_validate(profile.model_dump(by_alias=True) | {"measured": ranges})

    assert not small.outside(shape_of([(2048, 4096)] + [(1, 8000)] * 40))
    assert small.outside(shape_of([(2048, 126_195 - 2048)]))
    assert small.outside(shape_of([(1, 100)] * 65))
    assert small.outside(shape_of([(1, 9000)]))
    assert small.outside(StepShape(prefill_tokens=8193, chunks=2))


def test_the_pool_formula_gives_the_pool_on_record():
    """vLLM 0.19 on an RTX 4090 reported 2,588 blocks of 16 at 2,048 batched tokens."""
    tokens = pool_tokens(GPUS["rtx-4090"], MODELS["llama-3.1-8b"], batched_tokens=2048)

    assert abs(tokens / (2588 * 16) - 1) < 0.02
    assert 420_000 < load_profile(H100).pool_tokens < 450_000


def test_what_cannot_fit_is_refused():
    with pytest.raises(ValueError, match="leaves no KV pool on rtx-4090: needs"):
        pool_tokens(GPUS["rtx-4090"], MODELS["llama-3.1-70b"])


def test_sizes_of_models_are_the_published_ones():
    eight, seventy, tiny = (MODELS[n] for n in ("llama-3.1-8b", "llama-3.1-70b", "tiny"))

    assert eight.parameters == 8_030_261_248
    assert seventy.parameters == 70_553_706_496
    assert eight.kv_bytes_per_token() == 131_072
    assert seventy.kv_bytes_per_token(tp=8) == seventy.kv_bytes_per_token(tp=16) == 40_960
    assert round(tiny.parameters, -5) == 8_100_000


def test_names_of_hardware_are_forgiving_but_not_guessing():
    assert find_gpu("H100_SXM").name == "h100-sxm"
    assert find_model("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b"
    with pytest.raises(ValueError, match="unknown GPU 'h100-smx': did you mean 'h100-sxm'"):
        find_gpu("h100-smx")
    with pytest.raises(ValueError, match="unknown model 'gpt-5': expected one of"):
        find_model("gpt-5")


def test_a_model_from_its_config(tmp_path):
    config = {
        "model_type": "llama",
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "vocab_size": 8192,
        "max_position_embeddings": 16384,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert model_from(str(path)).kv_bytes_per_token() == 2 * 12 * 4 * 64 * 2

    del config["vocab_size"]
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="field 'vocab_size' is missing"):
        model_from(str(path))
