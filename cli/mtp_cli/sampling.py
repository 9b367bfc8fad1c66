"""How the next token is drawn, as options of the command line and as settings of a chat."""

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mtp_mlx.decoding.sampling import LogitsProcessor, Sampling
    from mtp_mlx.models.target import Target

GREEDY = "greedy"
LENIENT_LABEL = "lenient: output may differ from the target's"
_NAMES = {"temp": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p", "seed": "seed"}
_WHOLE = ("top_k", "seed", "repetition_context_size")


@dataclass(frozen=True)
class SamplingOptions:
    """The values of the options of the same names; None where the model's own generation_config decides."""

    temp: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens_to_keep: int = 1
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_special_tokens: tuple[int, ...] = ()
    seed: int | None = None
    draft_temp: float | None = None
    lenient: bool = False
    repetition_penalty: float | None = None
    repetition_context_size: int = 20
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> "SamplingOptions":
        """From all options of a command by their names, of which it takes its own.

        Raises:
            MisuseError: a value is out of its range.
        """
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values}).check()

    def check(self) -> "SamplingOptions":
        """These options, if each value is one that can be.

        Raises:
            MisuseError: a value is out of its range.
        """
        self.sampler()
        self.processors()
        return self

    def of_model(self, model: "Target", tokenizer: "TokenizerWrapper") -> "SamplingOptions":
        """These options, with the model's own values where none were given.

        XTC leaves line breaks and stop ids alone, as in mlx-lm: without them a text would never end.
        """
        from mtp_mlx.sampler import model_defaults

        given = {name for name, value in asdict(self).items() if value is not None}
        own = {name: value for name, value in model_defaults(model).items() if name not in given}
        special = (*tokenizer.encode("\n", add_special_tokens=False), *sorted(tokenizer.eos_token_ids))
        return replace(self, **own, xtc_special_tokens=special if self.xtc_probability else ())

    def sampler(self) -> "Sampling":
        """What draws tokens this way: greedy where there is no temperature.

        Raises:
            MisuseError: a value is out of its range.
        """
        from mtp_mlx.sampler import make_sampler

        return make_sampler(
            temp=self.temp or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            min_p=self.min_p or 0.0,
            min_tokens_to_keep=self.min_tokens_to_keep,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            xtc_special_tokens=self.xtc_special_tokens,
            seed=self.seed,
            draft_temp=self.draft_temp,
            lenient=self.lenient,
        )

    def processors(self) -> "list[LogitsProcessor]":
        """mlx-lm's penalties.

        Raises:
            MisuseError: a value is out of its range.
        """
        if self.repetition_penalty is not None and not self.repetition_penalty > 0:
            raise MisuseError("the repetition penalty must be positive", given=self.repetition_penalty)
        if self.repetition_context_size < 1:
            raise MisuseError("the repetition context must be positive", given=self.repetition_context_size)
        from mlx_lm.sample_utils import make_logits_processors

        size = self.repetition_context_size
        return make_logits_processors(
            repetition_penalty=self.repetition_penalty,
            repetition_context_size=size,
            presence_penalty=self.presence_penalty,
            presence_context_size=size,
            frequency_penalty=self.frequency_penalty,
            frequency_context_size=size,
        )

    def arguments(self) -> dict[str, Any]:
        """The arguments of `stream_generate`."""
        return {"sampler": self.sampler(), "logits_processors": self.processors()}

    def with_text(self, name: str, text: str) -> "SamplingOptions":
        """These options with another value, as a person writes it."""
        convert = int if name in _WHOLE else float
        try:
            return replace(self, **{name: convert(text)}).check()
        except ValueError as error:
            kind = "a whole number" if convert is int else "a number"
            raise MisuseError(f"{name} must be {kind}", given=text) from error

    def describe(self) -> str:
        """In words, for people: "greedy", or the temperature and the filters."""
        parts = [GREEDY]
        if self.temp:
            values = asdict(self)
            parts = [f"{name} {values[field]:g}" for field, name in _NAMES.items() if values[field]]
        return ", ".join([*parts, LENIENT_LABEL] if self.lenient else parts)
