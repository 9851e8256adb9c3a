#include "sluice/comm/store_job.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace sluice {

using std::chrono::milliseconds;

namespace {

constexpr auto kSlice = milliseconds(100);  // of a wait in the store
constexpr auto kListen = milliseconds(50);  // between two looks at the store
constexpr auto kWatch = milliseconds(20);   // between two looks of the watch
constexpr auto kPeerCheck = milliseconds(100);
constexpr auto kHearFirst = milliseconds(200);  // for what a dead peer said before it ended
constexpr auto kLastWordAfter = milliseconds(500);
constexpr auto kTellLimit = milliseconds(300);
constexpr const char* kAbortKey = "abort";

std::string text_of_doubles(const std::vector<double>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)};
}

std::vector<double> doubles_of(const std::string& text) {
  std::vector<double> numbers(text.size() / sizeof(double));
  std::copy_n(text.data(), numbers.size() * sizeof(double),
              reinterpret_cast<char*>(numbers.data()));
  return numbers;
}

/// Texts as one: the length of each before it.
std::string join_texts(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    const std::uint64_t size = text.size();
    all.append(reinterpret_cast<const char*>(&size), sizeof(size));
    all += text;
  }
  return all;
}

std::vector<std::string> split_texts(const std::string& all) {
  std::vector<std::string> texts;
  for (std::size_t place = 0; place < all.size();) {
    std::uint64_t size = 0;
    SLUICE_CHECK(place + sizeof(size) <= all.size(), "a text from the store is cut off");
    std::memcpy(&size, all.data() + place, sizeof(size));
    place += sizeof(size);
    SLUICE_CHECK(size <= all.size() - place, "a text from the store is cut off");
    texts.push_back(all.substr(place, size));
    place += size;
  }
  return texts;
}

}  // namespace

StoreJob::Mark::Mark(StoreJob& job, std::string what) : job_(job) {
  const std::lock_guard lock(job_.mutex_);
  outermost_ = !job_.waiting_since_;
  if (!outermost_) return;
  job_.waiting_for_ = std::move(what);
  job_.waiting_since_ = Clock::now();
}

StoreJob::Mark::~Mark() {
  const std::lock_guard lock(job_.mutex_);
  if (outermost_) job_.waiting_since_.reset();
}

StoreJob::StoreJob(std::unique_ptr<Store> store, StoreJobOptions options)
    : store_(std::move(store)), options_(std::move(options)) {
  listener_ = std::jthread([this, own = store_->another()](const std::stop_token& stop) mutable {
    listen(stop, std::move(own));
  });
  learn_peers();
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

StoreJob::~StoreJob() {
  watcher_ = {};  // stops and joins
  listener_ = {};
}

void StoreJob::learn_peers() {
  std::vector<int> all(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) all[static_cast<std::size_t>(rank)] = rank;
  for (const std::string& text : gather("processes", 0, all, text_of_doubles(to_doubles(self_)))) {
    processes_.push_back(process_name(doubles_of(text)));
  }
}

std::string StoreJob::text_of(const std::string& what) const {
  return what + (options_.last_done ? options_.last_done() : "");
}

void StoreJob::throw_abort(const std::string& what) {
  noticed_ = true;
  const std::lock_guard lock(mutex_);
  throw CommError(fmt::format("{}: {}", text_of(what), reason_));
}

void StoreJob::throw_timeout(const std::string& what) {
  noticed_ = true;
  throw CommError(fmt::format("{} for more than {} ms (run.timeout_seconds){}", what,
                              options_.timeout.count(),
                              options_.last_done ? options_.last_done() : ""));
}

// ----- collectives

void StoreJob::set(const std::string& name, const std::string& value) {
  store_->set(key(name), value);
}

std::optional<std::string> StoreJob::poll(const std::string& full_key) {
  try {
    return store_->get(full_key, kSlice);
  } catch (const CommError&) {
    // The store ends with its process, which may have told why.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kHearFirst, [this] { return aborted(); });
    if (!aborted()) throw;
    return std::nullopt;
  }
}

std::string StoreJob::wait_for(const std::string& name, const std::string& what) {
  const Mark mark(*this, what);
  const auto deadline = Clock::now() + options_.timeout;
  for (;;) {
    if (aborted()) throw_abort(what);
    if (auto value = poll(key(name))) return *std::move(value);
    if (Clock::now() >= deadline) throw_timeout(what);
  }
}

// The first member collects and gives out: two messages for each rank, not one for each pair.
std::vector<std::string> StoreJob::gather(const std::string& scope, int round,
                                          const std::vector<int>& members,
                                          const std::string& mine) {
  if (members.size() == 1) return {mine};
  const auto name = [&](const auto& of) { return fmt::format("{}/{}/{}", scope, round, of); };
  const auto what = [&](int whom) {
    return fmt::format("rank {} waited for rank {} in a collective", rank(), whom);
  };
  if (rank() != members.front()) {
    set(name(rank()), mine);
    const Mark mark(*this, what(members.front()));
    const auto deadline = Clock::now() + options_.timeout;
    for (;;) {
      if (aborted()) throw_abort(what(members.front()));
      if (const auto all = poll(key(name("all")))) return split_texts(*all);
      if (Clock::now() < deadline) continue;
      // Who has not come is the one to name.
      const auto missing = std::find_if(members.begin(), members.end(), [&](int member) {
        return member != members.front() && !store_->has(key(name(member)));
      });
      throw_timeout(what(missing == members.end() ? members.front() : *missing));
    }
  }
  std::vector<std::string> texts{mine};
  for (std::size_t i = 1; i < members.size(); ++i) {
    texts.push_back(wait_for(name(members[i]), what(members[i])));
  }
  store_->set(key(name("all")), join_texts(texts));
  // All have taken the result of the round before, or they would not be here.
  for (std::size_t i = 1; i < members.size(); ++i) store_->erase(key(name(members[i])));
  if (round > 0) store_->erase(key(fmt::format("{}/{}/all", scope, round - 1)));
  return texts;
}

// ----- the first error

bool StoreJob::take_reason(const std::string& reason, bool tell) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted()) return false;
    reason_ = reason;
    tell_ = tell;
    aborted_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  return true;
}

