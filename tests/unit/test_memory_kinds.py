"""Kinds of memory: one table goes from a device to its memory and its driver, for whoever asks."""

import importlib
from dataclasses import fields

import pytest

from splash_core.config import GroupSettings
from splash_core.errors import ConfigError
from splash_core.leader.reaching import transport_options
from splash_core.transport import kinds
from splash_core.transport.drivers import open_driver
from splash_core.transport.kinds import CUDA, HOST, KINDS, DeviceKind, device_kind, memory_kind
from tests.support.fake_device import FAKE, FakeDriver


def test_every_device_that_can_be_asked_for_has_its_memory() -> None:
    [device] = [field for field in fields(GroupSettings) if field.name == "device"]
    assert device.metadata["choices"] == tuple(KINDS)
    for name in KINDS:
        assert transport_options(GroupSettings(device=name)).memory == memory_kind(name).name
    assert (device_kind("cpu"), device_kind("cuda")) == (None, CUDA)


def test_every_driver_is_where_the_table_says_and_of_its_kind() -> None:
    for kind in KINDS.values():
        if isinstance(kind, DeviceKind):
            module, _, name = kind.driver.partition(":")
            assert getattr(importlib.import_module(module), name).kind is kind


def test_a_further_kind_is_one_entry_and_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "KINDS", {**KINDS, "fake": FAKE})
    assert transport_options(GroupSettings(device="fake")).speaks == "shm fake 3"
    kind = device_kind("fake")
    assert kind is not None
    driver = open_driver(kind, 5)
    assert isinstance(driver, FakeDriver)
    assert driver.index == 5
    assert transport_options(GroupSettings()).memory == HOST.name


def test_a_device_that_nobody_serves_is_named() -> None:
    with pytest.raises(ConfigError, match="--device 'abacus' is not one of cpu, cuda"):
        memory_kind("abacus")
