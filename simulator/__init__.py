"""The event loop, and what is asked of it. Start reading at `run.py`, then `replica.py`."""
