// The half of tokens.h that finds and splits the data.
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "sluice/common/errors.h"
#include "sluice/train/text_files.h"
#include "sluice/train/token_files.h"
#include "sluice/train/tokens.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// Files that a shell pattern stands for, sorted.
std::vector<fs::path> expand_pattern(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> paths;
  if (status == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  return paths;
}

/// The paths of `key` as they are, patterns expanded. Throws: InvalidArgument for one that is not
/// there.
std::vector<fs::path> find_paths(const char* key, const std::vector<std::string>& texts) {
  std::vector<fs::path> paths;
  for (const std::string& text : texts) {
    std::error_code error;
    if (fs::exists(text, error) || is_megatron_prefix(text)) {
      paths.emplace_back(text);
      continue;
    }
    std::vector<fs::path> expanded = expand_pattern(text);
    if (expanded.empty()) {
      throw InvalidArgument(fmt::format(
          "{}: there is no {} (from {}); name files, folders or patterns that match some", key,
          text, fs::current_path(error).string()));
    }
    paths.insert(paths.end(), std::make_move_iterator(expanded.begin()),
                 std::make_move_iterator(expanded.end()));
  }
  return paths;
}

/// Whether the paths hold tokens (true) or text (false). Throws: InvalidArgument for a mixture.
bool holds_tokens(const DataConfig& config, const char* key, const std::vector<fs::path>& paths) {
  if (config.format != "auto") return config.format != "text";
  const fs::path *text = nullptr, *tokens = nullptr;
  for (const fs::path& path : paths) {
    (!fs::is_directory(path) && names_token_file(path) ? tokens : text) = &path;
  }
  if (text != nullptr && tokens != nullptr) {
    throw InvalidArgument(
        fmt::format("{}: {} is text and {} holds tokens; a run reads one or the other (data.format "
                    "says which, should an extension mislead)",
                    key, text->string(), tokens->string()));
  }
  if (text != nullptr && config.tokenizer == "none") {
    throw InvalidArgument(fmt::format(
        "data.tokenizer = \"none\": {} is text; set data.tokenizer = \"bytes\"", text->string()));
  }
  return tokens != nullptr;
}

TokenFormat format_of(const DataConfig& config, const fs::path& path) {
  if (config.format == "nanogpt") return TokenFormat::kNanoGpt;
  if (config.format == "llm.c") return TokenFormat::kLlmC;
  if (config.format == "megatron") return TokenFormat::kMegatron;
  return detect_token_format(path);
}

std::vector<TokenSegment> open_token_files(const DataConfig& config, const char* key,
                                           const std::vector<fs::path>& paths) {
  std::vector<TokenSegment> segments;
  std::vector<fs::path> opened;
  for (const fs::path& path : paths) {
    if (fs::is_directory(path)) {
      throw InvalidArgument(
          fmt::format("{}: {} is a folder; name the token files in it, such as \"{}/*.bin\"", key,
                      path.string(), path.string()));
    }
    const TokenFormat format = format_of(config, path);
    // A pattern finds both halves of a Megatron pair: it is one data set.
    fs::path stem = path;
    if (format == TokenFormat::kMegatron) stem.replace_extension();
    if (std::find(opened.begin(), opened.end(), stem) != opened.end()) continue;
    opened.push_back(stem);
    auto more = open_token_file(path, format);
    std::move(more.begin(), more.end(), std::back_inserter(segments));
  }
  return segments;
}

struct Opened {
  TokenSource train, validation;
  std::int64_t num_files = 0;
  std::int64_t num_binary = 0;
};

/// A sequence takes one token more than its length: the last target.
bool is_sequence(const TokenSource& source, const DataConfig& config) {
  return source.num_tokens() > config.sequence_length;
}

/// Text: whole documents by hash. The validation part stays empty when that leaves either side less
/// than a sequence.
Opened open_text(const DataConfig& config, const std::vector<fs::path>& paths, double fraction,
                 std::int64_t vocab_size) {
  TextDocuments text = read_text_documents(paths, config);
  std::vector<TokenSegment> train, validation;
  for (const TextDocument& document : text.documents) {
    const bool held_back = is_validation_document(document.relative_path, fraction);
    auto& side = held_back ? validation : train;
    side.insert(side.end(), document.segments.begin(), document.segments.end());
  }
  Opened opened;
  opened.num_files = static_cast<std::int64_t>(text.documents.size());
  opened.num_binary = text.num_binary;
  opened.train = TokenSource(std::move(train), vocab_size);
  opened.validation = TokenSource(std::move(validation), vocab_size);
  if (is_sequence(opened.train, config) && is_sequence(opened.validation, config)) return opened;
  std::vector<TokenSegment> all;
  for (TextDocument& document : text.documents) {
    std::move(document.segments.begin(), document.segments.end(), std::back_inserter(all));
  }
  opened.train = TokenSource(std::move(all), vocab_size);
  opened.validation = TokenSource();
  return opened;
}

Opened open_paths(const DataConfig& config, const char* key, const std::vector<std::string>& texts,
                  double fraction, std::int64_t vocab_size) {
  const std::vector<fs::path> paths = find_paths(key, texts);
  Opened opened;
  if (holds_tokens(config, key, paths)) {
    opened.train = TokenSource(open_token_files(config, key, paths), vocab_size);
    opened.num_files = static_cast<std::int64_t>(paths.size());
  } else {
    opened = open_text(config, paths, fraction, vocab_size);
  }
  if (fraction > 0.0 && opened.validation.num_tokens() == 0) {
    const std::int64_t total = opened.train.num_tokens();
    const auto held_back = static_cast<std::int64_t>(static_cast<double>(total) * fraction);
    opened.validation = opened.train.part(total - held_back, held_back);
    opened.train = opened.train.part(0, total - held_back);
  }
  return opened;
}

void require_sequence(const TokenSource& source, const DataConfig& config, const char* key,
                      const char* advice) {
  if (is_sequence(source, config)) return;
  throw InvalidArgument(
      fmt::format("{}: {} tokens are too few for one sequence of data.sequence_length + 1 = {}; {}",
                  key, source.num_tokens(), config.sequence_length + 1, advice));
}

}  // namespace

TokenSplit open_tokens(const DataConfig& config, std::int64_t vocab_size) {
  const bool own_validation = !config.validation_paths.empty();
  const double fraction = own_validation ? 0.0 : config.validation_fraction;
  Opened train = open_paths(config, "data.paths", config.paths, fraction, vocab_size);
  require_sequence(train.train, config, "data.paths", "name more data or shorten the sequence");
  TokenSplit split{train.train, train.validation, {}};
  if (own_validation) {
    split.validation =
        open_paths(config, "data.validation_paths", config.validation_paths, 0.0, vocab_size).train;
    require_sequence(split.validation, config, "data.validation_paths",
                     "name more data or shorten the sequence");
  } else if (fraction > 0.0) {
    require_sequence(split.validation, config, "data.validation_fraction",
                     "raise it, or set it to 0 for no validation");
  }
  split.summary = fmt::format("{} files, {} tokens to train on, {} to validate", train.num_files,
                              split.train.num_tokens(), split.validation.num_tokens());
  if (train.num_binary > 0) {
    split.summary += fmt::format(", {} binary files left out", train.num_binary);
  }
  return split;
}

}  // namespace sluice
