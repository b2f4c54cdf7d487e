// How a convolution is computed: by cuDNN, or by one of our own kernels for images of few channels.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/kernels/cuda/conv/conv_border.h"
#include "lockstep/kernels/cuda/conv/conv_fold.h"
#include "lockstep/kernels/cuda/conv/conv_problem.h"
#include "lockstep/kernels/cuda/conv/conv_small_channels.h"
#include "lockstep/kernels/cuda/libraries/cudnn_plan.h"

namespace lockstep {

struct ConvSolution {
  // The tensors of the plan.
  static constexpr CudnnGraph::Id kImage = 1;
  static constexpr CudnnGraph::Id kFilter = 2;  // as (o, kh, kw, in)
  static constexpr CudnnGraph::Id kResult = 3;
  static constexpr CudnnGraph::Id kSums = 4;  // with statistics
  static constexpr CudnnGraph::Id kSquares = 5;

  std::shared_ptr<const CudnnPlan> plan = nullptr;
  std::optional<Border> border = {};  // of the plan's image
  std::int64_t channels = 0;      // of the plan's image and filter, if it has more than the problem
  std::optional<Fold> fold = {};  // set if the plan is for the folded problem
  std::optional<FewChannels> few = {};  // set instead of a plan

  // Whether there is a plan or a kernel of our own; if not, the definition is computed.
  bool exists() const { return plan != nullptr || few.has_value(); }
};

// Always returns the same solution for the same problem.
ConvSolution solve_conv(CudaContext& context, const ConvProblem& problem);

// Whether a convolution that computes statistics is faster than one without them followed by a
// separate pass over its result.
bool statistics_pay(CudaContext& context, const ConvProblem& problem);

}  // namespace lockstep
