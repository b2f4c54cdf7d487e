// EarlyStopping, ReduceLROnPlateau, LearningRateScheduler, and the small callbacks.
#include "lockstep/train/callbacks.h"

#include <cxxabi.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/monitor.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// Parses the saved state of a callback; an empty object if it cannot be read.
Json state_of(const std::string& text) {
  if (nests_too_deep(text)) return Json::object();
  const Json state = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return state.is_object() ? state : Json::object();
}

class EarlyStoppingCallback final : public Callback {
 public:
  explicit EarlyStoppingCallback(EarlyStoppingOptions options)
      : options_(std::move(options)),
        monitor_("early stopping", options_.monitor, options_.mode, options_.min_delta) {}

  void on_train_begin(Model&, const FitInfo& info) override {
    monitor_.expect_in(info);
    monitor_.set_best(std::nullopt);
    waited_ = 0;
    best_weights_.clear();
  }

  void on_epoch_end(Model& model, std::int64_t epoch, const Logs& logs) override {
    if (epoch < options_.start_from_epoch) return;
    const double value = monitor_.read(logs);
    if (options_.restore_best_weights && best_weights_.empty()) best_weights_ = model.weights();
    ++waited_;
    if (monitor_.improves(value)) {
      monitor_.keep(value);
      if (options_.restore_best_weights) best_weights_ = model.weights();
      // An epoch that does not beat the baseline may be the best so far, but patience still runs.
      if (!options_.baseline || monitor_.better(value, *options_.baseline)) waited_ = 0;
      return;
    }
    if (waited_ >= options_.patience && epoch > 0) model.stop_training();
  }

  void on_train_end(Model& model) override {
    if (!best_weights_.empty()) model.set_weights(best_weights_);
    best_weights_.clear();
  }

  bool needs_sync(const Model&, std::int64_t) override { return false; }
  std::string kind() const override { return "EarlyStopping"; }
  std::string save_state() const override {
    Json state = monitor_.save_state();
    state["waited"] = waited_;
    return state.dump();
  }
  std::vector<Tensor> save_tensors() const override { return best_weights_; }
  void restore_tensors(std::vector<Tensor> tensors) override {
    if (options_.restore_best_weights) best_weights_ = std::move(tensors);
  }
  void restore_state(const std::string& text) override {
    const Json state = state_of(text);
    if (monitor_.restore_state(state)) {
      waited_ = monitor_.count_of(state, "waited");
    } else {
      best_weights_.clear();
    }
  }

 private:
  EarlyStoppingOptions options_;
  Monitor monitor_;
  std::int64_t waited_ = 0;
  std::vector<Tensor> best_weights_;
};

class ReduceLROnPlateauCallback final : public Callback {
 public:
  explicit ReduceLROnPlateauCallback(ReduceLROnPlateauOptions options)
      : options_(std::move(options)),
        monitor_("reduce lr on plateau", options_.monitor, options_.mode, options_.min_delta) {
    require(options_.factor < 1.0 && options_.factor > 0.0,
            "[reduce lr on plateau] the factor must lie between 0 and 1, not {}", options_.factor);
  }

  void on_train_begin(Model& model, const FitInfo& info) override {
    monitor_.expect_in(info);
    model.set_learning_rate(model.learning_rate());  // fails now if a schedule sets the rate
    monitor_.set_best(std::nullopt);
    waited_ = 0;
    cooling_ = 0;
  }

  void on_epoch_end(Model& model, std::int64_t, const Logs& logs) override {
    const double value = monitor_.read(logs);
    if (cooling_ > 0) {
      --cooling_;
      waited_ = 0;
    }
    if (monitor_.improves(value)) {
      monitor_.keep(value);
      waited_ = 0;
    } else if (cooling_ == 0 && ++waited_ >= options_.patience) {
      const double rate = model.learning_rate();
      if (rate > options_.min_lr) {
        model.set_learning_rate(std::max(rate * options_.factor, options_.min_lr));
        cooling_ = options_.cooldown;
        waited_ = 0;
      }
    }
  }

  bool needs_sync(const Model&, std::int64_t) override { return false; }
  std::string kind() const override { return "ReduceLROnPlateau"; }
  std::string save_state() const override {
    Json state = monitor_.save_state();
    state["waited"] = waited_;
    state["cooling"] = cooling_;
    return state.dump();
  }
  void restore_state(const std::string& text) override {
    const Json state = state_of(text);
    if (!monitor_.restore_state(state)) return;
    waited_ = monitor_.count_of(state, "waited");
    cooling_ = monitor_.count_of(state, "cooling");
  }

 private:
  ReduceLROnPlateauOptions options_;
  Monitor monitor_;
  std::int64_t waited_ = 0;
  std::int64_t cooling_ = 0;
};

class LearningRateSchedulerCallback final : public Callback {
 public:
  explicit LearningRateSchedulerCallback(std::function<double(std::int64_t, double)> schedule)
      : schedule_(std::move(schedule)) {}
  void on_train_begin(Model&, const FitInfo&) override { set_for_ = -1; }
  // A run that resumes in mid-epoch already has the rate of that epoch.
  void on_epoch_begin(Model& model, std::int64_t epoch) override {
    if (epoch == set_for_) return;
    model.set_learning_rate(schedule_(epoch, model.learning_rate()));
    set_for_ = epoch;
  }

  bool needs_sync(const Model&, std::int64_t) override { return false; }
  std::string kind() const override { return "LearningRateScheduler"; }
  std::string save_state() const override { return Json{{"epoch", set_for_}}.dump(); }
  void restore_state(const std::string& text) override {
    const Json epoch = state_of(text).value("epoch", Json(-1));
    if (!epoch.is_number_integer()) {
      fail<DataError>(
          "[learning rate scheduler] the saved state is damaged: the epoch must be a whole number, "
          "not {}",
          epoch.dump());
    }
    set_for_ = epoch.get<std::int64_t>();
  }

