"""The command `batchlab`. Nothing heavy is imported before Ctrl-C is minded."""

import sys


def main() -> None:
    """End the process with the exit code of the command line."""
    try:
        from simulator.cli import run

        code = run()
    except KeyboardInterrupt:
        print("batchlab: interrupted; nothing was written", file=sys.stderr)
        code = 130
    sys.exit(code)
