#include "sluice/trace/chrome.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sluice/trace/timelines_for_tests.h"

namespace sluice {
namespace {

using nlohmann::json;

json events_of(const Timeline& timeline, const ChromeTraceOptions& options = {}) {
  const json trace = json::parse(chrome_trace(timeline, options));
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  return trace.at("traceEvents");
}

json with_phase(const json& events, const std::string& phase) {
  json found = json::array();
  for (const json& event : events) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

using Track = std::pair<int, int>;
Track track_of(const json& event) { return {event.at("pid"), event.at("tid")}; }

TEST(ChromeTrace, GivesEverySpanItsRankLaneAndMicroseconds) {
  const json slices = with_phase(events_of(timeline_with_messages()), "X");
  ASSERT_EQ(slices.size(), 9U);
  const auto named = [&](const std::string& name, int rank) {
    return *std::find_if(slices.begin(), slices.end(), [&](const json& slice) {
      return slice.at("name") == name && slice.at("pid") == rank;
    });
  };
  const json backward = named("0B0", 0);
  EXPECT_EQ(backward.at("ts"), 6.0);  // from the first span, which begins at 1000 ns
  EXPECT_EQ(backward.at("dur"), 2.0);
  EXPECT_EQ(backward.at("tid"), static_cast<int>(Lane::kCompute));
  EXPECT_EQ(backward.at("args").at("microbatch"), 0);
  const json send = named("send 0F0 to rank 1", 0);
  EXPECT_EQ(send.at("tid"), static_cast<int>(Lane::kSendForward));
  EXPECT_EQ(send.at("dur"), 0.5);
  EXPECT_EQ(named("optimizer", 0).at("dur"), 0.5);
}

TEST(ChromeTrace, NamesRanksAndLanesBeforeAnythingElse) {
  const json events = events_of(timeline_with_messages());
  std::map<Track, std::string> lanes;
  std::set<std::string> ranks;
  bool names_are_over = false;
  for (const json& event : events) {
    if (event.at("ph") != "M") {
      names_are_over = true;
      if (event.at("ph") == "X") {
        EXPECT_TRUE(lanes.count(track_of(event))) << event;
      }
      continue;
    }
    EXPECT_FALSE(names_are_over);
    if (event.at("name") == "process_name") ranks.insert(event.at("args").at("name"));
    if (event.at("name") == "thread_name") lanes[track_of(event)] = event.at("args").at("name");
  }
  EXPECT_EQ(ranks, (std::set<std::string>{"rank 0", "rank 1"}));
  EXPECT_EQ((lanes[{0, static_cast<int>(Lane::kSendForward)}]), "send_forward");
  EXPECT_EQ((lanes[{1, static_cast<int>(Lane::kReceiveForward)}]), "receive_forward");
}

TEST(ChromeTrace, EventsAreInOrderAndNeverNegative) {
  for (const Timeline& timeline :
       {timeline_with_messages(), unit_timeline("interleaved", 3, 6, 2)}) {
    double last = 0.0;
    for (const json& event : events_of(timeline)) {
      if (event.at("ph") == "M") continue;
      const double time = event.at("ts");
      EXPECT_GE(time, last);
      last = time;
      if (event.at("ph") == "X") {
        EXPECT_GE(event.at("dur").get<double>(), 0.0);
      }
    }
  }
}

TEST(ChromeTrace, SlicesOfALaneNeverOverlapWhateverTheTick) {
  Timeline timeline = unit_timeline("gis", 4, 9);
  timeline.seconds_per_tick = 1e-6 / 3;  // no whole number of nanoseconds
  std::map<Track, double> free_from;
  for (const json& slice : with_phase(events_of(timeline), "X")) {
    double& from = free_from[track_of(slice)];
    EXPECT_GE(slice.at("ts").get<double>(), from - 1e-9);
    from = slice.at("ts").get<double>() + slice.at("dur").get<double>();
  }
}

// Follows a viewer's rule: a flow event hangs on the slice that was opened last on its lane.
void expect_flows_bind(const json& events, std::size_t num_messages) {
  std::map<Track, json> open;
  std::map<int, json> starts;
  std::set<int> ended;
  for (const json& event : events) {
    const std::string phase = event.at("ph");
    if (phase == "X") open[track_of(event)] = event;
    if (phase != "s" && phase != "f") continue;
    const json& slice = open.at(track_of(event));
    EXPECT_LE(slice.at("ts").get<double>(), event.at("ts").get<double>());
    EXPECT_LE(event.at("ts").get<double>(),
              slice.at("ts").get<double>() + slice.at("dur").get<double>() + 1e-9);
    EXPECT_EQ(event.at("cat"), "message");
    const int id = event.at("id");
    if (phase == "s") {
      EXPECT_TRUE(starts.emplace(id, slice).second) << "two starts of " << id;
      EXPECT_EQ(slice.at("name").get<std::string>().rfind("send ", 0), 0U) << slice;
      continue;
    }
    EXPECT_EQ(event.at("bp"), "e");
    EXPECT_TRUE(ended.insert(id).second) << "two ends of " << id;
    ASSERT_TRUE(starts.count(id)) << "end before start of " << id;
    const json& send = starts.at(id);
    EXPECT_EQ(slice.at("name").get<std::string>().rfind("receive ", 0), 0U) << slice;
    EXPECT_EQ(send.at("args").at("stage"), slice.at("args").at("stage"));
    EXPECT_EQ(send.at("args").at("microbatch"), slice.at("args").at("microbatch"));
    EXPECT_EQ(send.at("args").at("peer"), slice.at("pid"));
    EXPECT_EQ(slice.at("args").at("peer"), send.at("pid"));
  }
  EXPECT_EQ(starts.size(), num_messages);
  EXPECT_EQ(ended.size(), num_messages);
}

TEST(ChromeTrace, ArrowsLeadFromEverySendToItsReceive) {
  expect_flows_bind(events_of(timeline_with_messages()), 2);
}

// Messages that take no time, back to back on one lane, at the moments where the next ones begin.
TEST(ChromeTrace, ArrowsBindWhenEverythingHappensAtOnce) {
  for (const bool posted_early : {false, true}) {
    Timeline timeline;
    timeline.seconds_per_tick = 1e-6;
    timeline.ranks.resize(2);
    for (int microbatch = 0; microbatch < 4; ++microbatch) {
      const Pass pass = {PassKind::kForward, 0, microbatch, 0};
      const std::int64_t sent = 10 * (microbatch + 1);
      const std::int64_t posted = posted_early ? sent - 10 : sent;
      timeline.ranks[0].push_back(
          message_span(ActionKind::kSend, Lane::kSendForward, 1, pass, sent, sent));
      timeline.ranks[1].push_back(
          message_span(ActionKind::kReceive, Lane::kReceiveForward, 0, pass, posted, sent));
    }
    expect_flows_bind(events_of(timeline), 4);
  }
}

TEST(ChromeTrace, CountsMemoryByClass) {
  MemoryCurve curve;
  curve.ranks.resize(2);
  MemorySample sample;
  sample.time = 1000;
  sample.bytes[static_cast<std::size_t>(MemoryClass::kWeights)] = 100;
  curve.ranks[1].push_back(sample);
  sample.time = 3000;
  sample.bytes[static_cast<std::size_t>(MemoryClass::kActivations)] = 50;
  curve.ranks[1].push_back(sample);
  const json counters = with_phase(events_of(timeline_with_messages(), {.memory = &curve}), "C");
  ASSERT_EQ(counters.size(), 2U);
  EXPECT_EQ(counters[1].at("pid"), 1);
  EXPECT_EQ(counters[1].at("ts"), 2.0);
  EXPECT_EQ(counters[1].at("args"), json({{"weights", 100}, {"activations", 50}}));
  EXPECT_EQ(counters[0].at("args"), json({{"weights", 100}, {"activations", 0}}));
}

TEST(ChromeTrace, CountsSavedActivationsWithoutAMemoryCurve) {
  const json counters = with_phase(events_of(unit_timeline("1f1b", 2, 2)), "C");
  ASSERT_FALSE(counters.empty());
  int highest = 0;
  for (const json& counter : counters) {
    highest = std::max(highest, counter.at("args").at("passes").get<int>());
  }
  EXPECT_EQ(highest, 2);
}

TEST(ChromeTrace, CountsWhatIsAwayFromTheBeginOfADToTheEndOfItsU) {
  Timeline timeline = unit_timeline("1f1b", 1, 1);
  const auto copy = [](PassKind kind, Lane lane, int microbatch, std::int64_t begin) {
    return Span{ActionKind::kPass, lane, -1, {kind, 0, microbatch, 0}, begin, begin + 10};
  };
  timeline.ranks[0] = {copy(PassKind::kOffload, Lane::kCopyOut, 0, 0),
                       copy(PassKind::kOffload, Lane::kCopyOut, 1, 10),
                       copy(PassKind::kReload, Lane::kCopyIn, 0, 30),
                       copy(PassKind::kReload, Lane::kCopyIn, 1, 50)};
  const auto away = [&](const ChromeTraceOptions& options, const char* unit) {
    std::vector<int> values;
    for (const json& counter : with_phase(events_of(timeline, options), "C")) {
      if (counter.at("name") == "offloaded") values.push_back(counter.at("args").at(unit));
    }
    return values;
  };
  EXPECT_EQ(away({}, "passes"), (std::vector<int>{1, 2, 1, 0}));
  EXPECT_EQ(away({.movable_bytes = {70}}, "bytes"), (std::vector<int>{70, 140, 70, 0}));
}

TEST(ChromeTrace, EscapesTheName) {
  Timeline timeline = unit_timeline("1f1b", 1, 1);
  timeline.name = "a \"b\"\n\\ \xff";
  const json trace = json::parse(chrome_trace(timeline));
  EXPECT_EQ(trace.at("otherData").at("name").get<std::string>().rfind("a \"b\"\n\\ ", 0), 0U);
}

TEST(ChromeTrace, OfNothingIsStillATrace) {
  EXPECT_TRUE(json::parse(chrome_trace(Timeline())).at("traceEvents").empty());
}

}  // namespace
}  // namespace sluice