 private:
  std::function<double(std::int64_t, double)> schedule_;
  std::int64_t set_for_ = -1;  // the last epoch whose rate was set
};

class CSVLoggerCallback final : public Callback {
 public:
  explicit CSVLoggerCallback(CSVLoggerOptions options) : options_(std::move(options)) {}

  void on_train_begin(Model& model, const FitInfo& info) override {
    writes_ = is_chief(model);
    if (!writes_) return;
    std::error_code ignored;
    const bool append = options_.append || info.recovered;
    const bool begun = append && std::filesystem::file_size(options_.path, ignored) > 0 && !ignored;
    file_ = std::ofstream(options_.path, append ? std::ios::app : std::ios::trunc);
    names_ = info.log_names;
    if (!begun) {
      file_ << "epoch";
      for (const std::string& name : names_) file_ << options_.separator << name;
      file_ << std::endl;
    }
    expect_written();
  }

  void on_epoch_end(Model&, std::int64_t epoch, const Logs& logs) override {
    if (!writes_) return;
    file_ << epoch;
    for (const std::string& name : names_) {
      file_ << options_.separator;
      if (const std::optional<double> value = logs.find(name)) file_ << fmt::format("{}", *value);
    }
    file_ << std::endl;
    expect_written();
  }

  void on_train_end(Model&) override {
    if (!writes_) return;
    file_.close();
    expect_written();
  }
  bool needs_sync(const Model&, std::int64_t) override { return false; }

  // A checkpoint stores the length of the file: a run that resumes from it truncates the file, so
  // that the rows of later epochs are not written twice.
  std::string save_state() const override { return std::to_string(bytes_); }
  void restore_state(const std::string& text) override {
    if (!writes_) return;
    std::uintmax_t before = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), before);
    if (error != std::errc() || end != text.data() + text.size() || before >= bytes_) return;
    std::error_code failed;
    std::filesystem::resize_file(options_.path, before, failed);
    if (failed) {
      fail<DataError>("[csv logger] {}: {}", options_.path.string(), failed.message());
    }
    bytes_ = before;
  }

 private:
  void expect_written() {
    file_.flush();
    std::error_code failed;
    bytes_ = std::filesystem::file_size(options_.path, failed);
    if (!file_ || failed) {
      fail<DataError>("[csv logger] {} cannot be written", options_.path.string());
    }
  }

  CSVLoggerOptions options_;
  bool writes_ = true;  // of several workers, the chief does
  std::ofstream file_;
  std::uintmax_t bytes_ = 0;  // size of the file
  std::vector<std::string> names_;
};

class TerminateOnNaNCallback final : public Callback {
 public:
  void on_batch_end(Model& model, std::int64_t, const BatchLogs& logs) override {
    if (!std::isfinite(logs.loss())) model.stop_training();
  }
};

class LambdaCallbackAdapter final : public Callback {
 public:
  explicit LambdaCallbackAdapter(LambdaCallbackOptions options) : call_(std::move(options)) {}
  void on_train_begin(Model& model, const FitInfo&) override {
    if (call_.on_train_begin) call_.on_train_begin(model);
  }
  void on_train_end(Model& model) override {
    if (call_.on_train_end) call_.on_train_end(model);
  }
  void on_epoch_begin(Model& model, std::int64_t epoch) override {
    if (call_.on_epoch_begin) call_.on_epoch_begin(model, epoch);
  }
  void on_epoch_end(Model& model, std::int64_t epoch, const Logs& logs) override {
    if (call_.on_epoch_end) call_.on_epoch_end(model, epoch, logs);
  }
  void on_epoch_trained(Model& model, std::int64_t epoch, const Logs& logs) override {
    if (call_.on_epoch_trained) call_.on_epoch_trained(model, epoch, logs);
  }
  void on_batch_end(Model& model, std::int64_t step, const BatchLogs& logs) override {
    if (call_.on_batch_end) call_.on_batch_end(model, step, logs);
  }
  void on_warning(Model& model, const std::string& message) override {
    if (call_.on_warning) call_.on_warning(model, message);
  }
  bool needs_sync(const Model&, std::int64_t) override {
    return call_.on_batch_end && call_.needs_sync;
  }

 private:
  LambdaCallbackOptions call_;
};

}  // namespace

std::string Callback::kind() const {
  const char* mangled = typeid(*this).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : mangled;
}

CallbackRef EarlyStopping(EarlyStoppingOptions options) {
  return std::make_shared<EarlyStoppingCallback>(std::move(options));
}

CallbackRef ReduceLROnPlateau(ReduceLROnPlateauOptions options) {
  return std::make_shared<ReduceLROnPlateauCallback>(std::move(options));
}

CallbackRef LearningRateScheduler(std::function<double(std::int64_t, double)> schedule) {
  require(static_cast<bool>(schedule), "[learning rate scheduler] there is no schedule");
  return std::make_shared<LearningRateSchedulerCallback>(std::move(schedule));
}

CallbackRef CSVLogger(CSVLoggerOptions options) {
  return std::make_shared<CSVLoggerCallback>(std::move(options));
}

CallbackRef TerminateOnNaN() {
  return std::make_shared<TerminateOnNaNCallback>();
}

CallbackRef LambdaCallback(LambdaCallbackOptions options) {
  return std::make_shared<LambdaCallbackAdapter>(std::move(options));
}

}  // namespace lockstep
