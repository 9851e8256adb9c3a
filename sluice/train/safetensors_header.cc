#include "sluice/train/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/files.h"

namespace sluice {
namespace {

/// Receives the events of the JSON parser. `state_` says where in the header the next one is; an
/// event that does not belong there stops the parse with `error`.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  RawHeader header;
  std::string error;

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kEntryStart:
        state_ = is_metadata_ ? State::kMetadata : State::kEntry;
        return true;
      default:
        return refuse("an object where none belongs");
    }
  }

  bool key(std::string& name) override {
    if (state_ == State::kTop) {
      if (!names_.insert(name).second) return refuse("the name " + name + " twice");
      is_metadata_ = name == "__metadata__";
      if (!is_metadata_)
        header.tensors.push_back({.name = name, .dtype = {}, .shape = {}, .offsets = {}});
      fields_.clear();
      state_ = State::kEntryStart;
      return true;
    }
    if (!fields_.insert(name).second) return refuse("the key " + name + " twice");
    field_ = name;
    if (state_ == State::kMetadata) return true;
    if (name == "dtype") {
      state_ = State::kDtype;
    } else if (name == "shape") {
      state_ = State::kShapeStart;
    } else if (name == "data_offsets") {
      state_ = State::kOffsetsStart;
    } else {
      return refuse("the unknown key " + name);
    }
    return true;
  }

  bool string(std::string& text) override {
    if (state_ == State::kDtype) {
      header.tensors.back().dtype = text;
      state_ = State::kEntry;
      return true;
    }
    if (state_ != State::kMetadata) return refuse("text where none belongs");
    header.metadata[field_] = text;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::kShapeStart) {
      state_ = State::kShape;
    } else if (state_ == State::kOffsetsStart) {
      state_ = State::kOffsets;
    } else {
      return refuse("a list where none belongs");
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) {
      return refuse("a number where none belongs");
    }
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse("a number beyond 63 bits");
    }
    RawTensor& tensor = header.tensors.back();
    (state_ == State::kShape ? tensor.shape : tensor.offsets)
        .push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && header.tensors.back().offsets.size() != 2) {
      return refuse("data_offsets that are not two numbers");
    }
    state_ = State::kEntry;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kEntry && fields_.size() != 3) {
      return refuse("an entry without dtype, shape and data_offsets");
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(std::int64_t) override { return refuse("a negative number"); }
  bool number_float(double, const std::string&) override { return refuse("a fraction"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return refuse(fmt::format("no JSON from byte {} on", position));
  }

 private:
  enum class State : std::uint8_t {
    kStart,
    kTop,         // between entries
    kEntryStart,  // after an entry's name
    kMetadata,
    kEntry,  // between the keys of an entry
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kEnd,
  };

  bool refuse(std::string what) {
    error = std::move(what);
    return false;
  }

  State state_ = State::kStart;
  bool is_metadata_ = false;
  std::string field_;
  std::set<std::string> names_, fields_;
};

}  // namespace

RawHeader parse_header_json(std::string_view text, const std::string& origin) {
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text, &events)) {
    const RawTensor* last = events.header.tensors.empty() ? nullptr : &events.header.tensors.back();
    throw Failure(fmt::format("{} is damaged: its header has {}{}; fetch or write it again", origin,
                              printable(events.error),
                              last == nullptr ? "" : " (at " + printable(last->name) + ")"));
  }
  return std::move(events.header);
}

}  // namespace sluice
