"""The plan, end to end, against queueing theory and against itself."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from planning import QUICK, constant_profile, md1_rate, mmc_rate, server
from rich.console import Console

from reports.evidence import Evidence
from reports.plans import breaks_first, plan_table, sentences
from simulator.cli import run as batchlab
from simulator.flags import engine_flags
from simulator.loads import Load
from simulator.planner import FRESH_SEED, Plan, Question, as_dict, plan
from simulator.pool import Local
from simulator.provision import provision
from simulator.runs import Runs
from simulator.scenario import Scenario
from simulator.search import Effort, Probe
from simulator.store import Store
from simulator.study import Objective, margin_of
from traces.lengths import Exponential
from traces.sla import Sla, Term


def ask(
    base: Scenario, sla: str, effort: Effort = QUICK, runs: Runs | None = None, **more: Any
) -> Plan:
    grid = more.pop("grid", {})
    question = Question(
        base=base, objective=Objective(sla=Sla.parse(sla), **more), grid=grid, effort=effort
    )
    return plan(question, runs or Runs(pool=Local(workers=1)))


class TestTheory:
    @pytest.mark.slow
    def test_m_d_1(self, tmp_path: Path) -> None:
        """One slot, ten steps of 100 ms: a request a second; mean wait 1 s at ρ = 2/3."""
        found = ask(server(tmp_path), "queue mean <= 1 s", Effort())
        best = found.best
        assert best is not None
        assert best.service is not None
        assert best.edge is not None
        assert best.edge.rate is not None
        assert best.service.estimate == pytest.approx(1.0, rel=0.002)
        assert best.edge.rate.low <= md1_rate(1.0, 1.0) <= best.edge.rate.high
        assert best.edge.precise <= 0.05
        assert best.rho == pytest.approx(best.recommended / best.service.estimate)

    @pytest.mark.slow
    def test_m_m_c(self, tmp_path: Path) -> None:
        """Four slots, exponential work of a second on average; Erlang's C."""
        work = Exponential(mean=25.0)
        found = ask(
            _four_slots(tmp_path, work.mean), "queue mean <= 0.5 s", Effort(runs=5, long=1000)
        )
        assert found.best is not None
        assert found.best.edge is not None
        assert found.best.edge.rate is not None
        # Work is whole steps of 40 ms; who arrives in mid-step waits for its end, half a step.
        true = mmc_rate(0.04 * work.achieved["mean"], 4, 0.5 - 0.02)
        assert found.best.edge.rate.low <= true <= found.best.edge.rate.high

    @pytest.mark.parametrize("duration_s", [60, 300, 1800])
    def test_what_cannot_last_is_never_recommended(self, tmp_path: Path, duration_s: int) -> None:
        """105 % load: a short run meets a lenient level there, and yet no plan says so."""
        base = server(tmp_path, rate=1.05, duration_s=float(duration_s))
        found = ask(base, "e2e p99 <= 1000 s")
        assert found.best is not None
        assert found.best.edge is not None
        assert found.best.edge.verdict == "all"
        assert found.best.recommended < 1.0


def _four_slots(folder: Path, mean_steps: float) -> Scenario:
    output = {"kind": "exponential", "mean": mean_steps}
    base = server(folder, seats=4, output=output)
    return base.with_values({"engine.profile": constant_profile(folder, 0.04)})


@pytest.fixture(scope="module")
def chat() -> Plan:
    """Three budgets, two block sizes."""
    base = Scenario.of(
        {
            "trace": {
                "rate": 20.0,
                "prompt": {"kind": "lognormal", "mean": 400, "p99": 1600, "max": 2000},
                "output": {"kind": "lognormal", "mean": 60, "p99": 250, "max": 400},
                "declared": 400,
            }
        }
    )
    grid = {"policy.token_budget": [512, 2048], "engine.block_size": [16, 32]}
    return ask(base, "ttft p99 <= 300 ms, itl p99 <= 40 ms", grid=grid)


