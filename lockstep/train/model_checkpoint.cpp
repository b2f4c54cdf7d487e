// ModelCheckpoint: saves the model at the end of epochs, and at intervals of steps or time.
#include <fmt/args.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/kept_files.h"
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
    require(options_.keep >= 0, "[model checkpoint] keep must not be negative: {}", options_.keep);
    require(!options_.keep_best || options_.keep > 0,
            "[model checkpoint] keep_best keeps a file besides the newest ones: say how many with "
            ".keep = n");
    require(
        !within_epochs() || !options_.save_best_only,
        "[model checkpoint] save_best_only keeps the best epoch's file, but every_steps or every "
        "would overwrite it within an epoch: use two callbacks with different paths");
  }

  bool runs_last() const override { return true; }

  void on_train_begin(Model&, const FitInfo& info) override {
    if (options_.save_best_only || options_.keep_best) monitor_.expect_in(info);
    saved_at_ = Clock::now();
    validates_ = info.validates;
  }

  void on_epoch_begin(Model&, std::int64_t epoch) override { epoch_ = epoch; }

  void on_batch_end(Model& model, std::int64_t, const BatchLogs& logs) override {
    if (due_) save(model, logs.running(), {});
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
    if (validates_ || impl_of(model).stopped_in_epoch) save(model, logs, {});
  }

  void on_epoch_end(Model& model, std::int64_t epoch, const Logs& logs) override {
    epoch_ = epoch;
    if (impl_of(model).stopped_in_epoch && !waits_for_validation()) return;
    if (options_.save_best_only) {
      const double value = monitor_.read(logs);
      if (!monitor_.improves(value)) return;
      monitor_.keep(value);
    }
    save(model, logs, options_.keep_best ? std::optional(monitor_.read(logs)) : std::nullopt);
  }

  std::string kind() const override {
    if (options_.save_best_only) return "ModelCheckpoint with save_best_only";
    return options_.keep > 0 ? "ModelCheckpoint with keep" : "ModelCheckpoint";
  }
  std::string save_state() const override {
    nlohmann::json state;
    if (monitor_.best()) state = monitor_.save_state();
    if (options_.keep > 0) state[kFiles] = kept_.save_state(folder());
    return state.is_null() ? "" : state.dump();
  }
  void restore_state(const std::string& text) override {
    if (nests_too_deep(text)) return;
    auto state = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (state.is_object() && state.contains(kFiles)) {
      kept_.restore_state(state[kFiles], folder());
      state.erase(kFiles);
      if (state.empty()) return;
    }
    if (state.is_number()) monitor_.set_best(state.get<double>());  // from an earlier version
    if (state.is_object()) monitor_.restore_state(state);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* kFiles = "files";

  // Paths in the saved state are relative to it, so that the folder can be moved.
  std::filesystem::path folder() const {
    return std::filesystem::path(options_.path).parent_path();
  }
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

  // `value`: of the monitor, where the best file is kept too.
  void save(const Model& model, const Logs& logs, std::optional<double> value) {
    ModelImpl& impl = impl_of(model);
    const std::filesystem::path file = path_for(model, logs);
    impl.session().world().on_chief([&] {
      if (file.has_parent_path()) make_folder(file.parent_path());
    });
    require(options_.latest.empty() ||
                std::filesystem::path(options_.latest).parent_path() == file.parent_path(),
            "[model checkpoint] {} and its other name {} must be in the same folder", file.string(),
            options_.latest);
    CheckpointPlace place{.file = file,
                          .latest = options_.latest,
                          .keep_good = true,
                          .committed_by_members = !options_.save_weights_only,
                          .on_stage = impl.on_write_stage};
    if (options_.keep > 0 && is_chief(model)) {
      place.on_committed =
          kept_.add(file, value, options_.keep,
                    [monitor = monitor_](double a, double b) { return monitor.better(a, b); });
    }
    impl.save(place, {.weights_only = options_.save_weights_only,
                      .asynchronous = options_.asynchronous,
                      .writers = options_.writers});
    saved_at_ = Clock::now();
  }

  static void make_folder(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      fail<DataError>("[model checkpoint] the folder {} cannot be created: {}", folder.string(),
                      error.message());
    }
  }

  ModelCheckpointOptions options_;
  Monitor monitor_;
  KeptFiles kept_;
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
