// TensorBoard: the logs of every epoch as scalars, under the same tags as in Keras.
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
  }

  void on_batch_end(Model& model, std::int64_t, const BatchLogs& logs) override {
    if (!due_ || !writes_) return;
    train_->scalar("batch_loss", logs.loss(), model.step());
    train_->flush();
  }

  bool needs_sync(const Model& model, std::int64_t) override {
    return due_ = options_.update_steps != 0 && model.step() % options_.update_steps == 0;
  }

  void on_epoch_end(Model&, std::int64_t epoch, const Logs& logs) override {
    if (!writes_) return;
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
  TensorBoardOptions options_;
  bool due_ = false;    // after this step
  bool writes_ = true;  // of several workers, the chief does
  std::unique_ptr<EventWriter> train_;
  std::unique_ptr<EventWriter> validation_;
};

}  // namespace

CallbackRef TensorBoard(TensorBoardOptions options) {
  return std::make_shared<TensorBoardCallback>(std::move(options));
}

}  // namespace lockstep
