// world_check.h - what all ranks must have been started with alike. Free of torch.
#pragma once

#include "sluice/comm/transport.h"
#include "sluice/train/config.h"

namespace sluice {

/// Demands that the job has as many ranks as `config` needs and that every rank was given the same
/// settings. `launcher` names what started the job. All ranks call it together.
/// Throws: InvalidArgument on all ranks alike, naming the numbers or the first key that differs.
void check_world(Transport& world, const RunConfig& config, bool resume, const char* launcher);

}  // namespace sluice