void StoreJob::abort(const std::string& reason) {
  if (!take_reason(reason, /*tell=*/true)) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kTellLimit, [this] { return told_; });
}

StoreJob::Hook StoreJob::add_hooks(std::function<std::optional<std::string>()> check,
                                   std::function<void()> stop) {
  auto hooks = std::make_shared<Hooks>(Hooks{std::move(check), std::move(stop)});
  const std::lock_guard lock(hooks_mutex_);
  hooks_.push_back(hooks);
  return {hooks.get(), [this, hooks](void*) mutable {
            const std::lock_guard guard(hooks_mutex_);  // none of them runs any more
            hooks.reset();
          }};
}

// ----- the helper threads

void StoreJob::sleep(const std::stop_token& stop, milliseconds time) {
  std::unique_lock lock(mutex_);
  const bool before = aborted();
  changed_.wait_for(lock, stop, time, [&] { return aborted() != before; });
}

void StoreJob::listen(const std::stop_token& stop, std::unique_ptr<Store> store) {
  while (!stop.stop_requested() && !aborted()) {
    sleep(stop, kListen);
    if (!aborted()) hear(*store);
  }
  if (!aborted()) return;
  bool tell = false;
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    tell = tell_;
    reason = reason_;
  }
  try {
    if (tell && !store->has(key(kAbortKey))) store->set(key(kAbortKey), reason);
  } catch (const CommError&) {
    // Nobody can be told; the others find out by themselves.
  }
  {
    const std::lock_guard lock(mutex_);
    told_ = true;
  }
  changed_.notify_all();
  const std::lock_guard lock(hooks_mutex_);
  for (const auto& weak : hooks_) {
    if (const auto hooks = weak.lock()) hooks->stop();
  }
}

void StoreJob::hear(Store& store) {
  try {
    if (!store.has(key(kAbortKey))) return;
    if (const auto reason = store.get(key(kAbortKey), kSlice)) take_reason(*reason, false);
  } catch (const CommError& error) {
    take_reason(error.what(), false);
  }
}

void StoreJob::watch(const std::stop_token& stop) {
  auto next_check = Clock::now();
  std::optional<Clock::time_point> speak;
  while (!stop.stop_requested()) {
    sleep(stop, kWatch);
    const auto now = Clock::now();
    if (!aborted() && now >= next_check) {
      next_check = now + kPeerCheck;
      check_peers();
      if (!aborted()) check_hooks();
      if (!aborted()) check_wait();
    }
    if (!aborted() || noticed_ || !options_.last_word) continue;
    if (!speak) speak = now + kLastWordAfter;
    if (now < *speak) continue;
    std::string what, reason;
    {
      const std::lock_guard lock(mutex_);
      what = waiting_since_ ? waiting_for_ : fmt::format("rank {} was computing", rank());
      reason = reason_;
    }
    // A wait that found out by itself has its own words as the reason.
    options_.last_word(reason.starts_with(what) ? reason
                                                : fmt::format("{}: {}", text_of(what), reason));
    return;
  }
}

void StoreJob::check_peers() {
  for (std::size_t peer = 0; peer < processes_.size(); ++peer) {
    if (is_alive(processes_[peer], self_)) continue;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kHearFirst, [this] { return aborted(); });
    }
    take_reason(fmt::format("rank {} is gone (process {} ended)", peer, processes_[peer].pid),
                true);
    return;
  }
}

void StoreJob::check_hooks() {
  const std::lock_guard lock(hooks_mutex_);
  for (const auto& weak : hooks_) {
    const auto hooks = weak.lock();
    if (!hooks) continue;
    if (const auto reason = hooks->check()) {
      take_reason(*reason, true);
      return;
    }
  }
}

/// The rank's own thread looks at the clock unless a library holds it.
void StoreJob::check_wait() {
  constexpr auto kGrace = milliseconds(500);
  std::string what;
  {
    const std::lock_guard lock(mutex_);
    if (!waiting_since_ || Clock::now() < *waiting_since_ + options_.timeout + kGrace) return;
    what = waiting_for_;
  }
  if (noticed_) return;
  take_reason(fmt::format("{} for more than {} ms (run.timeout_seconds){}", what,
                          options_.timeout.count(), options_.last_done ? options_.last_done() : ""),
              true);
}

}  // namespace sluice
