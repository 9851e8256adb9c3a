// The commands that train, in a build without torch: each says how to get them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "sluice/cli/commands.h"
#include "sluice/common/errors.h"

namespace sluice::cli {
namespace {

void add_missing(CLI::App& app, const std::string& name, const std::string& description) {
  CLI::App* command = app.add_subcommand(name, description + " (not in this build)");
  command->allow_extras();
  command->callback([name] {
    throw InvalidArgument(
        fmt::format("{} needs torch, and this sluice was built without it: configure with "
                    "-DSLUICE_WITH_TORCH=ON, or run `make build`",
                    name));
  });
}

}  // namespace

void add_train(CLI::App& app) { add_missing(app, "train", "Train a model through a pipeline."); }

void add_generate(CLI::App& app) {
  add_missing(app, "generate", "Continue a prompt with a trained model.");
}

void add_verify(CLI::App& app) {
  add_missing(app, "verify", "Prove that the pipeline computes what the unsplit model computes.");
}

}  // namespace sluice::cli
