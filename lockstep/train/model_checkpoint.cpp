// ModelCheckpoint: saves the model at the end of epochs, and at intervals of steps or time.
#include <fmt/args.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/monitor.h"

namespace lockstep {
namespace {

class ModelCheckpointCallback final : public Callback {
 public:
  explicit ModelCheckpointCallback(ModelCheckpointOptions options)
      : options_(std::move(options)),
        monitor_("model checkpoint", options_.monitor, options_.mode) {
    require(!options_.path.empty(), "[model checkpoint] the path is empty");
    require(options_.every_steps >= 0, "[model checkpoint] every_steps must not be negative: {}",
            options_.every_steps);
    require(options_.every.count() >= 0, "[model checkpoint] every must not be negative: {} s",
            std::chrono::duration<double>(options_.every).count());
    require(
        !within_epochs() || !options_.save_best_only,
        "[model checkpoint] save_best_only keeps the best epoch's file, but every_steps or every "
        "would overwrite it within an epoch: use two callbacks with different paths");
  }

  bool runs_last() const override { return true; }

  void on_train_begin(Model&, const FitInfo& info) override {
    if (options_.save_best_only) monitor_.expect_in(info);
    saved_at_ = Clock::now();
    validates_ = info.validates;
  }

  void on_epoch_begin(Model&, std::int64_t epoch) override { epoch_ = epoch; }

  void on_batch_end(Model& model, std::int64_t, const BatchLogs& logs) override {
    if (due_) save(model, logs.running());
  }
  bool needs_sync(const Model& model, std::int64_t) override {
    due_ = options_.every_steps != 0 && model.step() % options_.every_steps == 0;
    if (options_.every.count() > 0) due_ = due_ || Clock::now() - saved_at_ >= options_.every;
    return due_;
  }
  void agreed_sync(bool needed) override { due_ = needed; }

  // Saves before the validation, which may fail or be interrupted. If training was stopped in
  // mid-epoch, only this is the right time: by on_epoch_end, callbacks have counted the epoch, and
  // the resumed run would count it again.
  void on_epoch_trained(Model& model, std::int64_t epoch, const Logs& logs) override {
    epoch_ = epoch;
    if (waits_for_validation()) return;
    if (validates_ || impl_of(model).stopped_in_epoch) save(model, logs);
  }

  void on_epoch_end(Model& model, std::int64_t epoch, const Logs& logs) override {
    epoch_ = epoch;
    if (impl_of(model).stopped_in_epoch && !waits_for_validation()) return;
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
    return monitor_.best() ? monitor_.save_state().dump() : "";
  }
  void restore_state(const std::string& text) override {
    if (nests_too_deep(text)) return;
    const auto state = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (state.is_number()) monitor_.set_best(state.get<double>());  // from an earlier version
    if (state.is_object()) monitor_.restore_state(state);
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool within_epochs() const { return options_.every_steps > 0 || options_.every.count() > 0; }
  // Whether to save, or the file name, depends on the validation.
  bool waits_for_validation() const {
    if (options_.save_best_only) return true;
    const std::string_view path = options_.path;
    for (std::size_t i = path.find('{'); i < path.size(); i = path.find('{', i + 1)) {
      const std::string_view name = path.substr(i + 1);
      if (name.starts_with('{')) {  // a literal brace
        ++i;
        continue;
      }
      for (const char* late : {"val_", "seconds", "samples_per_s"}) {
        if (name.starts_with(late)) return true;
      }
    }
    return false;
  }

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
      fail<UsageError>(
          "[model checkpoint] the path '{}' cannot be formatted ({}); names it may use: {}",
          options_.path, error.what(), names);
    }
  }

  void save(const Model& model, const Logs& logs) {
    const std::filesystem::path file = path_for(model, logs);
    if (file.has_parent_path() && is_chief(model)) {
      std::error_code error;
      std::filesystem::create_directories(file.parent_path(), error);
      if (error) {
        fail<DataError>("[model checkpoint] the folder {} cannot be created: {}",
                        file.parent_path().string(), error.message());
      }
    }
    impl_of(model).save(file, {.weights_only = options_.save_weights_only, .keep_good = true});
    saved_at_ = Clock::now();
  }

  ModelCheckpointOptions options_;
  Monitor monitor_;
  std::int64_t epoch_ = 0;
  bool due_ = false;  // after this step
  Clock::time_point saved_at_;
  bool validates_ = false;
};

}  // namespace

CallbackRef ModelCheckpoint(ModelCheckpointOptions options) {
  return std::make_shared<ModelCheckpointCallback>(std::move(options));
}

}  // namespace lockstep
