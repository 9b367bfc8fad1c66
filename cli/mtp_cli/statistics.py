"""Figures in words: the closing lines of a generation, a line on a turn of a chat, and on all of its turns."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtp_cli.conversation import Conversation, Turn
    from mtp_cli.pair import Pair
    from mtp_mlx import GenerationResponse, Speculation
    from mtp_mlx.exactness import ExactWay

WARM_UP, TIMED = 8, 24  # tokens of the measurement of plain speed: the first ones trace and warm caches


def closing_lines(response: "GenerationResponse", drafts: bool, cached: int) -> list[str]:
    """mlx-lm's closing lines, and one on speculation. `cached` tokens of the prompt were in the cache already."""
    from_cache = f", {cached} more from the cache" if cached else ""
    lines = [
        f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec{from_cache}",
        f"Generation: {response.generation_tokens} tokens, {response.generation_tps:.3f} tokens-per-sec",
        f"Peak memory: {response.peak_memory:.3f} GB",
    ]
    return [*lines, f"Speculation: {speculation_line(response.speculation)}"] if drafts else lines


def speculation_line(speculation: "Speculation") -> str:
    """Rounds, acceptance, and tokens a round in words."""
    if not speculation.drafted:
        return "nothing was drafted"
    return (
        f"{speculation.rounds} rounds, {speculation.acceptance_rate:.0%} of {speculation.drafted} drafts accepted "
        f"({by_position(speculation)} by position), {speculation.mean_acceptance_length:.2f} tokens a round"
    )


def by_position(speculation: "Speculation") -> str:
    return " · ".join(f"{rate:.0%}" for rate in speculation.acceptance_by_position)


@dataclass
class Speed:
    """Tokens and the seconds they took, from the first token of each reply to its last."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tps(self) -> float | None:
        """Tokens a second, None where nothing was measured."""
        return self.tokens / self.seconds if self.seconds else None

    def add(self, tokens: int, tps: float) -> None:
        if tps:
            self.tokens, self.seconds = self.tokens + tokens, self.seconds + tokens / tps


class SessionStatistics:
    """What all turns of a chat add up to.

    Attributes:
        plain: speed without drafts: of the turns that had none, and of `measure_plain`. Never estimated.
        drafting: speed of the turns with drafts.
        speculation: of all turns.
    """

    def __init__(self) -> None:
        from mtp_mlx import Speculation

        self.plain, self.drafting, self.speculation = Speed(), Speed(), Speculation()
        self.turns = self.tokens = 0

    def add(self, turn: "Turn") -> None:
        if turn.last is None:
            return
        self.turns, self.tokens = self.turns + 1, self.tokens + turn.last.generation_tokens
        speed = self.drafting if turn.drafting else self.plain
        speed.add(turn.last.generation_tokens - 1, turn.last.generation_tps)
        self.speculation += turn.last.speculation

    def measure_plain(self, pair: "Pair") -> None:
        """Decodes some tokens after a short prompt without drafts, and throws them away."""
        from mtp_mlx import generate_step
        from mtp_mlx.chat_template import render

        prompt = render(pair.tokenizer, [{"role": "user", "content": "Tell me a story."}])
        times = [time.perf_counter() for _ in generate_step(prompt, pair.model, max_tokens=WARM_UP + TIMED)]
        timed = times[WARM_UP - 1 :]
        self.plain.add(len(timed) - 1, (len(timed) - 1) / (timed[-1] - timed[0]))

    def speed_up(self, turn: "Turn") -> float | None:
        """How many times as fast as plain decoding a turn was; None where either was not measured."""
        if self.plain.tps is None or not turn.drafting or turn.last is None or not turn.last.generation_tps:
            return None
        return turn.last.generation_tps / self.plain.tps


def turn_line(turn: "Turn", session: SessionStatistics, max_tokens: int) -> str:
    """One line on a turn."""
    last = turn.last
    if last is None:
        return "stopped before the reply began; the message is not part of the conversation"
    parts = [f"{last.generation_tokens} tokens"]
    if last.generation_tokens > 1:
        parts.append(f"{last.generation_tps:.1f} tok/s")
    if (speed_up := session.speed_up(turn)) is not None:
        parts.append(f"{speed_up:.2f}× plain")
    if last.speculation.drafted:
        parts.append(f"{last.speculation.mean_acceptance_length:.2f} tokens a round")
    parts.append(f"prompt {turn.new} new + {turn.kept} kept")
    if turn.stopped:
        parts.append("stopped")
    elif last.finish_reason == "length":
        cut = last.generation_tokens == max_tokens
        parts.append(f"cut off at --max-tokens {max_tokens}" if cut else "the context is full, /clear begins anew")
    return " · ".join(parts)


def session_lines(session: SessionStatistics, conversation: "Conversation") -> list[str]:
    """What /stats shows."""
    cache, speculation = conversation.cache, session.speculation
    plain = "not measured (/stats plain does it)" if session.plain.tps is None else f"{session.plain.tps:.1f} tok/s"
    lines = [
        f"turns         {session.turns}, {session.tokens} tokens",
        f"context       {len(cache.ids)} of {conversation.pair.model.config.max_position_embeddings} tokens, "
        f"{cache.cache.nbytes / 1e6:.1f} MB of keys and values",
        f"plain         {plain}",
    ]
    if session.drafting.tps is not None:
        ratio = "" if session.plain.tps is None else f", {session.drafting.tps / session.plain.tps:.2f}× plain"
        lines.append(f"with drafts   {session.drafting.tps:.1f} tok/s{ratio}")
    if speculation.drafted:
        lines.append(f"drafts        {speculation.acceptance_rate:.0%} of {speculation.drafted} accepted")
        lines.append(f"by position   {by_position(speculation)}")
        lines.append(f"a round       {speculation.mean_acceptance_length:.2f} tokens, {speculation.rounds} rounds")
    return lines


def exact_line(way: "ExactWay") -> str:
    """What `--exact` does on this machine, and what it costs."""
    limit = f"at most {way.widths.most - 1} drafts a round"
    if way.is_free:
        return f"exact to the bit: all rows are computed as one row is, {limit}"
    return (
        f"exact at verification width: plain decoding computes {way.widths.plain} rows for one "
        f"and takes {way.price:.2f} times as long, {limit}"
    )
