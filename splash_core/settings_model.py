"""Settings that every process of a deployment has."""

from dataclasses import dataclass

from splash_core.settings_base import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What every process of a deployment must agree on."""

    model: str = setting("", "Folder of a checkpoint in Hugging Face format, or the name of a fetched model.")
    load_format: str = setting(
        "auto",
        "Weights: auto reads the checkpoint's safetensors; dummy makes random ones, alike in all groups, "
        "for which a folder with config.json and tokenizer is enough.",
        choices=("auto", "dummy"),
    )
    dummy_seed: int = setting(0, "Seed of dummy weights.")
    served_model_name: str = setting("", "The name clients use; default: the last part of --model.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    log_format: str = setting("json", "How logs are written.", choices=("json", "plain"))
    run_dir: str = setting(
        "", "Folder for logs and sockets; default: a new one under $XDG_STATE_HOME/splash."
    )
