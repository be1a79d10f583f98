"""`python -m simulator.cli` is the command `batchlab`."""

from simulator.cli import main

if __name__ == "__main__":
    main()
