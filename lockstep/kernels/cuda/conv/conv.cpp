// Convolutions and their gradients by cuDNN, on images (N, H, W, C) and filters stored as
// (O, kh, kw, C / groups), the layout of its fastest engines; the layout pass keeps filters in it.
// A row-major filter is transposed on its way in, its gradient on its way out. If the padding is
// uneven and cuDNN has no engine for it, the image is padded with zeros first. If the image has few
// channels, it gets additional channels of zeros, or is folded, or one of our own kernels computes
// the convolution. What cuDNN cannot compute at all, our own kernels compute by the definition.
#include <optional>

#include "lockstep/kernels/cuda/conv/conv_bias.h"
#include "lockstep/kernels/cuda/conv/conv_direct.h"
#include "lockstep/kernels/cuda/conv/conv_plan.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 16;  // bytes, of cuDNN's tensors

const Layout& outputs_first() {
  static const Layout layout{.order = {3, 0, 1, 2}, .blocks = {}};
  return layout;
}

const ValueInfo& image_of(const KernelCall& call, ConvWay way) {
  return way == ConvWay::GradInput ? call.output(0) : call.input(0);
}
const ValueInfo& filter_of(const KernelCall& call, ConvWay way) {
  return way == ConvWay::GradFilter ? call.output(0) : call.input(1);
}
const ValueInfo& result_of(const KernelCall& call, ConvWay way) {
  if (way == ConvWay::Forward) return call.output(0);
  return call.input(way == ConvWay::GradInput ? 0 : 1);
}

ConvProblem problem_of(const KernelCall& call, ConvWay way) {
  const Shape& x = image_of(call, way).type.shape;
  const ValueInfo& filter = filter_of(call, way);
  const Shape& f = filter.type.shape;
  const Shape& y = result_of(call, way).type.shape;
  const Ints& strides = call.attrs().ints("strides");
  const Ints& dilations = call.attrs().ints("dilations");
  const Ints& padding = call.attrs().ints("padding");
  ConvProblem p;
  p.way = way;
  p.dtype = image_of(call, way).type.dtype;
  p.filter_dtype = filter.type.dtype;
  p.n = x[0], p.h = x[1], p.w = x[2], p.c = x[3];
  p.kh = f[0], p.kw = f[1], p.in = f[2], p.o = f[3];
  p.oh = y[1], p.ow = y[2];
  p.groups = call.attrs().integer("groups");
  p.stride_h = strides[0], p.stride_w = strides[1];
  p.dilation_h = dilations[0], p.dilation_w = dilations[1];
  p.top = padding[0], p.bottom = padding[1], p.left = padding[2], p.right = padding[3];
  p.statistics = call.attrs().has("statistics");
  p.outputs_first = filter.layout == outputs_first();
  return p;
}

// Offsets of the regions of a kernel's workspace.
struct Workspace {
  std::size_t plan = 0;  // also for the kernel of our own that replaces a plan
  std::size_t border = 0;
  std::size_t filter = 0;
  std::size_t sums = 0;
  std::size_t bytes = 0;

  Workspace(const ConvProblem& p, const ConvSolution& solution, const ColumnSum& sum) {
    if (solution.few) plan = take(solution.few->workspace_bytes());
    if (solution.plan != nullptr) {
      plan = take(solution.plan->workspace_bytes());
      if (solution.border) border = take(solution.border->padded_bytes());
      const std::int64_t channels = std::max(solution.channels, p.in);
      if (solution.channels > 0) {
        border = take(static_cast<std::size_t>(p.n * p.h * p.w * channels) * size_of(p.dtype));
      }
      const auto weights = static_cast<std::size_t>(p.kh * p.kw * p.o * channels);
      if (solution.fold) border = take(solution.fold->image_bytes());
      filter = take(solution.fold ? solution.fold->filter_bytes(size_of(p.filter_dtype))
                                  : weights * size_of(p.filter_dtype));
    }
    sums = take(sum.workspace_bytes());
  }

