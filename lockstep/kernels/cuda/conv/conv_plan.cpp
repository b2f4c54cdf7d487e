// Most convolutions are one cuDNN graph. Uneven padding is made even first if that changes no
// result; otherwise cuDNN is asked for it as it is, and if it has no engine, the image gets a
// border instead. For images of few channels there are several ways, and the fastest is taken.
#include "lockstep/kernels/cuda/conv/conv_plan.h"

#include <array>
#include <cstdlib>
#include <limits>

#include "lockstep/kernels/cuda/libraries/measure.h"
#include "lockstep/kernels/cuda/libraries/plan_cache.h"
#include "lockstep/kernels/cuda/norm/channel_statistics.h"

namespace lockstep {
namespace {

constexpr double kSmall = 1e8;  // operations for which measuring plans is not worth its time

bool is_empty(const ConvProblem& p) {
  return p.image_elements() == 0 || p.filter_elements() == 0 || p.result_elements() == 0;
}

// The padding after an axis, set to that before it if the results stay the same: a strided window
// often leaves a few pixels unused at the end.
std::int64_t evened(std::int64_t extent, std::int64_t window, std::int64_t stride,
                    std::int64_t before, std::int64_t after, std::int64_t results) {
  const std::int64_t room = extent + 2 * before - window;
  return room >= 0 && room / stride + 1 == results ? before : after;
}

ConvProblem with_even_padding(ConvProblem p) {
  p.bottom = evened(p.h, (p.kh - 1) * p.dilation_h + 1, p.stride_h, p.top, p.bottom, p.oh);
  p.right = evened(p.w, (p.kw - 1) * p.dilation_w + 1, p.stride_w, p.left, p.right, p.ow);
  return p;
}

bool is_even(const ConvProblem& p) {
  return p.top == p.bottom && p.left == p.right;
}

// The border to add to the image so that the remaining padding is even.
Border border_of(const ConvProblem& p) {
  const std::int64_t rows = std::min(p.top, p.bottom);
  const std::int64_t columns = std::min(p.left, p.right);
  return {.n = p.n,
          .h = p.h,
          .w = p.w,
          .c = p.c,
          .top = p.top - rows,
          .bottom = p.bottom - rows,
          .left = p.left - columns,
          .right = p.right - columns,
          .element_bytes = size_of(p.dtype)};
}

ConvProblem with_border(ConvProblem p, const Border& border) {
  p.h = border.padded_h();
  p.w = border.padded_w();
  p.top = p.bottom = p.top - border.top;
  p.left = p.right = p.left - border.left;
  return p;
}

ConvProblem with_channels(ConvProblem p, std::int64_t channels) {
  p.c = p.in = channels;
  return p;
}

std::string name_of(const ConvProblem& p) {
  constexpr std::array kWays = {"forward", "grad_input", "grad_filter"};
  return fmt::format(
      "conv2d {} {} {} ({}, {}, {}, {}) ({}, {}, {}, {}) ({}, {}) strides {} {} dilations {} {} "
      "padding {} {} {} {}{}",
      kWays[static_cast<std::size_t>(p.way)], name_of(p.dtype), name_of(p.filter_dtype), p.n, p.h,
      p.w, p.c, p.kh, p.kw, p.in, p.o, p.oh, p.ow, p.stride_h, p.stride_w, p.dilation_h,
      p.dilation_w, p.top, p.bottom, p.left, p.right, p.statistics ? " statistics" : "");
}

void describe(const ConvProblem& p, CudnnGraph& graph) {
  graph.tensor(cudnn_image(p.dtype, p.n, p.h, p.w, p.c));
  graph.tensor(cudnn_filter(p.filter_dtype, p.o, p.kh, p.kw, p.in));
  graph.tensor(cudnn_image(p.dtype, p.n, p.oh, p.ow, p.o));
  const CudnnConvolution conv{.strides = {p.stride_h, p.stride_w},
                              .dilations = {p.dilation_h, p.dilation_w},
                              .before = {p.top, p.left},
                              .after = {p.bottom, p.right}};
  switch (p.way) {
    case ConvWay::Forward:
      graph.convolve(conv, ConvSolution::kImage, ConvSolution::kFilter, ConvSolution::kResult);
      if (!p.statistics) return;
      graph.tensor(cudnn_channels(DType::F32, p.o));
      graph.tensor(cudnn_channels(DType::F32, p.o));
      return graph.statistics(ConvSolution::kResult, ConvSolution::kSums, ConvSolution::kSquares);
    case ConvWay::GradInput:
      return graph.grad_input(conv, ConvSolution::kResult, ConvSolution::kFilter,
                              ConvSolution::kImage);
    case ConvWay::GradFilter:
      return graph.grad_filter(conv, ConvSolution::kImage, ConvSolution::kResult,
                               ConvSolution::kFilter);
  }
}

std::shared_ptr<const CudnnPlan> plan_for(CudaContext& context, const ConvProblem& p) {
  return cudnn_plan(
      context, name_of(p), [&](CudnnGraph& graph) { describe(p, graph); },
      {.exact = p.dtype == DType::F32 && !context.allow_tf32, .small = p.operations() < kSmall});
}

FewChannels few_channels(CudaContext& context, const ConvProblem& p) {
  context.device().make_current();
  int device = 0;
  int bytes = 0;
  check_cuda(cudaGetDevice(&device), "asking for the GPU");
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
             "asking for the memory of blocks");
  return FewChannels(p, context.multiprocessors(), bytes);
}

// Images of three channels leave most of a tensor core idle. With additional channels of zeros, or
// folded (conv_fold.h), cuDNN is often faster, although it computes and moves more; our own kernels
// (conv_small_channels.h) need neither.
std::vector<ConvSolution> ways_of_few_channels(CudaContext& context, const ConvProblem& p) {
  std::vector<ConvSolution> ways;
  for (const std::int64_t channels : {std::int64_t{4}, std::int64_t{8}}) {
    if (channels <= p.c || !p.outputs_first) continue;
    ways.push_back({.plan = plan_for(context, with_channels(p, channels)), .channels = channels});
  }
  if (Fold::fits(p)) {
    const Fold fold(p);
    ways.push_back({.plan = plan_for(context, fold.folded(p)), .fold = fold});
  }
  ways.push_back({.plan = plan_for(context, p)});
  if (FewChannels::fits(p)) {
    ways.push_back({.few = few_channels(context, p)});
  }
  std::erase_if(ways, [](const ConvSolution& way) { return !way.exists(); });
  return ways;
}

std::string name_of(const ConvSolution& way) {
  if (way.few) return "own";
  if (way.fold) return "folded";
  return way.channels > 0 ? fmt::format("{} channels", way.channels) : "plain";
}

bool has_few_channels(const ConvProblem& p) {
  return p.c < 8 && p.groups == 1 && p.dtype != DType::F32 && p.way != ConvWay::GradInput &&
         ((p.outputs_first && is_even(p)) || FewChannels::fits(p)) && p.operations() >= kSmall;
}

// The time of our own kernel in milliseconds; nothing if there is too little memory.
std::optional<float> measure_few(const ConvProblem& p, const FewChannels& few) {
  const auto bytes = [](std::int64_t elements, DType dtype) {
    return static_cast<std::size_t>(elements) * size_of(dtype);
  };
  const Scratch image(bytes(p.image_elements(), p.dtype));
  const Scratch filter(bytes(p.filter_elements(), p.filter_dtype));
  const Scratch result(bytes(p.result_elements(), p.dtype));
  const Scratch sums(bytes(2 * p.o, DType::F32));
  const Scratch workspace(few.workspace_bytes());
  for (const Scratch* memory : {&image, &filter, &result, &sums, &workspace}) {
    if (memory->data() == nullptr) return {};
  }
  Stopwatch watch;
  fill_random(image.data(), p.dtype, p.image_elements(), 1, watch.stream());
  fill_random(filter.data(), p.filter_dtype, p.filter_elements(), 2, watch.stream());
  fill_random(result.data(), p.dtype, p.result_elements(), 3, watch.stream());
  const auto run = [&](cudaStream_t stream, std::size_t) {
    if (p.way == ConvWay::Forward) {
      few.forward(image.data(), filter.data(), result.data(), sums.data(),
                  sums.data() + bytes(p.o, DType::F32), workspace.data(), stream);
    } else {
      few.grad_filter(image.data(), result.data(), filter.data(), workspace.data(), stream);
    }
    return true;
  };
  return watch.median(run, std::numeric_limits<float>::infinity());
}

// The time to bring the image into the form that the plan wants: more channels, or folded. Filters
// are small, so their conversion is not measured.
std::optional<float> measure_reshaping(const ConvProblem& p, const ConvSolution& way) {
  const std::int64_t pixels = p.n * p.h * p.w;
  const std::size_t reshaped =
      way.fold ? way.fold->image_bytes()
               : static_cast<std::size_t>(pixels * way.channels) * size_of(p.dtype);
  const Scratch from(static_cast<std::size_t>(p.image_elements()) * size_of(p.dtype));
  const Scratch to(reshaped);
  if (from.data() == nullptr || to.data() == nullptr) return {};
  Stopwatch watch;
  fill_random(from.data(), p.dtype, p.image_elements(), 1, watch.stream());
  const auto run = [&](cudaStream_t stream, std::size_t) {
    if (way.fold) {
      way.fold->image(from.data(), to.data(), stream);
    } else {
      resize_rows(from.data(), to.data(), pixels, p.c, way.channels, size_of(p.dtype), stream);
    }
    return true;
  };
  return watch.median(run, std::numeric_limits<float>::infinity());
}

// The time of a way in milliseconds, with its preparation; infinity if it does not run.
float measure_way(const ConvProblem& p, const ConvSolution& way) {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  if (way.few) return measure_few(p, *way.few).value_or(kNever);
  const float time = measure_plan(*way.plan).value_or(kNever);
  if (!way.fold && way.channels == 0) return time;
  return time + measure_reshaping(p, way).value_or(kNever);
}

// The cache key of a choice about a problem, for this GPU and this cuDNN.
std::string key_of(CudaContext& context, std::string_view choice, const ConvProblem& p) {
  const Gpu& gpu = context.gpu();
  return fmt::format("{} {}.{} cudnn {} {} {}", gpu.model, gpu.major, gpu.minor,
                     context.cudnn().version, choice, name_of(p));
}

// Measured once; the cache keeps the name of the fastest.
ConvSolution fastest_way(CudaContext& context, const ConvProblem& p) {
  const std::vector<ConvSolution> ways = ways_of_few_channels(context, p);
  if (ways.empty()) return {};
  const std::string key = key_of(context, "fastest way of", p);
  const auto named = [&](const std::string& name) {
    return std::ranges::find_if(ways,
                                [&](const ConvSolution& way) { return name_of(way) == name; });
  };
  if (const auto known = context.plans().find(key)) {
    if (const auto way = named(*known); way != ways.end()) return *way;
    context.plans().forget(key);
  }
  std::size_t best = 0;
  float best_time = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const float time = measure_way(p, ways[i]);
    if (time >= best_time) continue;
    best = i;
    best_time = time;
  }
  const auto kept = named(context.plans().keep(key, name_of(ways[best])));
  return kept != ways.end() ? *kept : ways[best];  // another process may have been first
}

}  // namespace