def test_bursts_cost_more_the_higher_the_load(tmp_path: Path) -> None:
    """Case E9: gaps with a CV of 3 against 1; 32 seats smooth bursts until they are full."""
    ttft = Term(metric="ttft", statistic="mean", bound_s=1.0)
    ratios = []
    for load in (0.2, 0.5, 0.8, 0.93):
        calm, bursty = (
            Evidence.of(
                server(
                    tmp_path,
                    seats=32,
                    rate=32 * load,
                    requests=4000,
                    arrivals={"kind": "gamma", "cv": cv},
                ).run()
            )
            for cv in (1.0, 3.0)
        )
        ratios.append(bursty.values(ttft) / calm.values(ttft))
        done = (one.facts["summary"]["throughput"]["requests_per_s"] for one in (bursty, calm))
        assert next(done) == pytest.approx(next(done), rel=0.05)
    assert ratios == sorted(ratios)
    assert ratios[0] < 1.1
    assert ratios[-1] > 2


class TestAnswer:
    def test_the_rate_holds_with_fresh_seeds_and_little_more_does_not(self, chat: Plan) -> None:
        best, question = chat.best, chat.question
        assert best is not None
        assert best.edge is not None
        scenario = question.base.with_values(best.values)
        runs = Runs(pool=Local(workers=1))

        def kept(rate: float) -> int:
            probes = [Probe(rate, 7_000 + seed, best.edge.requests) for seed in range(10)]
            seen = runs.of([chat.load.at(scenario, probe) for probe in probes])
            return sum(margin_of(question.objective, one) <= 0 for one in seen)

        assert kept(best.recommended) >= 9
        assert kept(1.15 * best.recommended) <= 5

    def test_the_best_has_the_highest_rate_and_was_confirmed(self, chat: Plan) -> None:
        assert chat.best is not None
        assert chat.confirmed is not None
        assert (
            chat.best.recommended
            >= max(one.recommended for one in chat.settings if one.values != chat.best.values) * 0.9
        )
        assert chat.confirmed.kept >= 9
        assert chat.confirmed.rate == chat.best.recommended

    def test_block_sizes_that_change_nothing_are_not_run_again(self, chat: Plan) -> None:
        by = {tuple(one.values.values()): one for one in chat.settings}
        assert by[512, 32].same_as == by[512, 16].values
        assert by[512, 32].edge == by[512, 16].edge

    def test_it_says_what_breaks_first_and_why(self, chat: Plan) -> None:
        small = next(one for one in chat.settings if one.values["policy.token_budget"] == 512)
        assert small.breaks is not None
        assert small.breaks.term == "ttft p99 <= 300 ms"
        assert small.breaks.cause in ("tokens", "prefill")

    def test_the_model_band_lies_around_the_rate(self, chat: Plan) -> None:
        for one in chat.settings:
            assert one.band is not None
            assert one.band.low < one.band.central <= one.band.high
            assert [what.split(",")[0] for what, _ in one.band.missing] == [
                "host overhead",
                "mixed-step penalty",
            ]

    def test_no_point_of_the_front_beats_another(self, chat: Plan) -> None:
        front = as_dict(chat)["pareto"]
        assert len(front) > 3
        for a in front:
            for b in front:
                better = a["rate"] > b["rate"], a["ttft_p99"] < b["ttft_p99"]
                assert a is b or not (all(better) and a["itl_p99"] < b["itl_p99"])

    def test_a_fleet_is_simulated(self, chat: Plan) -> None:
        assert chat.best is not None
        target = 2.5 * chat.best.recommended
        fleet = provision(
            chat.question, chat.load, chat.best, Runs(pool=Local(workers=1)),
            target=target, gpu_hour_price=2.0,
        )  # fmt: skip
        assert fleet.divided == 3
        assert fleet.replicas in (3, 4)
        assert dict(fleet.tried)[fleet.replicas]
        assert fleet.cost is not None
        assert fleet.cost.per_hour == fleet.gpus * 2.0
        tokens = target * 3600 * chat.best.tokens_per_request / 1e6
        assert fleet.cost.per_million_tokens == pytest.approx(fleet.cost.per_hour / tokens)
        assert fleet.gpu_hours_per_day == 24 * fleet.gpus

    def test_a_rate_beyond_every_fleet_is_said_at_once(self, chat: Plan) -> None:
        assert chat.best is not None
        with pytest.raises(ValueError, match=r"1e\+308 requests/s take more than 512 replicas"):
            provision(
                chat.question, chat.load, chat.best, Runs(pool=Local(workers=1)), target=1e308
            )


