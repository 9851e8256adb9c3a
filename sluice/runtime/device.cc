#include "sluice/runtime/device.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sluice/common/errors.h"

namespace sluice {

c10::Device parse_device(std::string_view name, int index) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (name != "cuda") {
    throw InvalidArgument(
        fmt::format("run.device is \"{}\"; it must be \"cpu\" or \"cuda\"", name));
  }
  const int num_devices = c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)
                              ? c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount()
                              : 0;
  if (num_devices == 0) {
    throw InvalidArgument(
        "run.device is \"cuda\", but this torch sees no GPU; set run.device = \"cpu\", or build "
        "with "
        "TORCH_PYTHON naming a Python whose torch has CUDA");
  }
  if (index >= num_devices) {
    throw InvalidArgument(fmt::format(
        "process {} of this machine has no GPU: {} can be seen; start {} processes here (torchrun "
        "--nproc-per-node {})",
        index, num_devices, num_devices, num_devices));
  }
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

void use_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace sluice
