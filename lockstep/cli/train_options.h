// The flags of `lockstep train`, and what a resumed run does with each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/train/callbacks.h"

namespace lockstep::cli {

// The default if neither --epochs nor --steps is given.
inline constexpr std::int64_t kEpochs = 5;

struct TrainOptions {
  std::string model = "lenet";
  std::string data;  // empty: Fashion-MNIST, as Debian packages it
  Placement placement;
  MemoryFlags memory;
  std::string fit;  // "auto", or bytes: what makes the step fit is chosen; empty: nothing is
  BatchFlags batch;
  std::int64_t epochs = 0;  // 0: not given
  std::int64_t steps = 0;   // per epoch; 0: a whole pass over the data
  std::string optimizer;    // empty: depends on the model
  std::optional<double> learning_rate;
  std::string scaling = "none";
  int scaled_for = 0;  // the replica count that the rate is scaled for; 0: the actual one
  std::optional<double> warm_up_epochs;  // none: depends on the model
  std::string schedule;                  // empty: depends on the model
  std::optional<double> weight_decay;    // none: depends on the model
  std::string image_size;                // empty: the model's default
  std::string augment;                   // empty: depends on the data
  std::string monitor = "val_loss";      // for save_best and early_stopping
  bool save_best = false;
  std::int64_t early_stopping = 0;  // epochs without a better one; 0: never
  std::int64_t copy_every = 0;      // steps; 0: chosen
  std::string checkpoint_every;     // "500" steps, "10m"; empty: at the end of epochs
  std::int64_t keep = 0;            // of the checkpoints, the newest; 0: only the last
  std::string checkpoint_writers = "chief";
  std::uint64_t seed = 0;
  std::string on_nan = "stop";
  std::string noise_scale = "auto";
  // For this call only; not stored in the run's record.
  std::string run_dir;
  std::string resume;
  std::string json;
  std::string trace;
  std::string metrics;      // where to serve them: a port, or an address
  std::string tensorboard;  // a folder
};

// Adds the flags; `run` is called with their values if the command is named.
void add_train_flags(Command app,
                     const std::function<void(const TrainOptions&, const GivenFlags&)>& run);

// What a flag does when it is given together with --resume: MustAgree is an error if the run has
// another value, MayChange takes effect from here on.
enum class OnResume { MustAgree, MayChange };

// One value in a run's record.
struct Setting {
  std::string flag;  // "--warm-up-epochs"; in the record "warm_up_epochs"
  OnResume rule;
  std::function<Json(const TrainOptions&)> read;
  // Throws nlohmann's exception if the value has the wrong type.
  std::function<void(TrainOptions&, const Json&)> write;

  std::string key() const;
};
// All of them; a new flag is a new line here.
const std::vector<Setting>& train_settings();

Json settings_json(const TrainOptions& options);

// The options of a resumed run: those of its record, replaced by what was typed where that is
// allowed. Does not check whether --data holds the same samples. UsageError, with both values, if a
// flag contradicts the record; DataError, naming the folder `run`, if the record lacks a value.
TrainOptions resumed_options(const Json& recorded, const TrainOptions& typed,
                             const GivenFlags& given, const std::string& run);

// --checkpoint-every: "500" steps, "90s", "10m", "2h"; nothing where it is empty.
void set_checkpoint_interval(ModelCheckpointOptions& checkpoint, const std::string& text);
// --noise-scale: FitOptions::noise_scale_every.
std::optional<std::int64_t> noise_scale_every(const std::string& text);

}  // namespace lockstep::cli
