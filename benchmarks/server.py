"""The mock server on the real clock: does it keep time, and does measuring it give its profile?

    python benchmarks/server.py [--seconds 20] [--profile NAME] [--measure] [--slow 4]

A server in a process of its own on 127.0.0.1 gets a Poisson load of about 64 streams at once;
first tokens and gaps are set against `simulate` of the same requests. With `--measure` it is then
measured from outside and the fit compared with the profile served, all its times `--slow` times
as long so that the timers of a shared machine matter less. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from calibration.fit import fit_steps
from calibration.openai_client import Client, ServerError
from calibration.profile import Profile, load_profile, save_profile
from calibration.raw import read_raw, shape_of
from calibration.server import ServerMeasurement, ServerMeter
from calibration.step_time import Predicted, StepTime
from policies.chunked import Chunked
from reports.latencies import Latencies
from simulator.engine import Engine
from simulator.run import simulate
from traces.synthesize import Workload, synthesize
from traces.trace import PS_PER_S, Trace

STREAMS = 64
OUTPUT = 256
PROMPT = 200


class Served:
    """A mock server in a process of its own."""

    def __init__(self, profile: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "simulator.cli", "mock-server", "--profile", str(profile)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Served:
        began = monotonic()
        while monotonic() - began < 60:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                sleep(0.2)
        self.process.kill()
        raise SystemExit("the mock server did not start")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)

    def metrics(self) -> dict[str, float]:
        """What it says of itself: values by name."""
        import httpx

        text = httpx.get(f"{self.url}/metrics").text
        rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, _, value in rows}


def load(step_time: StepTime, seconds: float) -> Trace:
    """Poisson requests that keep about `STREAMS` streams going."""
    step = step_time.price(shape_of([(1, PROMPT + OUTPUT // 2)] * STREAMS, 16)) / PS_PER_S
    rate = STREAMS / (step * OUTPUT)
    workload = Workload.from_table(
        {
            "rate": rate,
            "requests": max(8, round(rate * seconds)),
            "prompt": {"kind": "fixed", "value": PROMPT},
            "output": {"kind": "fixed", "value": OUTPUT},
        }
    )
    return synthesize(workload, 1)


async def send(url: str, trace: Trace) -> tuple[list[float], list[float]]:
    """TTFT and TPOT of each request over HTTP, seconds."""
    rows = list(trace.requests())
    async with Client(url, "mock", most=len(rows) + 4, connections=4 * STREAMS) as client:
        await client.ask([1] * 8, 2, 8)
        now = asyncio.get_running_loop().time
        begin = now()

        async def one(arrival: float, prompt: int, output: int) -> tuple[float, float]:
            await asyncio.sleep(begin + arrival - now())
            answer = await client.ask([1] * prompt, output, prompt)
            spread = answer.times_s[-1] - answer.times_s[0]
            return answer.times_s[0] - begin - arrival, spread / (output - 1)

        found = await asyncio.gather(
            *(one(row.arrival / PS_PER_S, row.prompt, row.output) for row in rows)
        )
    return [first for first, _ in found], [gap for _, gap in found]


def keep_time(profile: Profile, file: Path, seconds: float) -> dict[str, Any]:
    """Over HTTP against simulated."""
    step_time = profile.step_time()
    trace = load(step_time, seconds)
    engine = Engine(kv_tokens=profile.pool_tokens)
    run = Latencies(simulate(trace, Chunked(), engine, Predicted(step_time)))
    with Served(file) as served:
        ttft, tpot = asyncio.run(send(served.url, trace))
        says = served.metrics()
    found: dict[str, Any] = {
        "requests": len(trace),
        "worst_behind_ms": says["batchlab:worst_behind_seconds"] * 1e3,
    }
    # The client shares the machine: the server's own clock shows what is not the client's.
    for name, metric in (("ttft", "time_to_first_token"), ("tpot", "inter_token_latency")):
        total, count = (says[f"vllm:{metric}_seconds_{part}"] for part in ("sum", "count"))
        found[f"{name}_mean_served_ms"] = total / count * 1e3
    for name, real, ours in (("ttft", ttft, run.ttft), ("tpot", tpot, run.tpot)):
        simulated = ours / PS_PER_S
        for statistic, of in (("mean", np.mean), ("p50", np.median)):
            found[f"{name}_{statistic}_ms"] = float(of(real)) * 1e3
            found[f"{name}_{statistic}_simulated_ms"] = float(of(simulated)) * 1e3
    return found


def recover(profile: Profile, file: Path) -> dict[str, Any]:
    """Measured from outside, fitted, against what was served."""

    async def measure(url: str, path: Path) -> None:
        settings = ServerMeasurement(concurrency=8, longest=2048, passes=2, seed=1, rest_s=0.05)
        async with Client(url, "mock", most=settings.max_requests) as client:
            report = await ServerMeter(client, settings).measure(path)
            print(f"{report.requests} requests, {report.delay_s * 1e3:.2f} ms subtracted")

    with tempfile.TemporaryDirectory() as folder, Served(file) as served:
        path = Path(folder) / "raw.csv"
        asyncio.run(measure(served.url, path))
        found = fit_steps(read_raw(path).rows).cost.step_time()
    real = profile.step_time()

    def of(price: StepTime, *rows: tuple[int, int]) -> int:
        return price.price(shape_of(rows, 16))

    def slope(price: StepTime) -> float:
        return (of(price, (2000, 0)) - of(price, (200, 0))) / 1800

    return {
        "prefill_per_token_error": slope(found) / slope(real) - 1,
        "decode_step_1_error": of(found, (1, 500)) / of(real, (1, 500)) - 1,
        "decode_step_8_error": of(found, *[(1, 500)] * 8) / of(real, *[(1, 500)] * 8) - 1,
        "overhead_error": of(found, (16, 0)) / of(real, (16, 0)) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--profile", default="h100-sxm_llama3.1-8b_bf16")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--slow", type=float, default=4.0)
    options = parser.parse_args()
    profile = load_profile(options.profile)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "served.json"
        save_profile(profile, file)
        figures = keep_time(profile, file, options.seconds)
        if options.measure:
            slowed = profile.model_copy(update={"cost": profile.cost.scaled(options.slow)})
            save_profile(slowed, file)
            try:
                figures |= recover(slowed, file)
            except ServerError as error:
                print(error)
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}" if isinstance(value, float) else f"{name:28} {value:10}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
