// safetensors_header.h - the JSON of a safetensors header, read event by event so that nothing is
// accepted silently (a document tree would drop the first of two equal keys). Internal to
// safetensors.cc.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// One entry as written; only its form has been checked.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offsets;  // exactly two
};

struct RawHeader {
  std::vector<RawTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Throws: Failure when `text` is not one JSON object of entries with exactly dtype, shape and
/// data_offsets (whole numbers from 0), and at most one __metadata__ of texts, all names different.
RawHeader parse_header_json(std::string_view text, const std::string& origin);

}  // namespace sluice
