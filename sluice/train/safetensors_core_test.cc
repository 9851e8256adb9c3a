#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "sluice/train/safetensors.h"
#include "sluice/train/test_files.h"

namespace sluice {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// A file with this header and this many data bytes.
std::string file_with(const std::string& header, std::size_t num_data_bytes) {
  const auto size = static_cast<std::uint64_t>(header.size());
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + std::string(num_data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(bytes_of(file), "some.safetensors");
}

std::string refusal(const std::string& file) {
  return message_of<Failure>([&] { parse(file); });
}

NamedBytes floats(const std::string& name, std::vector<std::int64_t> shape,
                  const std::vector<float>& values) {
  const auto owner = std::make_shared<const std::vector<float>>(values);
  return {.name = name,
          .type = ElementType::kF32,
          .shape = std::move(shape),
          .bytes = std::as_bytes(std::span(*owner)),
          .owner = owner};
}

std::string written(const std::vector<NamedBytes>& tensors, const TestFolder& folder) {
  FileWriter writer(folder.path() / "written.safetensors");
  write_safetensors(writer, tensors, {{"made by", "a test"}});
  writer.close();
  return read_whole(folder.path() / "written.safetensors");
}

TEST(Safetensors, ReadsAHeaderWrittenByHand) {
  // As the format's description gives it: padding at the end, an empty and a rank-0 tensor,
  // metadata.
  const SafetensorsHeader header = parse(file_with(
      R"({"__metadata__": {"format": "pt"}, "b": {"dtype": "F32", "shape": [2, 2], )"
      R"("data_offsets": [0, 16]}, "a": {"shape": [], "dtype": "BF16", "data_offsets": [16, 18]}, )"
      R"("e": {"dtype": "I64", "shape": [0, 3], "data_offsets": [18, 18]}}   )",
      18));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0],
            (TensorEntry{.name = "b", .type = ElementType::kF32, .shape = {2, 2}, .end = 16}));
  EXPECT_EQ(header.tensors[1].name, "a");
  EXPECT_EQ(header.tensors[1].type, ElementType::kBF16);
  EXPECT_TRUE(header.tensors[1].shape.empty());
  EXPECT_EQ(header.tensors[2].end, 18);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TestFolder folder;
  const std::vector<std::uint8_t> raw{1, 2, 3};
  const std::string file = written({floats("z", {3}, {1.0F, 2.0F, 3.0F}),
                                    floats("a", {2, 1}, {4.0F, 5.0F}),
                                    {.name = "raw",
                                     .type = ElementType::kU8,
                                     .shape = {3},
                                     .bytes = std::as_bytes(std::span(raw))},
                                    floats("empty", {0, 7}, {})},
                                   folder);
  const SafetensorsFile reader(folder.path() / "written.safetensors");
  EXPECT_EQ(reader.header().data_offset % 8, 0);
  EXPECT_EQ(reader.header().metadata.at("made by"), "a test");
  EXPECT_EQ(reader.header().metadata.at("format"), "pt");
  // Wide elements first, then by name.
  std::string order;
  for (const TensorEntry& entry : reader.header().tensors) order += entry.name + " ";
  EXPECT_EQ(order, "a empty z raw ");
  const TensorEntry* z = reader.find("z");
  ASSERT_NE(z, nullptr);
  EXPECT_EQ(z->shape, std::vector<std::int64_t>{3});
  EXPECT_EQ(load_at<float>(reader.bytes(*z), 4), 2.0F);
  EXPECT_EQ(reader.bytes(*reader.find("raw"))[2], std::byte{3});
  EXPECT_EQ(reader.find("y"), nullptr);
}

