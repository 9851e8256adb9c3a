#include "sluice/comm/transport.h"

#include <fmt/format.h>

namespace sluice {

std::string to_string(const MessageTag& tag) {
  return fmt::format("{} of stage {}, microbatch {}, slice {}",
                     tag.direction == Direction::kForward ? "activations" : "gradients", tag.stage,
                     tag.microbatch, tag.slice);
}

}  // namespace sluice
