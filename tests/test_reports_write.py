"""What lands on disk: complete, the same every time, or a clear refusal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reports_walk import walk

from reports.write import write_comparison, write_run
from traces.sla import Sla

SLA = Sla.parse("ttft p99 <= 8 s")


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_run_on_disk_is_complete_and_the_same_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(walk(3, requests=20)[0], tmp_path / name, sla=SLA, command="batchlab simulate")
    one = contents(tmp_path / "one")
    assert list(one) == [
        "figures/batch.png", "figures/latency.png", "figures/slots.png", "figures/timeline.png",
        "report.html", "requests.csv", "steps.csv", "summary.json",
    ]  # fmt: skip
    assert one == contents(tmp_path / "two")
    assert json.loads(one["summary.json"])["schema"] == 1


def test_csv_is_in_seconds_and_agrees_with_what_clients_saw(tmp_path: Path) -> None:
    records, seen = walk(3, requests=20)
    summary = write_run(records, tmp_path)
    rows = pd.read_csv(tmp_path / "requests.csv", keep_default_na=False, na_values=[""])
    for row, one in zip(rows.itertuples(), seen, strict=True):
        ttft = (one.tokens[0] - one.arrival) / 1e12 if one.tokens else np.nan
        assert row.ttft_s == pytest.approx(ttft, abs=1e-9, nan_ok=True)
        assert row.itl_max_s == pytest.approx(
            max(one.gaps) / 1e12 if one.gaps else np.nan, abs=1e-9, nan_ok=True
        )
    waits = rows.filter(like="wait_").sum(axis=1)
    scheduled = rows["first_scheduled_s"].notna()
    assert waits[scheduled].to_numpy() == pytest.approx(rows["queue_s"][scheduled].to_numpy())
    steps = pd.read_csv(tmp_path / "steps.csv")
    assert len(steps) == summary["steps"]["count"]
    assert steps["duration_s"].sum() == pytest.approx(records.steps["duration"].sum() / 1e12)


def test_a_comparison_on_disk(tmp_path: Path) -> None:
    runs = {"static": walk(1, requests=20)[0], "chunked": walk(2, requests=20)[0]}
    summaries = write_comparison(runs, tmp_path, sla=SLA)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert read == {"schema": 1, "runs": json.loads(json.dumps(summaries))}
    assert list(pd.read_csv(tmp_path / "summary.csv")["run"]) == ["static", "chunked"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    records, _ = walk(3)
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(OSError, match=f"{blocked}: cannot make the folder: file exists"):
        write_run(records, blocked)
    with pytest.raises(OSError, match="cannot make the folder: not a directory"):
        write_run(records, blocked / "below")
    (tmp_path / "out" / "summary.json").mkdir(parents=True)
    with pytest.raises(OSError, match=r"summary\.json: cannot write: is a directory"):
        write_run(records, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))
