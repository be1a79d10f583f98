"""Chained identity of KV blocks: equal iff all tokens from the start up to the block's end are.

Identities are 64-bit hashes of integers (which Python hashes the same in every process), as in
real engines; two different prefixes collide with a probability of about n² / 2⁶⁴.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.sequence import Sequence
from traces.trace import Segment, Trace


def pieces(seq: Sequence, first: int, last: int) -> list[tuple[int, int, int]]:
    """(stream, start, tokens) runs that make up positions first … last - 1, merged.

    Positions that the trace gives no identity are the request's own: stream -(index + 1), with
    offset 0 at its first output token, so that a later turn can refer to what it generated.
    """
    runs: list[tuple[int, int, int]] = []
    position = 0
    own = Segment(-(seq.index + 1), 0, 0)
    for segment in (*seq.content, None):
        if segment is None:
            begin, end = max(first, position), last
            stream, offset = own.stream, begin - seq.prompt
        else:
            begin, end = max(first, position), min(last, position + segment.tokens)
            stream, offset = segment.stream, segment.start + begin - position
            position += segment.tokens
        if begin >= end:
            continue
        if runs and runs[-1][0] == stream and runs[-1][1] + runs[-1][2] == offset:
            runs[-1] = (stream, runs[-1][1], runs[-1][2] + end - begin)
        else:
            runs.append((stream, offset, end - begin))
    return runs


def extend(seq: Sequence, blocks: int, block_size: int) -> None:
    """Work out the chain of `seq` up to `blocks` full blocks; their tokens must be known."""
    chain = seq.chain
    while len(chain) < blocks:
        at = len(chain) * block_size
        parent = chain[-1] if chain else 0
        run = pieces(seq, at, at + block_size)
        # hash(-1) is hash(-2) in Python: negative numbers move one down to stay apart.
        numbers = (n if n >= 0 else n - 1 for piece in run for n in piece)
        chain.append(hash((parent, *numbers)))


def prefix(seq: Sequence, block_size: int) -> Iterator[int]:
    """Identities that may hit, one by one: full blocks, but never the whole sequence (A12)."""
    for block in range((seq.known - 1) // block_size):
        extend(seq, block + 1, block_size)
        yield seq.chain[block]


def shared_by_most(trace: Trace, tokens: int, block_size: int) -> tuple[int, ...]:
    """Identities of the full blocks among the first `tokens` tokens that most requests share.

    Raises ValueError where no two begin alike for so long.
    """
    alike: dict[tuple[tuple[int, int, int], ...], list[Sequence]] = {}
    for request in trace.requests():
        if request.prompt >= tokens:
            seq = Sequence(request, declared=0, goal=1, lane="")
            alike.setdefault(tuple(pieces(seq, 0, tokens)), []).append(seq)
    most = max(alike.values(), key=len, default=[])
    if len(most) < 2:
        raise ValueError(
            f"engine.pinned_tokens = {tokens}: no two requests begin with the same {tokens} tokens"
        )
    extend(most[0], tokens // block_size, block_size)
    return tuple(most[0].chain)
