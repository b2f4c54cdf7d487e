// Checkpoints: one safetensors file each. Weights stand under their variables' names, so that other
// programs read them; the optimizer's variables stand under "optimizer/", metrics in the middle of
// an epoch under "metric/", the loss scale of mixed precision under "loss_scale/", tensors that
// callbacks keep under "callback/<n>/", n being the place in the list `callbacks`. Where in the run
// it was written stands in the metadata:
//
//   format           "lockstep", format_version "1"
//   kind             "weights" or "checkpoint"
//   seed, step       of the model; training steps done
//   epoch, epoch_step, epoch_samples, pass, batch_size, batches, position, callbacks      only from
//                    inside fit: where the next step is; `batch_size` and `batches` (in a pass;
//                    left out where nobody knows) are the data set's; `position` is the iterator's,
//                    as hexadecimal digits; `callbacks` a JSON list of what the callbacks keep,
//                    each with its kind, state (text) and tensors (their number)
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

#include "lockstep/graph/variable.h"
#include "lockstep/tensor/safetensors.h"

namespace lockstep {

inline constexpr std::string_view kOptimizerPrefix = "optimizer/";
inline constexpr std::string_view kMetricPrefix = "metric/";
inline constexpr std::string_view kLossScalePrefix = "loss_scale/";
inline constexpr std::string_view kCallbackPrefix = "callback/";

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
  std::uint64_t pass = 0;          // through the data
  std::int64_t batch_size = 0;     // that the steps are counted in; 0: not known
  std::int64_t batches = 0;        // in a pass; 0: not known
  // Of the iterator; empty: at the beginning of the pass.
  std::string position;
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
// callbacks never. Those of the loss scale may be missing or have no place: a run may go on in
// another precision.
void expect_fit(const TensorFile& contents, const NamedVariables& variables,
                const std::filesystem::path& file);

// DataError where the file does not say that it is a Lockstep checkpoint of a version known here.
void expect_checkpoint(const TensorFile& contents, const std::filesystem::path& file);

}  // namespace lockstep