ConvSolution solve_conv(CudaContext& context, const ConvProblem& problem) {
  if (is_empty(problem)) return {};
  const ConvProblem p = with_even_padding(problem);
  if (has_few_channels(p) && context.measure) return fastest_way(context, p);
  if (auto plan = plan_for(context, p); plan != nullptr || is_even(p))
    return {.plan = std::move(plan)};
  const Border border = border_of(p);
  if (auto plan = plan_for(context, with_border(p, border)))
    return {.plan = std::move(plan), .border = border};
  return {};
}

bool statistics_pay(CudaContext& context, const ConvProblem& problem) {
  if (is_empty(problem) || problem.operations() < kSmall || !context.measure) return false;
  ConvProblem without = problem;
  // This is called before layouts are chosen; our own kernels accept either.
  if (FewChannels::fits(problem)) without.outputs_first = true;
  ConvProblem with = without;
  with.statistics = true;
  const ConvSolution both = solve_conv(context, with);
  const ConvSolution alone = solve_conv(context, without);
  if (!both.exists()) return false;
  if (!alone.exists()) return true;
  const std::string key = key_of(context, "statistics pay:", with);
  if (const auto known = context.plans().find(key)) return *known == "1";
  constexpr float kNever = std::numeric_limits<float>::infinity();
  const float separate_pass =
      measure_statistics(context, problem.dtype,
                         Shape{problem.n * problem.oh * problem.ow, problem.o})
          .value_or(kNever);
  const bool pays = measure_way(with, both) < measure_way(without, alone) + separate_pass;
  context.plans().keep(key, pays ? "1" : "0");
  return pays;
}

}  // namespace lockstep
