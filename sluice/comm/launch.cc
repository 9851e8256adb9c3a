#include "sluice/comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace sluice {
namespace {

std::optional<int> number(const GetVariable& get, const char* name) {
  const char* text = get(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

struct Variables {
  Launch::Kind kind;
  const char* launcher;
  const char* rank;
  const char* size;
  // RANK and WORLD_SIZE are common words: one more variable must be there.
  const char* needs = nullptr;
};

// torchrun starts its processes itself, whatever started it; a torchrun of each node by srun is
// common. srun names the step's size for itself; below mpirun it would be that of mpirun's own
// daemons. torchrun's variables set by hand come last: they may be in the environment of any job.
constexpr Variables kKnown[] = {
    {Launch::Kind::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {Launch::Kind::kMpi, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {Launch::Kind::kMpi, "mpirun", "PMI_RANK", "PMI_SIZE"},
    {Launch::Kind::kMpi, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {Launch::Kind::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR"},
};

}  // namespace

std::optional<Launch> detect_launch(const GetVariable& get) {
  for (const Variables& known : kKnown) {
    const auto rank = number(get, known.rank), size = number(get, known.size);
    if (known.needs != nullptr && get(known.needs) == nullptr) continue;
    if (rank && size && *rank >= 0 && *rank < *size) {
      return Launch{known.kind, known.launcher, *rank, *size};
    }
  }
  return std::nullopt;
}

std::optional<Launch> detect_launch() {
  return detect_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace sluice
