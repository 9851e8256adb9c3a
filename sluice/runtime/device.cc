#include "sluice/runtime/device.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sluice/common/errors.h"

namespace sluice {

c10::Device parse_device(std::string_view name) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (name != "cuda") {
    throw InvalidArgument(
        fmt::format("run.device is \"{}\"; it must be \"cpu\" or \"cuda\"", name));
  }
  const c10::Device device(c10::DeviceType::CUDA, 0);
  if (!c10::impl::hasDeviceGuardImpl(device.type()) ||
      c10::impl::VirtualGuardImpl(device.type()).deviceCount() == 0) {
    throw InvalidArgument(
        "run.device is \"cuda\", but this torch sees no GPU; set run.device = \"cpu\", or build "
        "with "
        "TORCH_PYTHON naming a Python whose torch has CUDA");
  }
  return device;
}

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace sluice
