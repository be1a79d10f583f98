"""What arrives, and what a run leaves behind. Imports nothing of ours."""
