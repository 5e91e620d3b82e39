"""A byte-level tokenizer for random checkpoints: any text round-trips, one token per byte.

Invariant: ids 0 … 255 are bytes, the special tokens follow; `tokenizer.json` needs no download.
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from splash_core.checkpoints.files import write_json

NUM_BYTES = 256
SPECIAL_TOKENS = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
"""Ids 256 … 260, in this order; `<|end|>` is EOS."""
EOS_TOKEN_ID = NUM_BYTES + SPECIAL_TOKENS.index("<|end|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_byte_tokenizer(out: Path, *, max_length: int) -> None:
    """A byte-level tokenizer without merges (any text round-trips), special tokens and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[0],
            "eos_token": SPECIAL_TOKENS[1],
            "additional_special_tokens": list(SPECIAL_TOKENS[2:]),
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_length,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
