"""`python -m simulator.cli` is the command `batchlab`."""

from simulator.command import main

if __name__ == "__main__":
    main()
