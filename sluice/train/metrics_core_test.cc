#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/train/metrics.h"
#include "sluice/train/tensorboard.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

StepMetrics step(std::int64_t number) {
  return {.step = number,
          .loss = 2.5,
          .grad_norm = 0.5,
          .learning_rate = 0.001,
          .tokens = number * 1000,
          .tokens_per_second = 12345.0,
          .step_seconds = 0.25,
          .mfu = 0.5};
}

TEST(MetricsLine, HasTheDocumentedKeys) {
  EXPECT_EQ(metrics_line(step(3)),
            R"({"step":3,"loss":2.5,"grad_norm":0.5,"lr":0.001,"tokens":3000,)"
            R"("tokens_per_second":12345.0,"step_seconds":0.25,"mfu":0.5})");
  EXPECT_EQ(metrics_line(ValidationMetrics{.step = 3, .loss = 1.5, .tokens = 4096}),
            R"({"step":3,"validation_loss":1.5,"validation_tokens":4096})");
}

TEST(MetricsLine, WritesNullForWhatJsonCannotHold) {
  StepMetrics metrics = step(3);
  metrics.loss = std::nan("");
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.mfu.reset();
  const std::string line = metrics_line(metrics);
  EXPECT_CONTAINS(line, R"("loss":null,"grad_norm":null)");
  EXPECT_CONTAINS(line, R"("mfu":null)");
}

TEST(MetricsWriter, CutsWhatAResumedRunWritesAgain) {
  const TestFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    MetricsWriter writer(path, 0);
    for (std::int64_t i = 1; i <= 5; ++i) {
      writer.write(step(i));
      if (i % 2 == 0) writer.write(ValidationMetrics{.step = i, .loss = 1.0, .tokens = 1});
    }
  }
  const std::string whole = read_whole(path);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 7);
  folder.write("metrics.jsonl", whole + R"({"step":6,"lo)");  // a crash in the middle of a line
  {
    MetricsWriter writer(path, 4);
    writer.write(step(5));
  }
  EXPECT_EQ(read_whole(path), whole);
  { const MetricsWriter fresh(path, 0); }
  EXPECT_EQ(read_whole(path), "");
}

TEST(MetricsWriter, RefusesAFileThatIsNotItsOwn) {
  const TestFolder folder;
  const auto path = folder.write("metrics.jsonl", "{\"step\":1}\nnotes\n");
  EXPECT_CONTAINS(message_of<Failure>([&] { MetricsWriter(path, 3); }), "line 2 is not a line");
  EXPECT_EQ(read_whole(path), "{\"step\":1}\nnotes\n");
}

TEST(MetricsWriter, SaysWhyItCannotWrite) {
  const TestFolder folder;
  EXPECT_CONTAINS(
      message_of<Failure>([&] { MetricsWriter(folder.path() / "none/metrics.jsonl", 0); }),
      "No such file");
  std::filesystem::create_symlink("/dev/full", folder.path() / "metrics.jsonl");
  MetricsWriter writer(folder.path() / "metrics.jsonl", 0);
  EXPECT_CONTAINS(message_of<Failure>([&] { writer.write(step(1)); }), "No space left");
}

TEST(ProgressLine, ShowsWhatPeopleWatch) {
  EXPECT_EQ(progress_line(step(3), 100, 125.0),
            "step   3/100  loss 2.5000  norm 0.5  lr 1.00e-03  12.3k tokens/s  mfu 50.0 %  left "
            "2m05s");
  EXPECT_EQ(progress_line(ValidationMetrics{.step = 3, .loss = 1.5, .tokens = 4096}, 100),
            "step   3/100  validation loss 1.5000  over 4.1k tokens");
}

TEST(ShortText, RoundsCountsAndDurations) {
  EXPECT_EQ(short_count(850), "850");
  EXPECT_EQ(short_count(1.234e6), "1.23M");
  EXPECT_EQ(short_count(999.9e3), "1M");
  EXPECT_EQ(short_duration(59.4), "59s");
  EXPECT_EQ(short_duration(3600 * 2 + 240), "2h04m");
  EXPECT_EQ(short_duration(86400 * 3 + 7200), "3d02h");
  EXPECT_EQ(short_duration(std::nan("")), "?");
}

TEST(TensorBoard, HasTheKnownChecksum) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xE3069283u);
}

TEST(TensorBoard, WritesEventsByteForByte) {
  // Checked once against the protobuf runtime: Event{wall_time: 1, step: 300, summary{value{tag:
  // "loss", simple_value: 0.5}}}.
  const std::string expected(
      "\x09\0\0\0\0\0\0\xf0\x3f\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f", 27);
  EXPECT_EQ(scalar_event(1.0, 300, "loss", 0.5F), expected);
  const std::string record = event_record(expected);
  EXPECT_EQ(record.size(), expected.size() + 16);
  EXPECT_EQ(record.substr(12, expected.size()), expected);
}

TEST(TensorBoard, GivesEveryWriterAFileOfItsOwn) {
  const TestFolder folder;
  {
    TensorBoardWriter first(folder.path() / "events");
    TensorBoardWriter second(folder.path() / "events");
    first.add(1, "loss", 2.0);
  }
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "events")) {
    EXPECT_CONTAINS(entry.path().filename().string(), "tfevents");
    ++num_files;
  }
  EXPECT_EQ(num_files, 2);
}

}  // namespace
}  // namespace sluice
