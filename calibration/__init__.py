"""How long a step takes. Imports nothing of ours; the only folder that knows torch."""
