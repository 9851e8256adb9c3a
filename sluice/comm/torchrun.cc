#include "sluice/comm/torchrun.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "sluice/common/errors.h"

namespace sluice {
namespace {

std::string text(const GetVariable& get, const char* name) {
  const char* value = get(name);
  if (value != nullptr && *value != '\0') return value;
  throw InvalidArgument(fmt::format(
      "{} is not set, and other variables of torchrun are: start with torchrun "
      "--no-python --nproc-per-node N sluice train ..., or set all of RANK, WORLD_SIZE, "
      "LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
      name));
}

int number(const GetVariable& get, const char* name, int end) {
  const std::string value = text(get, name);
  int result = -1;
  const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || rest != value.data() + value.size() || result < 0 || result >= end) {
    throw InvalidArgument(
        fmt::format("{} is \"{}\"; it must be a number below {}", name, value, end));
  }
  return result;
}

std::string optional(const GetVariable& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

}  // namespace

TorchrunPlace torchrun_place(const GetVariable& get) {
  constexpr int kMost = 1 << 20;
  TorchrunPlace place;
  place.size = number(get, "WORLD_SIZE", kMost);
  place.rank = number(get, "RANK", place.size);
  place.local_rank = number(get, "LOCAL_RANK", kMost);
  place.host = text(get, "MASTER_ADDR");
  place.port = static_cast<std::uint16_t>(number(get, "MASTER_PORT", 1 << 16));
  // The launcher itself may serve a store there; every process then only connects.
  place.serves_store = place.rank == 0 && optional(get, "TORCHELASTIC_USE_AGENT_STORE") != "True";
  place.prefix = fmt::format("sluice/{}/{}/", optional(get, "TORCHELASTIC_RUN_ID"),
                             optional(get, "TORCHELASTIC_RESTART_COUNT"));
  return place;
}

TorchrunPlace torchrun_place() {
  return torchrun_place([](const char* name) { return std::getenv(name); });
}

}  // namespace sluice