class TestWords:
    def test_a_rate_that_some_seeds_miss_is_not_one_that_every_rate_meets(self, chat: Plan) -> None:
        """The edge may lie at μ although a run below it missed the level."""
        plain = as_dict(chat)
        kept = [point | {"margin": -0.1} for point in plain["best"]["points"]]
        mixed = [*kept[:-2], kept[-2] | {"margin": 0.1, "rate": 9.5}, kept[-1]]
        at_mu = {"verdict": "all", "breaks": None, "missed_below": None}
        said, table = {}, {}
        for name, points in (("kept", kept), ("mixed", mixed)):
            best = plain["best"] | at_mu | {"points": points}
            said[name] = sentences(plain | {"best": best})[0]
            table[name] = breaks_first(best)
        assert "every tried rate meets the level" in said["kept"]
        assert table["kept"] == "nothing below μ"
        assert "some miss it at 9.50/s already" in said["mixed"]
        assert "every" not in said["mixed"]
        assert table["mixed"] == "μ, with most seeds"

    def test_a_fleet_without_headroom_says_what_has_some(self, chat: Plan) -> None:
        """Seven replicas serve 40 requests/s; alone each keeps the level up to 5.34."""
        fleet = {
            "target": 40.0, "peak": 40.0, "divided": 9, "replicas": 7, "gpus": 7, "spare": 8,
            "survives": True, "headroom": 7 * 5.34 / 40 - 1, "gpu_hours_per_day": 168.0,
            "elastic_gpu_hours_per_day": 168.0, "cost": None, "router": "round-robin",
        }  # fmt: skip
        said = " ".join(sentences(as_dict(chat) | {"fleet": fleet}))
        assert "no headroom: each replica serves 5.71/s" in said
        assert "alone it keeps the level up to 5.34/s; take 8 to have room" in said
        assert "-6" not in said

    @pytest.mark.parametrize("width", [80, 100])
    def test_a_plan_fits_the_terminal_uncut(self, chat: Plan, width: int) -> None:
        flags = [
            {"engine": one.engine, "flags": one.flags, "unsaid": one.unsaid}
            for one in engine_flags(chat.question.base)
        ]
        out = io.StringIO()
        Console(file=out, width=width).print(
            plan_table(as_dict(chat) | {"flags": flags}, width=width)
        )
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in out.getvalue()
        first = next(at for at, line in enumerate(lines) if line.startswith("vLLM:"))
        last = next(at for at, line in enumerate(lines) if line.startswith("SGLang:"))
        joined = "\n".join(lines[first:last]).replace(" \\\n   ", "")
        assert joined == f"vLLM:  {' '.join(flags[0]['flags'])}"


