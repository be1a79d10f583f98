"""Result files of load generators -> `Benchmark`. `formats.py` is the table of those known."""

from traces.benchmarks.benchmark import Benchmark, Outcome
from traces.benchmarks.formats import FORMATS, Format, is_benchmark, read_benchmarks

__all__ = ["FORMATS", "Benchmark", "Format", "Outcome", "is_benchmark", "read_benchmarks"]
