#include "sluice/train/rank_records.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "sluice/comm/agree.h"
#include "sluice/common/errors.h"

namespace sluice {
namespace {

/// The bytes of plain values, one after the other; all ranks run the same program.
class Writer {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}
  template <typename T>
  void take(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    SLUICE_CHECK(place_ + sizeof(T) <= text_.size(), "a rank's record is cut off");
    std::memcpy(&value, text_.data() + place_, sizeof(T));
    place_ += sizeof(T);
  }
  template <typename T>
  void take(std::vector<T>& values) {
    std::size_t count = 0;
    take(count);
    SLUICE_CHECK(count <= text_.size(), "a rank's record is damaged");
    values.resize(count);
    for (T& value : values) take(value);
  }

 private:
  const std::string& text_;
  std::size_t place_ = 0;
};

void move_times(RankRecord& record, std::int64_t by) {
  record.begin += by;
  for (Span& span : record.spans) {
    span.begin += by;
    span.end += by;
  }
  for (MemorySample& sample : record.samples) sample.time += by;
}

}  // namespace

void merge_peaks(MemoryPeaks& peaks, const MemoryPeaks& more) {
  for (std::size_t i = 0; i < peaks.by_class.size(); ++i) {
    peaks.by_class[i] = std::max(peaks.by_class[i], more.by_class[i]);
  }
  if (more.total > peaks.total) {
    peaks.total = more.total;
    peaks.at_total_peak = more.at_total_peak;
  }
}

RankRecords gather_records(Transport& world, const RankRecords& mine) {
  SLUICE_CHECK(mine.size() == 1, "{} ranks in a process", mine.size());
  Writer writer;
  writer.add(mine[0].memory);
  writer.add(mine[0].copies);
  writer.add(mine[0].begin);
  writer.add(mine[0].spans);
  writer.add(mine[0].samples);
  RankRecords records;
  for (const std::string& text : gather_texts(world, writer.text())) {
    RankRecord record;
    Reader reader(text);
    reader.take(record.memory);
    reader.take(record.copies);
    reader.take(record.begin);
    reader.take(record.spans);
    reader.take(record.samples);
    if (!records.empty()) move_times(record, records.front().begin - record.begin);
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace sluice
