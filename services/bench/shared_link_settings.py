"""Settings of `splash bench shared-link`. Invariant: what a result depends on is a field here."""

from dataclasses import dataclass

from splash_core.settings_base import COUNT, POSITIVE, Output, output, setting
from splash_core.units import KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinkSettings:
    """`splash bench shared-link`."""

    link_bps: float = setting(
        1.5e7, "Rate of the link between the hosts, each way.", unit="bytes/s", within=POSITIVE
    )
    layers: int = setting(16, "Layers of the model; a KV row is as wide as DeepSeek-V3's.", within=COUNT)
    page_size: int = setting(4, "Size of a KV page.", unit="tokens", within=COUNT)
    background: int = setting(2, "Streams that decode all the time.", within=COUNT)
    history: int = setting(160, "Length of their prompts.", unit="tokens", within=COUNT)
    prompt: int = setting(256, "Length of the other requests' prompts.", unit="tokens", within=COUNT)
    rate: float = setting(2.2, "Further requests, each handed over.", unit="1/s", within=POSITIVE)
    window_s: float = setting(60.0, "Length of each measurement.", unit="s", within=POSITIVE)
    layouts: str = setting("DP,CP", "Decode's layout, and the one that it switches to and back from.")
    switches: int = setting(1, "Switches in a measurement, evenly spread, and back after each.", within=COUNT)
    burst: int = setting(24, "Requests at once, for the rate of a link that is full.", within=COUNT)
    modes: str = setting("precopied,overlapped", "Modes of the switches.")
    arbiter: str = setting("on,off", "Whether the arbiter works, a list.")
    budget: float = setting(
        0.95, "Budget of handoffs with the arbiter, as a share of the link's rate.", within=POSITIVE
    )
    pause_s: float = setting(0.25, "Longest time that a switch holds handoffs back.", unit="s")
    precopy_bytes_per_step: int = setting(
        256 * KIB, "Most that a step copies ahead.", unit="bytes", within=COUNT
    )
    seed: int = setting(0, "Of weights, prompts and arrivals.")
    run_dir: str = setting("", "Folder for logs; default: a temporary one.")
    out: str = output(Output.FOLDER, "Folder for the JSON document, for example docs/results.")
    label: str = setting("", "A word for the document's name, beside benchmark, date and commit.")
    commit: str = setting("", "The commit that is measured; default: what git says.")
