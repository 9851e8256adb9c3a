#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/cli/commands.h"
#include "sluice/cli/output.h"
#include "sluice/cli/table.h"
#include "sluice/common/errors.h"
#include "sluice/train/verify_run.h"

namespace sluice::cli {
namespace {

struct Arguments {
  std::string config_path;
  std::vector<std::string> overrides;
  std::string format = "text";
};

std::string show_json(const Verification& verification) {
  nlohmann::ordered_json json;
  json["loss_pipeline"] = verification.loss_pipeline;
  json["loss_reference"] = verification.loss_reference;
  json["max_relative_gradient_error"] = verification.max_relative_gradient_error;
  json["worst_parameter"] = verification.worst_parameter;
  json["bit_identical_to"] = verification.bit_identical;  // plain 1F1B, same slices
  json["bound"] = verification.bound;
  json["pass"] = verification.pass;
  return json.dump(2) + "\n";
}

std::string plain_ranks(const Verification& verification) {
  return verification.plain_ranks == 1 ? "one rank"
                                       : fmt::format("{} ranks", verification.plain_ranks);
}

std::string show_text(const Verification& verification) {
  std::vector<std::vector<std::string>> rows = {
      {"parameter", "largest gradient", "relative error"}};
  for (const GradientAgreement& one : verification.parameters) {
    rows.push_back(
        {one.name, fmt::format("{:.3e}", one.largest), fmt::format("{:.2e}", one.relative_error)});
  }
  return table(rows) + fmt::format(
                           "\nloss: pipeline {:.12f}, unsplit under autograd {:.12f}\n"
                           "largest relative gradient error {:.2e} ({}), allowed {:.0e}\n"
                           "1f1b on {} gives {} bits\n{}\n",
                           verification.loss_pipeline, verification.loss_reference,
                           verification.max_relative_gradient_error, verification.worst_parameter,
                           verification.bound, plain_ranks(verification),
                           verification.bit_identical ? "the same" : "DIFFERENT",
                           verification.pass ? "pass" : "FAIL");
}

void run(const Arguments& arguments) {
  const RunConfig config = load_config(arguments.config_path, arguments.overrides);
  const Verification verification = verify_run(config);
  print(arguments.format == "json" ? show_json(verification) : show_text(verification));
  if (!verification.pass) {
    throw Failure(fmt::format(
        "the pipeline disagrees with the unsplit model: relative gradient error {:.2e} in {} "
        "(allowed {:.0e}), bits {} those of 1f1b on {}",
        verification.max_relative_gradient_error, verification.worst_parameter, verification.bound,
        verification.bit_identical ? "equal to" : "different from", plain_ranks(verification)));
  }
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "verify", "Run one step through the pipeline and unsplit under autograd, and compare.");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("config", arguments->config_path, "settings of the run, in TOML")
      ->required()
      ->type_name("CONFIG.toml");
  command
      ->add_option("--set", arguments->overrides,
                   "override a setting, e.g. --set model.dtype=float64; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->type_size(1)
      ->allow_extra_args(false)
      ->group("Run");
  command->add_option("--format", arguments->format, "what to print: text or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group("Output");
  command->footer(
      "sluice verify configs/tiny_python.toml --set 'data.paths=[\"/usr/lib/python3\"]'");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace sluice::cli
