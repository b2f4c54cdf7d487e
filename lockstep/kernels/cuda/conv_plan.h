// How a convolution is computed: by cuDNN, or by a kernel of our own for images of few channels.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/kernels/cuda/conv_border.h"
#include "lockstep/kernels/cuda/conv_few.h"
#include "lockstep/kernels/cuda/conv_fold.h"
#include "lockstep/kernels/cuda/conv_problem.h"
#include "lockstep/kernels/cuda/cudnn_plan.h"

namespace lockstep {

struct ConvSolution {
  // The tensors of the plan.
  static constexpr CudnnGraph::Id kImage = 1;
  static constexpr CudnnGraph::Id kFilter = 2;  // as (o, kh, kw, in)
  static constexpr CudnnGraph::Id kResult = 3;
  static constexpr CudnnGraph::Id kSums = 4;  // with statistics
  static constexpr CudnnGraph::Id kSquares = 5;

  std::shared_ptr<const CudnnPlan> plan = nullptr;
  std::optional<Border> border = {};  // that the plan's image has
  std::int64_t channels = 0;  // of the plan's image and filter, where it has more than the problem
  std::optional<Fold> fold = {};        // where the plan is of the folded problem
  std::optional<FewChannels> few = {};  // in place of a plan

  // Whether there is either; else the convolution is computed by its definition.
  bool exists() const { return plan != nullptr || few.has_value(); }
};

// The same for the same problem, however often it is asked for.
ConvSolution solve_conv(CudaContext& context, const ConvProblem& problem);

// Whether a convolution with statistics is faster than one without and a sweep over its result.
bool statistics_pay(CudaContext& context, const ConvProblem& problem);

}  // namespace lockstep
