// ModelCheckpoint: saves the model at the end of epochs, and behind every so many steps.
#include <fmt/args.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model.h"
#include "lockstep/train/monitor.h"

namespace lockstep {
namespace {

class ModelCheckpointCallback final : public Callback {
 public:
  explicit ModelCheckpointCallback(ModelCheckpointOptions options)
      : options_(std::move(options)),
        monitor_("model checkpoint", options_.monitor, options_.mode) {
    require(!options_.path.empty(), "[model checkpoint] there is no path to write to");
    require(options_.every_steps >= 0, "[model checkpoint] every_steps must not be negative: {}",
            options_.every_steps);
    require(options_.every_steps == 0 || !options_.save_best_only,
            "[model checkpoint] every_steps = {} would write over the best file, which "
            "save_best_only keeps: use two callbacks with a path each",
            options_.every_steps);
  }

  bool runs_last() const override { return true; }

  void on_train_begin(Model&, const FitInfo& info) override {
    if (options_.save_best_only) monitor_.expect_in(info);
  }

  void on_epoch_begin(Model&, std::int64_t epoch) override { epoch_ = epoch; }

  void on_batch_end(Model& model, std::int64_t, const BatchLogs& logs) override {
    if (due_) save(model, logs.running());
  }
  bool looks_at_model(const Model& model, std::int64_t) override {
    return due_ = options_.every_steps != 0 && model.step() % options_.every_steps == 0;
  }

  void on_epoch_end(Model& model, std::int64_t epoch, const Logs& logs) override {
    epoch_ = epoch;
    if (options_.save_best_only) {
      const double value = monitor_.read(logs);
      if (!monitor_.improves(value)) return;
      monitor_.keep(value);
    }
    save(model, logs);
  }

  std::string kind() const override {
    return options_.save_best_only ? "ModelCheckpoint with save_best_only" : "ModelCheckpoint";
  }
  std::string save_state() const override {
    return monitor_.best() ? nlohmann::json(*monitor_.best()).dump() : "";
  }
  void restore_state(const std::string& text) override {
    const auto best = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (best.is_number()) monitor_.set_best(best.get<double>());
  }

 private:
  std::filesystem::path path_for(const Model& model, const Logs& logs) const {
    fmt::dynamic_format_arg_store<fmt::format_context> arguments;
    arguments.push_back(fmt::arg("epoch", epoch_ + 1));
    arguments.push_back(fmt::arg("step", model.step()));
    for (const auto& [name, value] : logs.items()) {
      arguments.push_back(fmt::arg(name.c_str(), value));
    }
    try {
      return fmt::vformat(options_.path, arguments);
    } catch (const fmt::format_error& error) {
      std::string names = "epoch, step";
      for (const auto& [name, value] : logs.items()) names += ", " + name;
      fail<UsageError>("[model checkpoint] the path '{}' cannot be filled in ({}); it may name: {}",
                       options_.path, error.what(), names);
    }
  }

  void save(const Model& model, const Logs& logs) const {
    const std::filesystem::path file = path_for(model, logs);
    if (file.has_parent_path()) {
      std::error_code error;
      std::filesystem::create_directories(file.parent_path(), error);
      if (error) {
        fail<DataError>("[model checkpoint] the folder {} cannot be made: {}",
                        file.parent_path().string(), error.message());
      }
    }
    options_.save_weights_only ? model.save_weights(file) : model.save(file);
  }

  ModelCheckpointOptions options_;
  Monitor monitor_;
  std::int64_t epoch_ = 0;
  bool due_ = false;  // behind this step
};

}  // namespace

CallbackRef ModelCheckpoint(ModelCheckpointOptions options) {
  return std::make_shared<ModelCheckpointCallback>(std::move(options));
}

}  // namespace lockstep