class TestQuestions:
    def test_another_question_finds_its_runs_in_the_store(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "plan.sqlite")
        base = server(tmp_path, arrivals="constant")
        first = Runs(store=store, pool=Local(workers=1))
        ask(base, "queue mean <= 1 s", runs=first)
        again = Runs(store=store, pool=Local(workers=1))
        loose = ask(base, "queue mean <= 1 s, e2e max <= 1000 s", runs=again)
        store.close()
        assert first.made > 0
        assert (again.made, loose.best is not None) == (0, True)

    def test_no_rate_is_said_in_words(self, tmp_path: Path, capsys: Any) -> None:
        path = tmp_path / "s.toml"
        path.write_text(server(tmp_path).dump())
        assert batchlab(["plan", str(path), "--sla", "e2e p50 <= 500 ms", "-j", "1"]) == 1
        said = capsys.readouterr()
        assert "no rate meets it" in said.out
        assert "No rate meets e2e p50 <= 500 ms" in said.out
        assert "no rate keeps the service level" in said.err

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "no service level; give one"),
            (["--sla", "ttft p98 <= 1 s"], "statistic 'p98'"),
            (["--sla", "ttft p50 <= 2 s", "--sla", "ttft p99 <= 1 s"], "contradict each other"),
            (["--sla", "ttft p99 <= 1 s", "--attainment", "1.5"], "expected a share"),
            (["--sla", "ttft p99 <= 1 s", "--pool", "cloud"], "expected local or ray"),
            (["--sla", "ttft p99 <= 1 s", "--target-rate", "0"], "expected requests per second"),
            (["--sla", "ttft p99 <= 1 s", "--token-budget", "100"], "smaller than engine.max"),
            (["--sla", "ttft p99 <= 1 s", "--limit", "100"], "(--limit): is for recorded traces"),
        ],
    )
    def test_wrong_questions_are_one_line(
        self, arguments: list[str], said: str, capsys: Any
    ) -> None:
        assert batchlab(["plan", "--preset", "chat", "-j", "1", *arguments]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("batchlab: ")
        assert said in error

    def test_too_few_requests_for_a_p99_say_how_many_it_takes(self, tmp_path: Path) -> None:
        trace = tmp_path / "few.csv"
        rows = "".join(f"{at},100,20\n" for at in range(60))
        trace.write_text("arrival,prompt,output\n" + rows)
        base = Scenario.of({"trace": {"file": str(trace)}})
        with pytest.raises(ValueError, match=r"60 requests are too few .* it takes 100 at least"):
            ask(base, "ttft p99 <= 1 s")

    def test_clients_set_their_own_pace(self) -> None:
        base = Scenario.of({"trace": {"preset": "chat", "clients": {"count": 4}}})
        with pytest.raises(ValueError, match="set the pace"):
            ask(base, "ttft p99 <= 1 s")

    def test_a_recording_is_replayed_faster(self, tmp_path: Path) -> None:
        trace = tmp_path / "day.csv"
        rows = "".join(f"{at * 0.5},200,{20 + at % 40}\n" for at in range(400))
        trace.write_text("arrival,prompt,output\n" + rows)
        base = Scenario.of({"trace": {"file": str(trace)}})
        found = ask(base, "ttft p90 <= 100 ms")
        assert found.load.kind == "recorded"
        assert found.load.rate == pytest.approx(2.0)
        assert found.best is not None
        assert found.best.recommended > 2.0

    def test_every_tenant_by_itself(self) -> None:
        table = {
            "preset": "multi-tenant", "rate": 5.0,
            "classes": [
                {"name": "short", "weight": 1.0, "prompt": {"kind": "fixed", "value": 100}},
                {"name": "long", "weight": 1.0, "prompt": {"kind": "fixed", "value": 3000}},
            ],
            "output": {"kind": "fixed", "value": 20},
        }  # fmt: skip
        found = ask(Scenario.of({"trace": table}), "ttft p90 <= 300 ms", by="tenant")
        assert found.confirmed is not None
        assert set(found.confirmed.fairness["tenant"]) == {"short", "long"}
        assert found.best is not None
        assert found.best.breaks is not None
        assert "(tenant long)" in found.best.breaks.term

    @pytest.mark.slow
    def test_attainment(self, tmp_path: Path) -> None:
        """95 % of requests wait less than 2 s."""
        found = ask(server(tmp_path), "queue max <= 2 s", QUICK, attainment=0.95)
        assert found.confirmed is not None
        assert found.confirmed.attainment >= 0.94


@pytest.mark.slow
def test_a_plan_that_was_killed_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(server(tmp_path, arrivals="constant").dump())

    def command(out: str, *more: str) -> list[str]:
        start = [sys.executable, "-m", "simulator.cli", "plan", str(path), "--sla"]
        return [*start, "queue mean <= 1 s", "-o", str(tmp_path / out), "-j", "1", *more]

    subprocess.run(command("whole"), check=True, capture_output=True)
    stopped = subprocess.Popen(
        command("stopped"), start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    kept = tmp_path / "stopped" / "plan.sqlite"
    while not (kept.exists() and kept.stat().st_size) and stopped.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)
    stopped.send_signal(signal.SIGKILL)
    stopped.wait()
    done = subprocess.run(command("stopped"), check=True, capture_output=True, text=True)
    assert "found in the store" in done.stderr
    whole, resumed = (tmp_path / at / "plan.json" for at in ("whole", "stopped"))
    assert whole.read_bytes() == resumed.read_bytes()
    assert json.loads(whole.read_text())["schema"] == 1


def test_runs_that_confirm_are_not_those_that_searched() -> None:
    assert Effort().most_runs < FRESH_SEED


def test_loads_keep_their_lengths_when_the_rate_changes() -> None:
    base = Scenario.of({"trace": {"preset": "chat"}})
    load = Load.of(base)
    slow, fast = (load.at(base, Probe(rate, 3, 50)).build().trace for rate in (1.0, 9.0))
    assert (slow.prompt == fast.prompt).all()
    assert (slow.output == fast.output).all()