 private:
  std::size_t take(std::size_t size) {
    const std::size_t begin = bytes;
    bytes += (size + 255) / 256 * 256;
    return begin;
  }
};

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

class ConvKernel final : public Kernel {
 public:
  ConvKernel(CudaContext& context, const ConvProblem& problem, const BiasActivation& epilogue,
             const ColumnSum& sum)
      : problem_(problem),
        epilogue_(epilogue),
        sum_(sum),
        solution_(solve_conv(context, problem)),
        places_(problem_, solution_, sum_) {
    if (solution_.exists() || problem.operations() == 0) return;
    context.remark(fmt::format(
        "a convolution runs on a slow fallback kernel, because cuDNN has none for it: {}",
        context.cudnn().last_refusal().value_or("it does not say why")));
  }

  void bind(const Binding& binding) override {
    const auto in = [&](std::size_t i) { return const_cast<std::byte*>(binding.inputs[i]); };
    const bool back = problem_.way == ConvWay::GradInput;
    image_ = back ? binding.outputs[0] : in(0);
    filter_ = problem_.way == ConvWay::GradFilter ? binding.outputs[0] : in(1);
    result_ = problem_.way == ConvWay::Forward ? binding.outputs[0] : in(back ? 0 : 1);
    if (epilogue_.biased) bias_ = in(2);
    if (sum_.columns > 0) bias_grad_ = binding.outputs[1];
    workspace_ = binding.workspace;
    // Values are aligned to 64 bytes, except for gradients of one all-reduce, which are packed.
    if (!is_aligned(image_) || !is_aligned(result_)) solution_ = {};
    ensure(!problem_.statistics || solution_.exists(),
           "a convolution with statistics lost its plan");
    if (problem_.statistics) {
      sums_ = binding.outputs[1];
      squares_ = binding.outputs[2];
    }
    if (solution_.plan == nullptr) return;
    const bool reshaped = solution_.channels > 0 || solution_.fold.has_value();
    staged_ = !problem_.outputs_first || !is_aligned(filter_) || reshaped;
    const bool changed = solution_.border || reshaped;
    CudnnPlan::Places places{{ConvSolution::kImage, changed ? bordered() : image_},
                             {ConvSolution::kFilter, staged_ ? staging() : filter_},
                             {ConvSolution::kResult, result_}};
    if (problem_.statistics) {
      places.emplace_back(ConvSolution::kSums, sums_);
      places.emplace_back(ConvSolution::kSquares, squares_);
    }
    bound_.emplace(solution_.plan->bind(places, workspace_ + places_.plan));
  }

  void run(Stream& stream) override {
    const cudaStream_t handle = cuda_stream(stream);
    if (solution_.few) {
      compute_few(handle);
    } else if (solution_.plan == nullptr) {
      compute_directly(handle);
    } else {
      bring_in(handle);
      const CudnnPlan& plan = *solution_.plan;
      plan.graph().cudnn().check(plan.run(*bound_, handle), "a convolution");
      bring_out(handle);
    }
    epilogue_.run(result_, bias_, handle);
    if (bias_grad_ != nullptr) {
      sum_.run(result_, bias_grad_, workspace_ + places_.sums, handle);
    }
  }

 private:
  std::byte* bordered() const { return workspace_ + places_.border; }
  std::byte* staging() const { return workspace_ + places_.filter; }

  void compute_directly(cudaStream_t stream) const {
    switch (problem_.way) {
      case ConvWay::Forward:
        return convolve_directly(problem_, image_, filter_, result_, stream);
      case ConvWay::GradInput:
        return convolve_directly(problem_, result_, filter_, image_, stream);
      case ConvWay::GradFilter:
        return convolve_directly(problem_, image_, result_, filter_, stream);
    }
  }