TEST(Safetensors, RefusesEveryBrokenRuleByName) {
  const auto one = [](const char* entry) {
    return file_with(std::string(R"({"a": )") + entry + "}", 8);
  };
  EXPECT_NO_THROW(parse(one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})")));
  const std::pair<std::string, const char*> cases[] = {
      {"", "ends inside the header size"},
      {std::string("\xff\xff\xff\xff\0\0\0\0{}", 10), "at most 100000000"},
      {std::string("\x10\0\0\0\0\0\0\0{}", 10), "a header of 16 bytes in a file of 10"},
      {file_with(" {}", 0), "not a JSON object"},
      {file_with("[]", 0), "not a JSON object"},
      {file_with("{}\n", 0), "not a JSON object"},
      {file_with("{}}", 0), "no JSON"},
      {file_with("{\"a\": {}}", 0), "without dtype, shape and data_offsets"},
      {file_with("{\"a\": 3}", 0), "a number where none belongs"},
      {file_with("{\"a\": [3]}", 0), "a list where none belongs"},
      {file_with("{\"__metadata__\": {\"a\": 3}}", 0), "a number"},
      {file_with("{\"__metadata__\": {\"a\": {}}}", 0), "an object"},
      {file_with("{\"__metadata__\": {}, \"__metadata__\": {}}", 0), "twice"},
      {one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "x": 1})"), "unknown key x"},
      {one(R"({"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]})"), "twice"},
      {one(R"({"dtype": "F31", "shape": [2], "data_offsets": [0, 8]})"), "unknown dtype F31"},
      {one(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]})"), "its shape [3]"},
      {one(R"({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]})"), "negative"},
      {one(R"({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]})"), "fraction"},
      {one(R"({"dtype": "F32", "shape": [[2]], "data_offsets": [0, 8]})"), "a list"},
      {one(R"({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]})"), "bytes 8 to 0"},
      {one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]})"), "not two numbers"},
      {one(R"({"dtype": "F32", "shape": [2], "data_offsets": [0]})"), "not two numbers"},
      {one(R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]})"), "begins at byte 4"},
      {one(R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})"), "take 4 bytes"},
      {one(R"({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]})"), "take 16 bytes"},
      {one(R"({"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 8]})"),
       "its shape"},
      {one(R"({"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 8]})"),
       "beyond 63 bits"},
      {file_with(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, )"
                 R"("b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}})",
                 6),
       "begins at byte 2"},
      {file_with(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, )"
                 R"("a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})",
                 8),
       "the name a twice"},
      {file_with("{\"\xff\": {}}", 0), "no JSON"},
  };
  for (const auto& [file, part] : cases) EXPECT_CONTAINS(refusal(file), part);
}

TEST(Safetensors, ShowsControlCharactersOfNamesEscaped) {
  EXPECT_CONTAINS(
      refusal(file_with(R"({"a\nb": {"dtype": "X", "shape": [0], "data_offsets": [0, 0]}})", 0)),
      "a\\x0ab");
}

TEST(Safetensors, RefusesMissingFilesAndFolders) {
  const TestFolder folder;
  EXPECT_CONTAINS(message_of<Failure>([&] { SafetensorsFile(folder.path() / "none.safetensors"); }),
                  "No such");
  EXPECT_CONTAINS(message_of<Failure>([&] { const SafetensorsFile file(folder.path()); }),
                  "not a regular file");
}

TEST(Safetensors, SurvivesDamagedFiles) {
  const TestFolder folder;
  const std::string good = written(
      {floats("first", {3}, {1.0F, 2.0F, 3.0F}), floats("second", {1, 2}, {4.0F, 5.0F})}, folder);
  const std::string alphabet = "{}[]:,\"0123456789.-eE \\untf\xff";
  std::mt19937 random(7);
  int num_read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = good;
    for (std::size_t edits = random() % 4 + 1; edits > 0; --edits) {
      const std::size_t at = random() % file.size();
      switch (random() % 4) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = alphabet[random() % alphabet.size()];
          break;
        case 2:
          file.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          file.erase(at, random() % 5);
      }
      if (file.empty()) file = "x";
    }
    try {
      const SafetensorsHeader header = parse(file);
      ++num_read;
      // What was accepted lies inside the file.
      for (const TensorEntry& entry : header.tensors) {
        ASSERT_LE(header.data_offset + entry.end, static_cast<std::int64_t>(file.size()));
        ASSERT_LE(entry.begin, entry.end);
        ASSERT_GE(entry.begin, 0);
      }
    } catch (const Failure&) {
    }
  }
  EXPECT_GT(num_read, 100);  // changes of the data part and of names are no damage
}

}  // namespace
}  // namespace sluice
