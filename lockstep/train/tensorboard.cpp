// TensorBoard: the logs of every epoch as scalars, under the same tags as in Keras; the noise
// scale; and where the time of the epoch went.
#include <algorithm>
#include <cmath>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/event_writer.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {
namespace {

class TensorBoardCallback final : public Callback {
 public:
  explicit TensorBoardCallback(TensorBoardOptions options) : options_(std::move(options)) {
    require(options_.update_steps >= 0, "[tensorboard] update_steps must not be negative: {}",
            options_.update_steps);
  }

  void on_train_begin(Model& model, const FitInfo&) override {
    writes_ = is_chief(model);
    if (!writes_) return;
    train_ = std::make_unique<EventWriter>(options_.log_dir / "train");
    seen_s_ = 0;
    seen_ = {};
  }

  void on_batch_end(Model& model, std::int64_t, const BatchLogs& logs) override {
    if (!due_ || !writes_) return;
    train_->scalar("batch_loss", logs.loss(), model.step());
    train_->flush();
  }

  bool needs_sync(const Model& model, std::int64_t) override {
    return due_ = options_.update_steps != 0 && model.step() % options_.update_steps == 0;
  }

  void on_epoch_end(Model& model, std::int64_t epoch, const Logs& logs) override {
    if (!writes_) return;
    write_time(model, epoch);
    if (const std::optional<NoiseScale> noise = model.noise_scale()) {
      write_finite("epoch_noise_scale", noise->value, epoch);
      write_finite("epoch_noise_scale_low", noise->low, epoch);
      write_finite("epoch_noise_scale_high", noise->high, epoch);
    }
    constexpr std::string_view kValidation = "val_";
    for (const auto& [name, value] : logs.items()) {
      if (!name.starts_with(kValidation)) {
        train_->scalar("epoch_" + name, value, epoch);
        continue;
      }
      if (validation_ == nullptr) {
        validation_ = std::make_unique<EventWriter>(options_.log_dir / "validation");
      }
      validation_->scalar("epoch_" + name.substr(kValidation.size()), value, epoch);
    }
    train_->flush();
    if (validation_ != nullptr) validation_->flush();
  }

  void on_train_end(Model&) override {
    for (std::unique_ptr<EventWriter>* writer : {&train_, &validation_}) {
      if (*writer != nullptr) (*writer)->close();
      *writer = nullptr;
    }
  }

 private:
  // The parts of the time since the epoch before, which add up to 1; how many times as fast as one
  // device that all makes, if computation is taken for what one device would do; and memory.
  void write_time(Model& model, std::int64_t epoch) {
    ModelImpl& impl = impl_of(model);
    const double all = impl.attributed_seconds ? impl.attributed_seconds() : 0;
    const Attribution attribution = model.attribution();
    const double since = std::max(all - seen_s_, 1e-9);
    Attribution part;
    part.add(attribution, all / since);
    part.add(seen_, -seen_s_ / since);
    for (const auto& [name, share] : parts_of(part)) {
      train_->scalar(std::string("epoch_time/") + name, share, epoch);
    }
    const Session& session = impl.session();
    train_->scalar("epoch_speed_up", part.compute * session.world().size(), epoch);
    train_->scalar("epoch_replicas", session.world().size(), epoch);
    train_->scalar("epoch_memory_bytes", static_cast<double>(session.resident_bytes()), epoch);
    seen_ = attribution;
    seen_s_ = all;
  }

  void write_finite(const char* tag, double value, std::int64_t epoch) {
    if (std::isfinite(value)) train_->scalar(tag, value, epoch);
  }

  TensorBoardOptions options_;
  bool due_ = false;    // after this step
  bool writes_ = true;  // of several workers, the chief does
  double seen_s_ = 0;   // how much of the time was written,
  Attribution seen_;    // and how it was divided by then
  std::unique_ptr<EventWriter> train_;
  std::unique_ptr<EventWriter> validation_;
};

}  // namespace

CallbackRef TensorBoard(TensorBoardOptions options) {
  return std::make_shared<TensorBoardCallback>(std::move(options));
}

}  // namespace lockstep
