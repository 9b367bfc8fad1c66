"""The model card (README.md) of a trained drafter."""

from typing import Any

from mtp_mlx.training.settings import Settings

_CARD = """\
---
library_name: mlx
tags:
- mlx
- speculative-decoding
---
# A drafter for {target}

A multi-token-prediction drafter, trained by mtp on the frozen target. It changes no output, only the speed:

```sh
mtp generate --model TARGET --draft-model PATH --prompt "Why is the sky blue?"
```

- target: {target}
- started from: {start}
- training: {iters} steps of {batch_size} rows of {length} tokens, over {tokens:,} tokens of text ({way})
- head: {head}
"""


def training_card(target: str, init: str | None, settings: Settings, tokens: int, config: dict[str, Any]) -> str:
    """Says what the drafter is for and how it came to be.

    Args:
        tokens: of different text in the training.
        config: config.json of the drafter.
    """
    clusters = config.get("num_centroids") if config.get("use_ordered_embeddings") else None
    return _CARD.format(
        target=target or "a target",
        start=init or "the target's embedding",
        iters=settings.iters,
        batch_size=settings.batch_size,
        length=settings.max_seq_length,
        tokens=tokens,
        way=settings.self_distill,
        head="full" if clusters is None else f"{clusters} clusters",
    )