  void compute_few(cudaStream_t stream) const {
    std::byte* workspace = workspace_ + places_.plan;
    if (problem_.way == ConvWay::Forward) {
      solution_.few->forward(image_, filter_, result_, sums_, squares_, workspace, stream);
    } else {
      solution_.few->grad_filter(image_, result_, filter_, workspace, stream);
    }
  }

  void bring_in(cudaStream_t stream) const {
    if (solution_.border && problem_.way != ConvWay::GradInput) {
      solution_.border->add(image_, bordered(), stream);
    }
    if (solution_.channels > 0) {
      resize_rows(image_, bordered(), problem_.n * problem_.h * problem_.w, problem_.c,
                  solution_.channels, size_of(problem_.dtype), stream);
    }
    if (solution_.fold) solution_.fold->image(image_, bordered(), stream);
    if (!staged_ || problem_.way == ConvWay::GradFilter) return;
    if (solution_.fold) {
      solution_.fold->filter(filter_, staging(), stream);
    } else if (solution_.channels > 0) {
      resize_rows(filter_, staging(), filter_rows(), problem_.in, solution_.channels,
                  size_of(problem_.filter_dtype), stream);
    } else if (problem_.outputs_first) {
      copy_filter(filter_, staging(), stream);
    } else {
      transpose_matrix(filter_, staging(), taps(), problem_.o, size_of(problem_.filter_dtype),
                       stream);
    }
  }

  void bring_out(cudaStream_t stream) const {
    if (solution_.border && problem_.way == ConvWay::GradInput) {
      solution_.border->remove(bordered(), image_, stream);
    }
    if (!staged_ || problem_.way != ConvWay::GradFilter) return;
    if (solution_.fold) {
      solution_.fold->unfold(staging(), filter_, size_of(problem_.filter_dtype), stream);
    } else if (solution_.channels > 0) {
      resize_rows(staging(), filter_, filter_rows(), solution_.channels, problem_.in,
                  size_of(problem_.filter_dtype), stream);
    } else if (problem_.outputs_first) {
      copy_filter(staging(), filter_, stream);
    } else {
      transpose_matrix(staging(), filter_, problem_.o, taps(), size_of(problem_.filter_dtype),
                       stream);
    }
  }

  std::int64_t filter_rows() const { return problem_.o * problem_.kh * problem_.kw; }
  // Weights per output channel.
  std::int64_t taps() const { return problem_.kh * problem_.kw * problem_.in; }

  void copy_filter(const std::byte* from, std::byte* to, cudaStream_t stream) const {
    const auto count = static_cast<std::size_t>(problem_.filter_elements());
    check_cuda(cudaMemcpyAsync(to, from, count * size_of(problem_.filter_dtype),
                               cudaMemcpyDeviceToDevice, stream),
               "copying a filter");
  }

  ConvProblem problem_;
  BiasActivation epilogue_;
  ColumnSum sum_;
  ConvSolution solution_;
  Workspace places_;
  std::byte* image_ = nullptr;
  std::byte* filter_ = nullptr;
  std::byte* result_ = nullptr;
  std::byte* workspace_ = nullptr;
  const std::byte* bias_ = nullptr;
  std::byte* bias_grad_ = nullptr;
  std::byte* sums_ = nullptr;  // these two only with statistics
  std::byte* squares_ = nullptr;
  bool staged_ = false;  // whether the plan uses a copy of the filter, or of its gradient
  std::optional<CudnnDescriptor> bound_;
};

// Bias and activation after a convolution; nothing after a gradient.
BiasActivation epilogue_of(const KernelCall& call, ConvWay way) {
  BiasActivation epilogue;
  if (way != ConvWay::Forward) return epilogue;
  const Shape& y = call.out_shape(0);
  epilogue.dtype = call.output(0).type.dtype;
  epilogue.biased = call.in_count() > 2;
  if (epilogue.biased) epilogue.bias_dtype = call.in_dtype(2);
  epilogue.activation = cuda_activation(call.attrs().text_or_empty("activation"));
  epilogue.alpha =
      call.attrs().has("alpha") ? static_cast<float>(call.attrs().real("alpha")) : 0.0f;
  epilogue.rows = y[0] * y[1] * y[2];
  epilogue.columns = y[3];
  return epilogue;
}

