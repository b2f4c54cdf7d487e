// The flags of `lockstep train`, and what a resumed run does with each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"

namespace lockstep::cli {

// Where neither --epochs nor --steps is given.
inline constexpr std::int64_t kEpochs = 5;

struct TrainOptions {
  std::string model = "lenet";
  std::string data;  // empty: Fashion-MNIST, as Debian packages it
  Placement placement;
  BatchFlags batch;
  std::int64_t epochs = 0;  // 0: not given
  std::int64_t steps = 0;   // of an epoch; 0: all that the data has
  std::string optimizer;    // empty: what suits the model
  std::optional<double> learning_rate;
  std::string scaling = "none";
  int scaled_for = 0;  // replicas that the rate is scaled for; 0: as many as there are
  std::optional<double> warm_up_epochs;  // none: what suits the model
  std::string schedule;                  // empty: what suits the model
  std::optional<double> weight_decay;    // none: what suits the model
  std::string image_size;                // empty: what the model is made for
  std::string augment;                   // empty: what suits the data
  std::string monitor = "val_loss";      // of the next two
  bool save_best = false;
  std::int64_t early_stopping = 0;  // epochs without a better one; 0: never
  std::string checkpoint_every;     // "500" steps, "10m"; empty: at the end of epochs
  std::uint64_t seed = 0;
  std::string on_nan = "stop";
  // Of this call alone; a run's record does not keep them.
  std::string run_dir;
  std::string resume;
  std::string json;
  std::string trace;
};

// Adds the flags; `run` is called with their values when the command was named.
void add_train_flags(Command app,
                     const std::function<void(const TrainOptions&, const GivenFlags&)>& run);

// What a flag that is given together with --resume does: it is refused where the run has another
// value, or it takes effect from here on.
enum class OnResume { MustAgree, MayChange };

// One value that a run's record keeps.
struct Setting {
  std::string flag;  // "--warm-up-epochs"; in the record "warm_up_epochs"
  OnResume rule;
  std::function<Json(const TrainOptions&)> read;
  // Throws nlohmann's exception where the value is of another type.
  std::function<void(TrainOptions&, const Json&)> write;

  std::string key() const;
};
// All of them; a new flag is a new line here.
const std::vector<Setting>& train_settings();

Json settings_json(const TrainOptions& options);

// The options of a run that goes on: those of its record, and what was typed where it may differ.
// `--data` is as typed or else as recorded: whether it holds the same samples is for others to say.
// UsageError, with both values, where something contradicts; DataError, naming the folder `run`,
// where the record lacks a value.
TrainOptions resumed_options(const Json& recorded, const TrainOptions& typed,
                             const GivenFlags& given, const std::string& run);

}  // namespace lockstep::cli
