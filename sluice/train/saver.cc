#include "sluice/train/saver.h"

#include <chrono>
#include <cstring>
#include <future>
#include <iterator>
#include <optional>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/tensors.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Gives bytes that belong to live tensors memory of their own.
void copy_bytes(std::vector<NamedBytes>& tensors) {
  for (NamedBytes& tensor : tensors) {
    const std::size_t size = tensor.bytes.size();
    const std::shared_ptr<std::byte[]> copy = std::make_shared_for_overwrite<std::byte[]>(size);
    if (size > 0) std::memcpy(copy.get(), tensor.bytes.data(), size);
    tensor.bytes = {copy.get(), size};
    tensor.owner = copy;
  }
}

void append(std::vector<NamedBytes>& all, std::vector<NamedBytes> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

struct Saver::Part {
  bool under_way = false;
  std::int64_t step = 0;            // of the checkpoint under way
  std::vector<NamedBytes> weights;  // collected, not yet handed to the writing
  std::vector<NamedBytes> optimizer;
  std::optional<CheckpointParts> together;  // several processes; before `written`, which uses it
  std::future<fs::path> written;            // valid: this rank writes, or has written
};

Saver::Saver(SaverOptions options, std::size_t num_ranks) : options_(std::move(options)) {
  for (std::size_t i = 0; i < num_ranks; ++i) parts_.push_back(std::make_unique<Part>());
}

// A checkpoint of one process that is being written when a run ends by an error becomes whole.
Saver::~Saver() = default;

/// What this rank writes of its parameters: whole ones, each on one rank.
void Saver::collect(Part& part, RankModel& rank, const RankLinks& links) const {
  const auto add = [&](const Parameter& parameter, const AdamState& state) {
    std::vector<NamedBytes> weights, optimizer;
    add_to_checkpoint(parameter, state, weights, optimizer);
    if (options_.background) {
      copy_bytes(weights);
      copy_bytes(optimizer);
    }
    append(part.weights, std::move(weights));
    append(part.optimizer, std::move(optimizer));
  };
  for (const TrainedParameter& trained : rank.trained()) {
    AdamState state = trained.state;
    if (rank.shard().count > 1) {
      state = gather_state(*trained.parameter, trained.state, links.replicas);
      if (links.replicas.rank() != 0) continue;
    }
    if (trained.parameter->spec.full_rows == 0) {
      add(*trained.parameter, state);
      continue;
    }
    const WholeMatrix whole = gather_rows(*trained.parameter, state, links.pipeline);
    if (links.pipeline.rank() == 0) add(whole.parameter, whole.state);
  }
}

void Saver::begin(std::size_t own, RankModel& rank, const RankLinks& links,
                  CheckpointContents contents) {
  Part& mine = part(own);
  SLUICE_CHECK(!mine.under_way, "step {} is still being saved", mine.step);
  mine.under_way = true;
  mine.step = contents.state.step;
  collect(mine, rank, links);
  const auto start = [&](auto work) {
    mine.written = std::async(options_.background ? std::launch::async : std::launch::deferred,
                              std::move(work));
    if (!options_.background) mine.written.wait();
  };
  if (parts_.size() != static_cast<std::size_t>(links.world.size())) {
    contents.weights = std::exchange(mine.weights, {});
    contents.optimizer = std::exchange(mine.optimizer, {});
    mine.together.emplace(options_.folder, std::move(contents), options_.keep, links.world);
    start([&together = *mine.together] {
      together.write();
      return fs::path();
    });
    return;
  }
  links.world.barrier();  // every rank has collected
  if (links.world.rank() == 0) {
    for (const auto& part : parts_) {
      append(contents.weights, std::exchange(part->weights, {}));
      append(contents.optimizer, std::exchange(part->optimizer, {}));
    }
    start([this, contents = std::move(contents)] {
      return write_checkpoint(options_.folder, contents, options_.keep);
    });
  }
  links.world.barrier();  // nobody changes the tensors before they are written or copied
}

bool Saver::under_way(std::size_t own) const { return part(own).under_way; }

bool Saver::writing(std::size_t own) const {
  const auto& written = part(own).written;
  return written.valid() &&
         written.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

SavedCheckpoint Saver::finish(std::size_t own, const RankLinks& links) {
  Part& mine = part(own);
  SLUICE_CHECK(mine.under_way, "nothing is being saved");
  SavedCheckpoint saved{.step = mine.step, .path = {}};
  if (mine.written.valid()) saved.path = mine.written.get();
  if (mine.together) {
    saved.path = mine.together->finish(links.world);
    mine.together.reset();
  } else {
    links.world.barrier();  // nobody goes on before it is whole
  }
  mine.under_way = false;
  return saved;
}

}  // namespace sluice
