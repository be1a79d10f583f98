"""Who runs next. Imports `traces` only; each policy is one short file."""
