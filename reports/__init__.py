"""Records become numbers, tables and pictures. Imports `traces` only."""
