#include "sluice/comm/cuda_api.h"

#include <array>
#include <cstdlib>

#include "sluice/comm/shared_library.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

constexpr int kNotReady = 600;              // cudaErrorNotReady
constexpr unsigned kStreamNonBlocking = 1;  // cudaStreamNonBlocking
constexpr unsigned kDisableTiming = 2;      // cudaEventDisableTiming

}  // namespace

void CudaApi::check(int error, const char* call) const {
  if (error == 0) return;
  throw CommError(fmt::format("{} failed: {}", call, get_error_string(error)));
}

int CudaApi::num_devices() const {
  int count = 0;
  return get_device_count(&count) == 0 ? count : 0;
}

std::string CudaApi::bus_id(int device) const {
  std::array<char, 64> text{};
  check(device_get_pci_bus_id(text.data(), static_cast<int>(text.size()), device),
        "cudaDeviceGetPCIBusId");
  return text.data();
}

void CudaApi::use_device(int device) const { check(set_device(device), "cudaSetDevice"); }

void* CudaApi::make_stream() const {
  void* stream = nullptr;
  check(stream_create_with_flags(&stream, kStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void* CudaApi::make_event() const {
  void* event = nullptr;
  check(event_create_with_flags(&event, kDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

bool CudaApi::is_done(void* event) const {
  const int error = event_query(event);
  if (error == kNotReady) return false;
  check(error, "cudaEventQuery");
  return true;
}

std::shared_ptr<const CudaApi> load_cuda(const std::string& name) {
  const char* variable = std::getenv("SLUICE_CUDART_LIBRARY");
  const std::string path = name.empty() && variable != nullptr ? variable : name;
  try {
    const SharedLibrary library =
        path.empty() ? SharedLibrary::program() : SharedLibrary::open(path);
    auto api = std::make_shared<CudaApi>();
    library.get("cudaSetDevice", api->set_device);
    library.get("cudaGetDeviceCount", api->get_device_count);
    library.get("cudaDeviceGetPCIBusId", api->device_get_pci_bus_id);
    library.get("cudaStreamCreateWithFlags", api->stream_create_with_flags);
    library.get("cudaStreamDestroy", api->stream_destroy);
    library.get("cudaStreamWaitEvent", api->stream_wait_event);
    library.get("cudaEventCreateWithFlags", api->event_create_with_flags);
    library.get("cudaEventDestroy", api->event_destroy);
    library.get("cudaEventRecord", api->event_record);
    library.get("cudaEventQuery", api->event_query);
    library.get("cudaHostAlloc", api->host_alloc);
    library.get("cudaFreeHost", api->free_host);
    library.get("cudaGetErrorString", api->get_error_string);
    return api;
  } catch (const Failure& failure) {
    throw InvalidArgument(
        fmt::format("run.transport = \"nccl\": CUDA's runtime is not there ({}); build with "
                    "TORCH_PYTHON naming a Python whose torch has CUDA, or start with mpirun",
                    failure.what()));
  }
}

}  // namespace sluice
