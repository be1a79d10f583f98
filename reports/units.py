"""Numbers as people read them: three digits, a unit, and a dash where there is none."""

from __future__ import annotations

NONE = "–"
"""What an undefined value looks like."""


def seconds(value: float | None) -> str:
    """430 µs, 12.5 ms, 1.23 s, 3,600 s."""
    if value is None:
        return NONE
    if value == 0:
        return "0 s"
    # The unit follows the rounded value, so that 999.9 ms is 1 s and not 1000 ms.
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if value * factor < 999.5:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value)} s"


def change(value: float | None) -> str:
    """A difference of times: +12.5 ms, −1.23 s."""
    if value is None:
        return NONE
    return f"{'−' if value < 0 else '+'}{seconds(abs(value))}" if value else "0 s"


def share(value: float | None) -> str:
    """A share between 0 and 1 in percent; a trace of something is not nothing."""
    if value is None:
        return NONE
    if 0 < value < 0.0005:
        return "<0.1 %"
    if value < 1 <= round(value, 3):
        return "99.9 %"
    return f"{value * 100:.1f} %"


def number(value: float | None) -> str:
    """1,234 or 12.3 or 0.123."""
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else digits(value)


def digits(value: float) -> str:
    """Three significant digits at least, thousands grouped, no exponent."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.995 or size == 0 else f"{value:.3g}"
