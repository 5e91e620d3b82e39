"""CUDA's driver as arenas use it, without a GPU: what it refuses names the remedy, and nothing leaks."""

import pytest

from splash_core.errors import ConfigError
from splash_core.transport.cuda_driver import CudaDriver
from splash_core.transport.cuda_library import CudaLibrary
from splash_core.transport.device_memory import DeviceMemory
from splash_core.transport.driver_errors import DriverError
from splash_core.transport.memory import Copy
from tests.support.scripted_cuda import GRANULE, ScriptedCuda, is_open

OUT_OF_MEMORY, INVALID_DEVICE, NOT_READY, NOT_SUPPORTED = 2, 101, 600, 801


@pytest.fixture
def cuda() -> ScriptedCuda:
    return ScriptedCuda()


def test_a_gpu_that_is_not_there_is_a_setting_error(cuda: ScriptedCuda) -> None:
    cuda.failing["cuDeviceGet"] = INVALID_DEVICE
    with pytest.raises(ConfigError, match=r"GPU 7 .*cuDeviceGet: CUDA_ERROR_INVALID_DEVICE \(101\).*--gpus"):
        CudaDriver(7, cuda)


@pytest.mark.parametrize(
    ("attribute", "words"), [(102, "no virtual memory management"), (103, "no memory as file descriptors")]
)
def test_a_gpu_that_cannot_share_memory_is_refused_by_what_it_lacks(
    cuda: ScriptedCuda, attribute: int, words: str
) -> None:
    cuda.lacking.add(attribute)
    with pytest.raises(ConfigError, match=words):
        CudaDriver(0, cuda)
    assert "cuStreamCreate" not in cuda.asked


def test_a_library_that_lacks_a_function_is_too_old() -> None:
    with pytest.raises(ConfigError, match="not an older one"):
        CudaLibrary("libc.so.6")
    with pytest.raises(ConfigError, match="needs NVIDIA's driver"):
        CudaLibrary("libnothere.so.1")


def test_less_is_the_remedy_where_memory_is_short_and_only_there(cuda: ScriptedCuda) -> None:
    driver = CudaDriver(0, cuda)
    cuda.failing["cuMemCreate"] = OUT_OF_MEMORY
    with pytest.raises(ConfigError, match=r"CUDA_ERROR_OUT_OF_MEMORY \(2\); give the group less"):
        DeviceMemory(GRANULE, driver)
    cuda.failing = {"cuMemExportToShareableHandle": NOT_SUPPORTED}
    with pytest.raises(ConfigError, match=r"cuMemExportToShareableHandle: .*\(801\); check .*`nvidia-smi`"):
        DeviceMemory(GRANULE, driver)


@pytest.mark.parametrize("call", ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_memory_that_cannot_be_mapped_leaves_no_descriptor_and_no_allocation(
    cuda: ScriptedCuda, call: str
) -> None:
    driver = CudaDriver(0, cuda)
    cuda.failing[call] = NOT_SUPPORTED
    with pytest.raises(DriverError, match=call):
        driver.allocate(5)
    [fd] = cuda.fds
    assert not is_open(fd)
    assert cuda.asked.count("cuMemRelease") == 1
    assert cuda.asked.count("cuMemAddressFree") == (call != "cuMemAddressReserve")


def test_an_event_is_asked_and_never_waited_for(cuda: ScriptedCuda) -> None:
    driver = CudaDriver(0, cuda)
    cuda.failing["cuEventQuery"] = NOT_READY
    landing = driver.copy([Copy(0, 0, 1)])
    assert not landing.over
    assert "cuEventDestroy_v2" not in cuda.asked
    cuda.failing.clear()
    assert landing.over
    assert landing.over
    assert cuda.asked.count("cuEventDestroy_v2") == 1
    assert not any("Synchronize" in call for call in cuda.asked)


def test_a_copy_that_has_failed_says_so(cuda: ScriptedCuda) -> None:
    landing = CudaDriver(0, cuda).copy([Copy(0, 0, 1)])
    cuda.failing["cuEventQuery"] = 700
    with pytest.raises(DriverError, match=r"cuEventQuery: .*\(700\)"):
        _ = landing.over
