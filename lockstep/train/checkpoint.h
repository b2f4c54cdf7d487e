// Checkpoints: one safetensors file each. Weights are stored under their variables' names, so that
// other programs can read them; the optimizer's variables under "optimizer/", metrics in mid-epoch
// under "metric/", the loss scale of mixed precision under "loss_scale/", and tensors of callbacks
// under "callback/<n>/", where n is the index in the list `callbacks`. The metadata says at which
// point of the run it was written:
//
//   format           "lockstep", format_version "2"
//   kind             "weights" or "checkpoint"
//   seed, step       of the model; training steps done
//   epoch_trained    "1" if all steps of the epoch are done and its validation comes next
//   epoch, epoch_step, epoch_samples, pass, batch_size, batches, callbacks      only if written
//                    inside fit: the position of the next step; `batch_size` and `batches` (per
//                    pass; left out if unknown) describe the data set; `callbacks` is a JSON list
//                    of saved states, each with its kind, state (text) and tensors (their number)
//
// The iterator's position is the tensor "input/position" (bytes). The elements that it holds, in
// shuffle buffers for example, are "input/values/<dtype>": one row of values per dtype.
//
// Version 1, which can still be read, had the position and elements as hexadecimal digits in the
// metadata, and no checksums. The page for users is docs/checkpoints.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/iterator.h"
#include "lockstep/graph/variable.h"
#include "lockstep/tensor/safetensors.h"

namespace lockstep {

inline constexpr std::string_view kOptimizerPrefix = "optimizer/";
inline constexpr std::string_view kMetricPrefix = "metric/";
inline constexpr std::string_view kLossScalePrefix = "loss_scale/";
// What rounding gradients has lost, of every rank: the ranks' values one after another.
inline constexpr std::string_view kErrorFeedbackPrefix = "error_feedback/";
inline constexpr std::string_view kCallbackPrefix = "callback/";
inline constexpr std::string_view kInputPrefix = "input/";

// The format version that is written.
inline constexpr const char* kCheckpointVersion = "2";

// The saved state of one callback.
struct CallbackState {
  std::string kind;
  std::string text;
  std::vector<Tensor> tensors;
};

// The position of a fit: what comes next.
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t epoch_step = 0;     // steps of this epoch already done
  std::int64_t epoch_samples = 0;  // samples of this epoch already done
  bool trained = false;            // all its steps are done; validation and its end come next
  std::uint64_t pass = 0;          // over the data
  std::int64_t batch_size = 0;     // of these steps; 0: unknown
  std::int64_t batches = 0;        // per pass; 0: unknown
  // Of the iterator; empty: the beginning of the pass.
  IteratorState position;
  // By worker, where each reads files of its own; then `position` is empty.
  std::vector<std::string> positions_of_workers;
  std::vector<CallbackState> callbacks;  // of those with state

  bool mid_epoch() const { return epoch_step > 0; }
};

using Metadata = std::map<std::string, std::string>;

void write_progress(const Progress& progress, TensorFile& contents);
// Nothing if the checkpoint was not written inside fit; DataError, naming the file, if the metadata
// cannot be read or a callback's tensor is missing.
std::optional<Progress> read_progress(const TensorFile& contents,
                                      const std::filesystem::path& file);
// An integer of the metadata, or nothing if the key is absent.
std::optional<std::int64_t> read_integer(const Metadata& metadata, const std::string& key,
                                         const std::filesystem::path& file);

// Variables and the names of their tensors in a file.
using NamedVariables = std::vector<std::pair<std::string, VariableRef>>;

// UsageError if two variables have the same name.
NamedVariables with_names(std::span<const VariableRef> variables, std::string_view prefix = "");

// UsageError, naming the tensor, if the file lacks one of the variables, has it in another dtype or
// shape, or has a tensor without a variable. Tensors of the optimizer and of metrics are checked
// only if one of the variables has that prefix; those of callbacks and of the input never. Those of
// the loss scale may be missing or superfluous: a run may resume in another precision.
void expect_fit(const TensorFile& contents, const NamedVariables& variables,
                const std::filesystem::path& file);

// The name of a tensor of the model or its optimizer with a value that is not finite; empty if
// there is none. The state of metrics and callbacks may have such values.
std::string first_not_finite(const TensorFile& contents);
// "run/checkpoint.nonfinite.safetensors" for "run/checkpoint.safetensors".
std::filesystem::path not_finite_name(const std::filesystem::path& file);

// DataError unless the file says that it is a Lockstep checkpoint of a known version.
void expect_checkpoint(const TensorFile& contents, const std::filesystem::path& file);

}  // namespace lockstep
