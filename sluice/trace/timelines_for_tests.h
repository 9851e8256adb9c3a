// timelines_for_tests.h - small timelines that the tests of this folder draw and compare.
#pragma once

#include <cstdint>
#include <string>

#include "sluice/schedule/registry.h"
#include "sluice/trace/timeline.h"
#include "sluice/trace/unit_time.h"

namespace sluice {

inline Timeline unit_timeline(std::string_view name, int ranks, int microbatches, int chunks = 0) {
  ScheduleRequest request;
  request.ranks = ranks;
  request.microbatches = microbatches;
  request.chunks = chunks;
  return unit_time(make_schedule(name, request));
}

inline Span pass_span(PassKind kind, int stage, int microbatch, std::int64_t begin,
                      std::int64_t end) {
  Span span;
  span.pass = {kind, stage, microbatch, 0};
  span.begin = begin;
  span.end = end;
  return span;
}

inline Span message_span(ActionKind kind, Lane lane, int peer, const Pass& pass, std::int64_t begin,
                         std::int64_t end) {
  return {kind, lane, peer, pass, begin, end};
}

/// Two ranks, one microbatch, in nanoseconds, with every kind of span: F, message, F, B, message, B
/// and the optimizer. The receives are posted at 0, long before their messages are sent.
inline Timeline timeline_with_messages() {
  const Pass forward = {PassKind::kForward, 0, 0, 0};
  const Pass backward = {PassKind::kBackward, 1, 0, 0};
  Timeline timeline;
  timeline.name = "two ranks";
  timeline.seconds_per_tick = 1e-9;
  timeline.num_stages = 2;
  Span optimizer;
  optimizer.kind = ActionKind::kOptimizer;
  optimizer.begin = 9000;
  optimizer.end = 9500;
  timeline.ranks = {
      {pass_span(PassKind::kForward, 0, 0, 1000, 2000),
       message_span(ActionKind::kSend, Lane::kSendForward, 1, forward, 2000, 2500),
       message_span(ActionKind::kReceive, Lane::kReceiveBackward, 1, backward, 1000, 6600),
       pass_span(PassKind::kBackward, 0, 0, 7000, 9000), optimizer},
      {message_span(ActionKind::kReceive, Lane::kReceiveForward, 0, forward, 1000, 2600),
       pass_span(PassKind::kForward, 1, 0, 3000, 4000),
       pass_span(PassKind::kBackward, 1, 0, 4000, 6000),
       message_span(ActionKind::kSend, Lane::kSendBackward, 0, backward, 6000, 6500)},
  };
  return timeline;
}

}  // namespace sluice
