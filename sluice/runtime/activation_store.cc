#include "sluice/runtime/activation_store.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/program/pass_grid.h"
#include "sluice/runtime/allocator.h"
#include "sluice/runtime/clock.h"
#include "sluice/runtime/copy_stream.h"

namespace sluice {
namespace {

const char* name_of(ActivationState state) {
  switch (state) {
    case ActivationState::kSaved:
      return "saved";
    case ActivationState::kLeaving:
      return "leaving";
    case ActivationState::kAway:
      return "away";
    case ActivationState::kReturning:
      return "returning";
    case ActivationState::kPresent:
      return "present";
  }
  return "unknown";
}

// The tensors of a StageSaved, in one fixed order.
std::vector<at::Tensor*> tensors_of(StageSaved& saved) {
  std::vector<at::Tensor*> tensors;
  const auto add = [&](SavedTensors& some) {
    for (at::Tensor& tensor : some.tensors) tensors.push_back(&tensor);
  };
  add(saved.embedding);
  for (SavedTensors& layer : saved.layers) add(layer);
  add(saved.head);
  return tensors;
}

// Not for cryptography: any byte that changes or moves changes it.
std::uint64_t checksum(std::uint64_t seed, std::span<const std::byte> bytes) {
  constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15ULL;
  std::uint64_t hash = seed ^ (bytes.size() * kPrime);
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (; at < bytes.size(); ++at) {
    hash = (hash ^ static_cast<std::uint64_t>(bytes[at])) * kPrime;
    hash ^= hash >> 29;
  }
  return hash;
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct TensorShape {
  std::vector<std::int64_t> sizes;
  at::TensorOptions options;
};

struct Unit {
  ActivationState state = ActivationState::kSaved;
  bool held = false;  // tensors still take device memory
  StageSaved saved;   // tensors, or after they are freed empty ones of the same shape
  std::vector<TensorShape> shapes;
  std::uint64_t checksum = 0;
  std::int64_t num_bytes = 0;
};

struct CopyIn {
  Pass pass;
  std::vector<std::size_t> frees;
};

}  // namespace

struct ActivationStore::Impl {
  Impl(const Program& program_in, MemoryLedger& ledger_in, FarStore& store_in, bool check_in)
      : grid{program_in.num_stages(), program_in.num_microbatches, program_in.num_slices},
        ledger(ledger_in),
        store(store_in),
        check(check_in),
        units(grid.size()),
        thread([this] { work(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }

  std::string text(const Pass& pass) const { return to_string(pass, grid.num_slices > 1); }

  // REQUIRES: mutex held.
  void advance(const Pass& pass, ActivationState from, ActivationState to) {
    Unit& unit = units[grid.index(pass)];
    if (unit.state != from) {
      throw InternalError(fmt::format("internal error: {} finds its activations {} instead of {}",
                                      text(pass), name_of(unit.state), name_of(from)));
    }
    unit.state = to;
  }

  // REQUIRES: mutex held, the copy out is over.
  void free_device(Unit& unit) {
    if (!unit.held) return;
    for (at::Tensor* tensor : tensors_of(unit.saved)) tensor->reset();
    unit.held = false;
  }

  void wait_until(std::unique_lock<std::mutex>& lock, const Unit& unit, ActivationState state) {
    changed.wait(lock, [&] { return error || unit.state == state; });
    if (error) std::rethrow_exception(error);
  }

  // REQUIRES: mutex held.
  bool may_start(const CopyIn& copy) const {
    for (const std::size_t unit : copy.frees) {
      if (units[unit].state == ActivationState::kLeaving) return false;
    }
    return units[grid.index(copy.pass)].state == ActivationState::kAway;
  }

  void work() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const LedgerScope scope(&ledger, MemoryClass::kActivations);
    CopyStream stream;
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] {
        return stop || (!error && ((!ins.empty() && may_start(ins.front())) || !outs.empty()));
      });
      if (stop) return;
      try {
        if (!ins.empty() && may_start(ins.front())) {
          const CopyIn copy = std::move(ins.front());
          ins.pop_front();
          run_in(lock, copy, stream);
        } else {
          const Pass out = outs.front();
          outs.pop_front();
          run_out(lock, out, stream);
        }
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        error = std::current_exception();
      }
      counters.processor_seconds = thread_seconds();
      changed.notify_all();
    }
  }

  void run_out(std::unique_lock<std::mutex>& lock, const Pass& out, CopyStream& stream) {
    Unit& unit = units[grid.index(out)];
    const std::vector<at::Tensor*> tensors = tensors_of(unit.saved);
    lock.unlock();
    const std::int64_t begin = now_ns();
    const ConstParts parts = stream.bring_to_host(tensors);
    std::int64_t num_bytes = 0;
    std::uint64_t sum = 0;
    for (const auto& part : parts) {
      num_bytes += static_cast<std::int64_t>(part.size());
      if (check) sum = checksum(sum, part);
    }
    store.write(grid.index(out), parts);
    const std::int64_t end = now_ns();
    lock.lock();
    unit.checksum = sum;
    unit.num_bytes = num_bytes;
    bytes_away += num_bytes;
    counters.peak_bytes_away = std::max(counters.peak_bytes_away, bytes_away);
    advance(out, ActivationState::kLeaving, ActivationState::kAway);
    ++counters.num_out;
    counters.num_bytes_out += num_bytes;
    counters.seconds_out += 1e-9 * static_cast<double>(end - begin);
    spans.push_back({ActionKind::kPass, Lane::kCopyOut, -1, out, begin, end});
  }

