// Checkpoints: one safetensors file each. Weights stand under their variables' names, so that other
// programs read them; the optimizer's variables stand under "optimizer/", metrics in the middle of
// an epoch under "metric/", the loss scale of mixed precision under "loss_scale/", tensors that
// callbacks keep under "callback/<n>/", n being the place in the list `callbacks`. Where in the run
// it was written stands in the metadata:
//
//   format           "lockstep", format_version "2"
//   kind             "weights" or "checkpoint"
//   seed, step       of the model; training steps done
//   epoch_trained    "1" where the steps of the epoch are all done and its validation comes next
//   epoch, epoch_step, epoch_samples, pass, batch_size, batches, callbacks      only from inside
//                    fit: where the next step is; `batch_size` and `batches` (in a pass; left out
//                    where nobody knows) are the data set's; `callbacks` a JSON list of what the
//                    callbacks keep, each with its kind, state (text) and tensors (their number)
//
// The iterator's position is the tensor "input/position" (its bytes), the elements that it holds,
// of shuffle buffers, say, are "input/values/<dtype>": one row of values for each dtype.
//
// Version 1, which is still read, had the position in the metadata as hexadecimal digits, elements
// included, and no checksums. docs/checkpoints.md tells it all to users.
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
inline constexpr std::string_view kCallbackPrefix = "callback/";
inline constexpr std::string_view kInputPrefix = "input/";

// The format's version that is written.
inline constexpr const char* kCheckpointVersion = "2";

// What one callback keeps.
struct CallbackState {
  std::string kind;
  std::string text;
  std::vector<Tensor> tensors;
};

// Where a fit is: what comes next.
struct Progress {
  std::int64_t epoch = 0;
  std::int64_t epoch_step = 0;     // steps of this epoch that are done
  std::int64_t epoch_samples = 0;  // samples of this epoch that are done
  bool trained = false;            // its steps are all done; validation and its end come next
  std::uint64_t pass = 0;          // through the data
  std::int64_t batch_size = 0;     // that the steps are counted in; 0: not known
  std::int64_t batches = 0;        // in a pass; 0: not known
  // Of the iterator; empty: at the beginning of the pass.
  IteratorState position;
  std::vector<CallbackState> callbacks;  // of those that keep something

  bool mid_epoch() const { return epoch_step > 0; }
};

using Metadata = std::map<std::string, std::string>;

void write_progress(const Progress& progress, TensorFile& contents);
// Nothing where the checkpoint was not written from inside fit; DataError, naming the file, where
// the metadata cannot be read or a callback's tensor is missing.
std::optional<Progress> read_progress(const TensorFile& contents,
                                      const std::filesystem::path& file);
// A whole number of the metadata, or nothing where there is none.
std::optional<std::int64_t> read_integer(const Metadata& metadata, const std::string& key,
                                         const std::filesystem::path& file);

// Variables and the names of their tensors in a file.
using NamedVariables = std::vector<std::pair<std::string, VariableRef>>;

// UsageError where two variables have one name.
NamedVariables with_names(std::span<const VariableRef> variables, std::string_view prefix = "");

// UsageError, naming the tensor, where the file lacks one of the variables, has it in another dtype
// or shape, or has a tensor that none of them takes. Tensors of the
// optimizer and of metrics are only looked at where one of the variables has that prefix, those of
// callbacks and of the input never. Those of the loss scale may be missing or have no place: a run
// may go on in another precision.
void expect_fit(const TensorFile& contents, const NamedVariables& variables,
                const std::filesystem::path& file);

// The name of a tensor, of the model or its optimizer, with a value that is not a finite number;
// empty where there is none. The state of metrics and callbacks may have such values.
std::string first_not_finite(const TensorFile& contents);
// "run/checkpoint.nonfinite.safetensors" for "run/checkpoint.safetensors".
std::filesystem::path not_finite_name(const std::filesystem::path& file);

// DataError where the file does not say that it is a Lockstep checkpoint of a version known here.
void expect_checkpoint(const TensorFile& contents, const std::filesystem::path& file);

}  // namespace lockstep