// The gradient of the bias; zero columns if it is not an output.
ColumnSum sum_of(const KernelCall& call, ConvWay way) {
  if (way != ConvWay::GradFilter || call.node.outputs.size() < 2) return {};
  const Shape& dy = call.in_shape(1);
  return {.dtype = call.in_dtype(1),
          .result_dtype = call.output(1).type.dtype,
          .rows = dy[0] * dy[1] * dy[2],
          .columns = dy[3]};
}

bool is_own_or_f32(DType dtype, DType own) {
  return dtype == own || dtype == DType::F32;
}

template <ConvWay kWay>
bool supports(const KernelCall& call) {
  if (!has_cuda_floats(call)) return false;
  const ValueInfo& filter = filter_of(call, kWay);
  const DType own = image_of(call, kWay).type.dtype;
  const auto row_major = [&](ValueId id) {
    return &call.graph.info(id) == &filter || call.graph.info(id).layout.row_major();
  };
  if (!std::ranges::all_of(call.node.inputs, row_major) ||
      !std::ranges::all_of(call.node.outputs, row_major)) {
    return false;
  }
  if (!filter.layout.row_major() && filter.layout != outputs_first()) return false;
  const bool is_grad = kWay == ConvWay::GradFilter;
  return result_of(call, kWay).type.dtype == own &&
         (is_grad ? is_own_or_f32(filter.type.dtype, own) : filter.type.dtype == own) &&
         (kWay != ConvWay::Forward || call.in_count() < 3 || is_own_or_f32(call.in_dtype(2), own));
}

template <ConvWay kWay>
std::unique_ptr<Kernel> make(const KernelCall& call) {
  return std::make_unique<ConvKernel>(cuda_context(call), problem_of(call, kWay),
                                      epilogue_of(call, kWay), sum_of(call, kWay));
}

template <ConvWay kWay>
std::size_t workspace_bytes(const KernelCall& call) {
  const ConvProblem problem = problem_of(call, kWay);
  return Workspace(problem, solve_conv(cuda_context(call), problem), sum_of(call, kWay)).bytes;
}

template <ConvWay kWay>
NodeLayouts layouts(const KernelCall& call) {
  if (!has_cuda_floats(call)) return {};
  NodeLayouts wish{std::vector<Layout>(call.in_count()),
                   std::vector<Layout>(call.node.outputs.size())};
  (kWay == ConvWay::GradFilter ? wish.outputs[0] : wish.inputs[1]) = outputs_first();
  return wish;
}

template <ConvWay kWay>
KernelDef definition(std::string_view name) {
  return {.name = name,
          .supports = supports<kWay>,
          .make = make<kWay>,
          .workspace_bytes = workspace_bytes<kWay>,
          .layouts = layouts<kWay>};
}

}  // namespace

void add_cuda_conv(KernelLibrary& library) {
  KernelDef forward = definition<ConvWay::Forward>("cuda.conv2d");
  // With the bias or without one: a single pass over the result does both.
  forward.fuses_activation = [](const KernelCall&, std::string_view) { return true; };
  forward.offers = [](const KernelCall& call, std::string_view extra) {
    const bool plain = call.in_count() == 2 && !call.attrs().has("activation");
    return extra == "statistics" && plain &&
           statistics_pay(cuda_context(call), problem_of(call, ConvWay::Forward));
  };
  library.add(Op::Conv2D, std::move(forward));
  library.add(Op::Conv2DGradInput, definition<ConvWay::GradInput>("cuda.conv2d_grad_input"));
  library.add(Op::Conv2DGradFilter, definition<ConvWay::GradFilter>("cuda.conv2d_grad_filter"));
}

}  // namespace lockstep
