"""Recorded formats to `Trace`: one file a family, one table of dialects."""