  void run_in(std::unique_lock<std::mutex>& lock, const CopyIn& copy, CopyStream& stream) {
    const std::size_t index = grid.index(copy.pass);
    Unit& unit = units[index];
    for (const std::size_t other : copy.frees) {
      if (units[other].state == ActivationState::kAway) free_device(units[other]);
    }
    free_device(unit);
    advance(copy.pass, ActivationState::kAway, ActivationState::kReturning);
    const std::vector<at::Tensor*> tensors = tensors_of(unit.saved);
    lock.unlock();
    const std::int64_t begin = now_ns();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      *tensors[i] = at::empty(unit.shapes[i].sizes, unit.shapes[i].options);
    }
    Parts parts = stream.host_side(tensors);
    store.read(index, parts);
    if (check) compare(copy.pass, unit, parts);
    stream.take_to_device(tensors);
    const std::int64_t end = now_ns();
    lock.lock();
    unit.held = true;
    bytes_away -= unit.num_bytes;
    counters.num_bytes_in += unit.num_bytes;
    counters.seconds_in += 1e-9 * static_cast<double>(end - begin);
    advance(copy.pass, ActivationState::kReturning, ActivationState::kPresent);
    spans.push_back({ActionKind::kPass, Lane::kCopyIn, -1, copy.pass, begin, end});
  }

  void compare(const Pass& in, const Unit& unit, const Parts& parts) const {
    std::uint64_t sum = 0;
    for (const auto& part : parts) sum = checksum(sum, part);
    if (sum == unit.checksum) return;
    throw Failure(fmt::format(
        "{}: the activations that came back are not those that left (checksum {:016x} instead of "
        "{:016x}); the last checkpoint is whole",
        text(in), sum, unit.checksum));
  }

  const PassGrid grid;
  MemoryLedger& ledger;
  FarStore& store;
  const bool check;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Unit> units;
  std::deque<Pass> outs;
  std::deque<CopyIn> ins;
  std::vector<Span> spans;
  std::exception_ptr error;
  CopyCounters counters;
  std::int64_t bytes_away = 0;
  bool stop = false;
  std::thread thread;  // last: it uses all of the above
};

ActivationStore::ActivationStore(const Program& program, MemoryLedger& ledger, FarStore& store,
                                 bool check)
    : impl_(std::make_unique<Impl>(program, ledger, store, check)) {}

ActivationStore::~ActivationStore() = default;

void ActivationStore::start_out(const Pass& out, StageSaved& saved) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->error) std::rethrow_exception(impl_->error);
    impl_->advance(out, ActivationState::kSaved, ActivationState::kLeaving);
    Unit& unit = impl_->units[impl_->grid.index(out)];
    unit.saved = std::exchange(saved, {});
    unit.shapes.clear();
    for (const at::Tensor* tensor : tensors_of(unit.saved)) {
      SLUICE_CHECK(tensor->defined() && tensor->is_contiguous(), "{} copies a tensor with gaps",
                   impl_->text(out));
      unit.shapes.push_back({tensor->sizes().vec(), tensor->options()});
    }
    unit.held = true;
    impl_->outs.push_back(out);
  }
  impl_->changed.notify_all();
}

void ActivationStore::finish_out(const Pass& out) {
  std::unique_lock lock(impl_->mutex);
  Unit& unit = impl_->units[impl_->grid.index(out)];
  impl_->changed.wait(lock,
                      [&] { return impl_->error || unit.state != ActivationState::kLeaving; });
  if (impl_->error) std::rethrow_exception(impl_->error);
  if (unit.state == ActivationState::kAway) impl_->free_device(unit);
}

void ActivationStore::start_in(const Pass& in, std::vector<Pass> frees) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->error) std::rethrow_exception(impl_->error);
    CopyIn copy{.pass = in, .frees = {}};
    for (const Pass& out : frees) copy.frees.push_back(impl_->grid.index(out));
    impl_->ins.push_back(std::move(copy));
  }
  impl_->changed.notify_all();
}

void ActivationStore::finish_in(const Pass& in, StageSaved& saved) {
  std::unique_lock lock(impl_->mutex);
  Unit& unit = impl_->units[impl_->grid.index(in)];
  impl_->wait_until(lock, unit, ActivationState::kPresent);
  unit.state = ActivationState::kSaved;
  unit.held = false;
  saved = std::exchange(unit.saved, {});
}

std::vector<Span> ActivationStore::finish_step() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->error) std::rethrow_exception(impl_->error);
  for (std::size_t at = 0; at < impl_->units.size(); ++at) {
    const ActivationState state = impl_->units[at].state;
    SLUICE_CHECK(state == ActivationState::kSaved, "{} is {} at the end of a step",
                 impl_->text(impl_->grid.pass_at(at, PassKind::kForward)), name_of(state));
  }
  return std::exchange(impl_->spans, {});
}

CopyCounters ActivationStore::counters() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counters;
}

}  // namespace sluice
