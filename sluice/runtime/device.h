// device.h - the few things that differ between devices, through torch's device-neutral types.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace sluice {

/// "cpu" or "cuda" as a device; of "cuda" the GPU numbered `index`. All rank threads of a process
/// share it and its default stream, so that hand-overs need no events.
/// Throws: InvalidArgument for another name, or for a device this torch cannot use.
c10::Device parse_device(std::string_view name, int index = 0);

/// Makes `device` the calling thread's own; nothing on a CPU. Memory without a place of its own,
/// and the first use of a GPU, would otherwise be on GPU 0.
void use_device(c10::Device device);

/// Waits until the device has done what this thread gave it; nothing on a CPU. Makes measured spans
/// those of the work, not of its launch.
void synchronize(c10::Device device);

}  // namespace sluice
