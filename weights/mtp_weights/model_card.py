"""The model card (README.md) of a converted checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

_TARGET = """\
# {title}

{name}, converted to MLX by mtp. It is loaded by `mtp`, with a drafter where it has one, and by mlx-lm, without:

```sh
mtp generate --model PATH --prompt "Why is the sky blue?"
mlx_lm.generate --model PATH --prompt "Why is the sky blue?"
```

{facts}
"""
_DRAFTER = """\
# {title}

{name}, a multi-token-prediction drafter, converted to MLX by mtp. It drafts for the target it was trained on:

```sh
mtp generate --model TARGET --draft-model PATH --prompt "Why is the sky blue?"
```

Quantizing a drafter never changes what is written, only how many of its drafts are accepted: `mtp verify` measures it.

{facts}
"""


def model_card(config: Mapping[str, Any], name: str, facts: Sequence[str]) -> str:
    """Front matter that the hub understands, and a page for people.

    Args:
        config: of the converted checkpoint.
        name: of the source: a repository, which the front matter then links to, or a folder.
        facts: one line each.
    """
    family = str(config.get("model_type", "")).split("_")[0]
    front = ["---", "library_name: mlx", "tags:", "- mlx", *([f"- {family}"] if family else [])]
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        front.append(f"base_model: {name}")
    template = _DRAFTER if str(config.get("model_type", "")).endswith("assistant") else _TARGET
    title = name.rstrip("/").rsplit("/", 1)[-1]
    page = template.format(title=title, name=name, facts="\n".join(f"- {fact}" for fact in facts))
    return "\n".join([*front, "---", "", page])
