#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/common/errors.h"
#include "sluice/train/generate.h"

namespace sluice::cli {
namespace {

constexpr std::int64_t kByteVocabulary = 256;

struct Arguments {
  std::string folder;
  std::string prompt;
  std::vector<std::int64_t> prompt_tokens;
  GenerateOptions options;
};

void run(const Arguments& arguments) {
  Generator generator(arguments.folder);
  if (!arguments.prompt_tokens.empty()) {
    std::string line;
    generator.generate(arguments.prompt_tokens, arguments.options, [&](std::int64_t token) {
      line += fmt::format("{}{}", line.empty() ? "" : " ", token);
    });
    print(line + "\n");
    return;
  }
  if (generator.config().vocab_size != kByteVocabulary) {
    throw InvalidArgument(
        fmt::format("{} has a vocabulary of {} tokens, so text cannot be read as bytes: give "
                    "--prompt-tokens, the ids of your tokenizer",
                    generator.source().string(), generator.config().vocab_size));
  }
  std::vector<std::int64_t> prompt;
  for (const char c : arguments.prompt) prompt.push_back(static_cast<unsigned char>(c));
  if (prompt.empty()) prompt.push_back('\n');
  print(arguments.prompt);
  generator.generate(prompt, arguments.options,
                     [](std::int64_t token) { print(std::string(1, static_cast<char>(token))); });
  print("\n");
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt with a trained model.");
  const auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("folder", arguments->folder,
                   "a run folder, a checkpoint, or a Hugging Face model folder")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--prompt", arguments->prompt, "text to continue (byte models)")
      ->type_name("TEXT")
      ->group("Sampling");
  command
      ->add_option("--prompt-tokens", arguments->prompt_tokens,
                   "token ids to continue, separated by commas; prints ids")
      ->delimiter(',')
      ->type_name("ID,ID,...")
      ->group("Sampling");
  command->add_option("--tokens", arguments->options.num_tokens, "how many tokens to add")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->type_name("N")
      ->group("Sampling");
  command
      ->add_option("--temperature", arguments->options.temperature,
                   "0 takes the likeliest token, 1 draws as trained")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->type_name("T")
      ->group("Sampling");
  command->add_option("--top-k", arguments->options.top_k, "draw from the K likeliest; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber)
      ->type_name("K")
      ->group("Sampling");
  command->add_option("--seed", arguments->options.seed, "seed of the draws")
      ->capture_default_str()
      ->type_name("N")
      ->group("Sampling");
  command->footer("sluice generate runs/tiny_python --prompt 'def ' --tokens 100");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace sluice::cli
