#include "sluice/trace/chrome.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/trace/activations.h"
#include "sluice/trace/names.h"

namespace sluice {
namespace {

// The order of events that share a moment. A viewer hangs a flow event on the slice that was opened
// last on its lane, so it must come after its own slice and before the next one.
enum class Order : std::uint8_t {
  kSendSlice,
  kFlowStart,
  kFlowEndOfOpenSlice,  // the receive began earlier
  kSlice,
  kFlowEndOfNewSlice,  // the receive begins at this very moment
  kCounter,
};

struct Event {
  std::int64_t ns = 0;
  Order order = Order::kSlice;
  std::string text;  // what follows "ts"
};

/// Names one message: both ends know the ranks and the pass that made it.
using MessageKey = std::tuple<std::size_t, std::size_t, Pass>;

struct MessageEnd {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  Lane lane = Lane::kSendForward;
};

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  Writer(const Timeline& timeline, const ChromeTraceOptions& options)
      : timeline_(timeline), options_(options), origin_(timeline.begin()) {}

  std::string write() {
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) add_spans(rank);
    add_flows();
    if (options_.memory != nullptr) {
      add_memory(*options_.memory);
    } else {
      add_activations();
    }
    add_away();
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      return std::tie(a.ns, a.order) < std::tie(b.ns, b.order);
    });

    fmt::memory_buffer out;
    fmt::format_to(
        std::back_inserter(out),
        "{{\"displayTimeUnit\": \"ms\", \"otherData\": {{\"name\": {}}}, \"traceEvents\": [\n",
        json_string(timeline_.name));
    write_names(out);
    for (const Event& event : events_) {
      fmt::format_to(std::back_inserter(out), ",\n{{\"ts\": {}, {}}}", microseconds(event.ns),
                     event.text);
    }
    fmt::format_to(std::back_inserter(out), "\n]}}\n");
    return fmt::to_string(out);
  }

 private:
  // Whole nanoseconds, so that what touches in ticks still touches and nothing overlaps.
  std::int64_t ns(std::int64_t ticks) const {
    return std::llround(static_cast<double>(ticks - origin_) * timeline_.seconds_per_tick * 1e9);
  }

  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  }

  std::string name_of(const Span& span) const {
    Action action;
    action.kind = span.kind;
    action.peer = span.peer;
    action.pass = span.pass;
    action.collective = span.collective;
    return to_string(action, timeline_.num_slices > 1);
  }

  void add_spans(std::size_t rank) {
    for (const Span& span : timeline_.ranks[rank]) {
      const std::int64_t begin = ns(span.begin);
      const std::int64_t end = std::max(begin, ns(span.end));
      std::string category = "message";
      std::string arguments;
      if (span.kind == ActionKind::kOptimizer) {
        category = "optimizer";
      } else if (span.kind == ActionKind::kCollective) {
        category = "collective";
      } else if (span.kind == ActionKind::kPass) {
        category = long_name(span.pass.kind);
      }
      if (span.kind != ActionKind::kOptimizer) {
        arguments = fmt::format("\"stage\": {}, \"microbatch\": {}, \"slice\": {}", span.pass.stage,
                                span.pass.microbatch, span.pass.slice);
      }
      if (span.peer >= 0) arguments += fmt::format(", \"peer\": {}", span.peer);
      const bool sends = span.kind == ActionKind::kSend;
      events_.push_back(
          {begin, sends ? Order::kSendSlice : Order::kSlice,
           fmt::format("\"ph\": \"X\", \"dur\": {}, \"pid\": {}, \"tid\": {}, \"name\": {}, "
                       "\"cat\": \"{}\", \"args\": {{{}}}",
                       microseconds(end - begin), rank, static_cast<int>(span.lane),
                       json_string(name_of(span)), category, arguments)});
      const auto peer = static_cast<std::size_t>(std::max(span.peer, 0));
      if (sends) sends_[{rank, peer, span.pass}] = {begin, end, span.lane};
      if (span.kind == ActionKind::kReceive) {
        receives_[{peer, rank, span.pass}] = {begin, end, span.lane};
      }
      lanes_[{rank, span.lane}] = true;
    }
  }

  void add_flows() {
    int id = 0;
    for (const auto& [key, send] : sends_) {
      const auto found = receives_.find(key);
      if (found == receives_.end()) continue;
      const MessageEnd& receive = found->second;
      ++id;
      const auto flow = [id](char phase, std::size_t rank, Lane lane, std::string_view binding) {
        return fmt::format(
            "\"ph\": \"{}\", \"id\": {}, \"pid\": {}, \"tid\": {}, \"name\": \"message\", "
            "\"cat\": \"message\"{}",
            phase, id, rank, static_cast<int>(lane), binding);
      };
      const auto& [source, destination, pass] = key;
      events_.push_back({send.begin_ns, Order::kFlowStart, flow('s', source, send.lane, "")});
      // A receive may have been posted long before: an arrow never points back in time.
      const std::int64_t arrival = std::max(receive.begin_ns, send.begin_ns);
      events_.push_back(
          {arrival,
           arrival == receive.begin_ns ? Order::kFlowEndOfNewSlice : Order::kFlowEndOfOpenSlice,
           flow('f', destination, receive.lane, ", \"bp\": \"e\"")});
    }
  }

  void add_counter(std::size_t rank, std::int64_t time, std::string_view name,
                   std::string_view values) {
    events_.push_back(
        {std::max<std::int64_t>(ns(time), 0), Order::kCounter,
         fmt::format("\"ph\": \"C\", \"pid\": {}, \"tid\": 0, \"name\": \"{}\", \"args\": {{{}}}",
                     rank, name, values)});
  }

  void add_memory(const MemoryCurve& curve) {
    std::array<bool, kNumMemoryClasses> used{};
    for (const auto& samples : curve.ranks) {
      for (const MemorySample& sample : samples) {
        for (std::size_t c = 0; c < used.size(); ++c) used[c] = used[c] || sample.bytes[c] != 0;
      }
    }
    for (std::size_t rank = 0; rank < curve.ranks.size(); ++rank) {
      for (const MemorySample& sample : curve.ranks[rank]) {
        std::string values;
        for (std::size_t c = 0; c < used.size(); ++c) {
          if (!used[c]) continue;
          values += fmt::format("{}\"{}\": {}", values.empty() ? "" : ", ",
                                to_string(static_cast<MemoryClass>(c)), sample.bytes[c]);
        }
        add_counter(rank, sample.time, "memory bytes", values);
      }
    }
  }

  void add_activations() {
    const auto curves = saved_activations(timeline_);
    for (std::size_t rank = 0; rank < curves.size(); ++rank) {
      for (const ActivationSample& sample : curves[rank]) {
        add_counter(rank, sample.time, "saved activations",
                    fmt::format("\"passes\": {}", sample.count));
      }
    }
  }

  void add_away() {
    const std::vector<std::int64_t>& bytes = options_.movable_bytes;
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      std::vector<std::pair<std::int64_t, std::int64_t>> changes;
      for (const Span& span : timeline_.ranks[rank]) {
        if (span.kind != ActionKind::kPass || !is_copy(span.pass.kind)) continue;
        const std::int64_t size =
            bytes.empty() ? 1 : bytes[static_cast<std::size_t>(span.pass.stage)];
        const bool out = span.pass.kind == PassKind::kOffload;
        changes.emplace_back(out ? span.begin : span.end, out ? size : -size);
      }
      std::sort(changes.begin(), changes.end());
      std::int64_t away = 0;
      for (const auto& [time, change] : changes) {
        away += change;
        add_counter(rank, time, "offloaded",
                    fmt::format("\"{}\": {}", bytes.empty() ? "passes" : "bytes", away));
      }
    }
  }

  void write_names(fmt::memory_buffer& out) const {
    bool first = true;
    const auto name = [&](std::size_t rank, int lane, std::string_view what,
                          std::string_view argument) {
      fmt::format_to(
          std::back_inserter(out),
          "{}{{\"ph\": \"M\", \"pid\": {}, \"tid\": {}, \"name\": \"{}\", \"args\": {{{}}}}}",
          first ? "" : ",\n", rank, lane, what, argument);
      first = false;
    };
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      name(rank, 0, "process_name", fmt::format("\"name\": \"rank {}\"", rank));
      name(rank, 0, "process_sort_index", fmt::format("\"sort_index\": {}", rank));
      for (int lane = 0; lane < kNumLanes; ++lane) {
        if (lanes_.find({rank, static_cast<Lane>(lane)}) == lanes_.end()) continue;
        name(rank, lane, "thread_name",
             fmt::format("\"name\": \"{}\"", to_string(static_cast<Lane>(lane))));
        name(rank, lane, "thread_sort_index", fmt::format("\"sort_index\": {}", lane));
      }
    }
  }

  const Timeline& timeline_;
  const ChromeTraceOptions& options_;
  std::int64_t origin_;
  std::vector<Event> events_;
  std::map<MessageKey, MessageEnd> sends_;
  std::map<MessageKey, MessageEnd> receives_;
  std::map<std::pair<std::size_t, Lane>, bool> lanes_;
};

}  // namespace

std::string chrome_trace(const Timeline& timeline, const ChromeTraceOptions& options) {
  return Writer(timeline, options).write();
}

}  // namespace sluice
