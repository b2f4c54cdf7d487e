// Convolutions and their gradients by oneDNN, which chooses the layouts: channels in blocks of the
// vector width, filters to match. For groups oneDNN splits the filter's output axis in two, which a
// Layout cannot express, so grouped filters stay row-major and are reordered inside the kernel.
#include "lockstep/graph/ops/conv.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/onednn/activation.h"
#include "lockstep/kernels/onednn/convolution.h"
#include "lockstep/kernels/onednn/onednn.h"
#include "lockstep/kernels/onednn/tiles.h"
#include "lockstep/kernels/pooled_conv.h"

namespace lockstep::onednn {
namespace {

using dnnl::memory;

// Activations that oneDNN fuses with the convolution. Its ReLU is not used, because it turns NaN
// into zero, and a model that has diverged would look healthy.
std::optional<dnnl::algorithm> post_op_for(std::string_view kind) {
  if (kind == "tanh") return dnnl::algorithm::eltwise_tanh;
  if (kind == "sigmoid") return dnnl::algorithm::eltwise_logistic;
  return {};
}

// The others take a separate pass after the convolution. It includes the padding of blocks, which
// must stay zero; only softplus does not keep it zero.
bool needs_activation_pass(std::string_view kind) {
  return !kind.empty() && kind != "linear" && !post_op_for(kind);
}
bool keeps_padding(std::string_view kind, std::int64_t channels) {
  constexpr std::int64_t kWidestBlock = 16;
  return kind != "softplus" || channels % kWidestBlock == 0;
}

class ActivatedKernel final : public Kernel {
 public:
  ActivatedKernel(std::unique_ptr<Kernel> inner, std::int64_t elements, const Attrs& attrs)
      : inner_(std::move(inner)),
        elements_(elements),
        loops_(activation_loops(attrs.text("activation"))),
        alpha_(attrs.has("alpha") ? static_cast<float>(attrs.real("alpha")) : 0.0f) {}
  void bind(const Binding& binding) override {
    inner_->bind(binding);
    result_ = binding.out<float>(0);
  }
  void run(Stream& stream) override {
    inner_->run(stream);
    apply_in_parallel(loops_, result_, result_, elements_, alpha_);
  }

 private:
  std::unique_ptr<Kernel> inner_;
  std::int64_t elements_;
  ActivationLoops loops_;
  float alpha_;
  float* result_ = nullptr;
};

Convolution forward_of(const KernelCall& call, Way way) {
  Convolution conv(call, way, call.input(0).type, call.input(1).type, call.output(0).type);
  conv.biased = call.in_count() > 2;
  const std::string kind = call.attrs().text_or_empty("activation");
  if (const std::optional<dnnl::algorithm> smooth = post_op_for(kind)) {
    append_eltwise(conv.attributes, *smooth);
  }
  return conv;
}

Convolution grad_input_of(const KernelCall& call, Way way) {
  return {call, way, call.output(0).type, call.input(1).type, call.input(0).type};
}

Convolution grad_filter_of(const KernelCall& call, Way way) {
  Convolution conv(call, way, call.input(0).type, call.output(0).type, call.input(1).type);
  conv.biased = call.node.outputs.size() > 1;
  return conv;
}

// The descriptor of a filter in the plan's layout; for several groups, "any": the kernel reorders
// it.
std::optional<memory::desc> filter_desc(const Convolution& conv, const ValueInfo& value) {
  return conv.grouped() ? conv.any_filter() : to_desc(value, kFilterAxes);
}

// The primitive for a node whose layouts are decided; empty if oneDNN has none for them. It is
// important to try "any" first: oneDNN may then choose strides for axes of extent one that its
// fastest kernels require.
template <class Make, class Matches>
auto describe_node(Make make, const memory::desc& any_first, const memory::desc& any_filter,
                   const memory::desc& any_last, Matches matches,
                   const std::optional<memory::desc>& first,
                   const std::optional<memory::desc>& filter,
                   const std::optional<memory::desc>& last) {
  auto free = make(any_first, any_filter, any_last);
  if (free && matches(free)) return free;
  if (!first || !filter || !last) return decltype(free){};
  return make(*first, *filter, *last);
}

// Whether Way::First supports these layouts. It supports all that oneDNN can describe, so no
// primitive needs to be created to find out.
bool describable(const Convolution& conv, const ValueInfo& image, const ValueInfo& filter,
                 const ValueInfo& result) {
  return conv.way == Way::First && to_desc(image, kImageAxes) && filter_desc(conv, filter) &&
         to_desc(result, kImageAxes);
}

bool has_layout(const memory::desc& desc, const ValueInfo& value, const Axes& axes) {
  const std::optional<Layout> layout = to_layout(desc, axes);
  return layout && *layout == value.layout;
}
bool filter_has_layout(const Convolution& conv, const memory::desc& desc, const ValueInfo& value) {
  return conv.grouped() || has_layout(desc, value, kFilterAxes);
}

auto forward_desc(const KernelCall& call, Way way) {
  const Convolution conv = forward_of(call, way);
  return describe_node(
      [&](const auto& x, const auto& w, const auto& y) { return conv.forward(x, w, y); },
      any_desc(conv.image, kImageAxes), conv.any_filter(), any_desc(conv.result, kImageAxes),
      [&](const auto& desc) {
        return has_layout(desc.src_desc(), call.input(0), kImageAxes) &&
               filter_has_layout(conv, desc.weights_desc(), call.input(1)) &&
               has_layout(desc.dst_desc(), call.output(0), kImageAxes);
      },
      to_desc(call.input(0), kImageAxes), filter_desc(conv, call.input(1)),
      to_desc(call.output(0), kImageAxes));
}

auto grad_input_desc(const KernelCall& call, Way way) {
  const Convolution conv = grad_input_of(call, way);
  return describe_node(
      [&](const auto& dx, const auto& w, const auto& dy) { return conv.grad_input(dx, w, dy); },
      any_desc(conv.image, kImageAxes), conv.any_filter(), any_desc(conv.result, kImageAxes),
      [&](const auto& desc) {
        return has_layout(desc.diff_src_desc(), call.output(0), kImageAxes) &&
               filter_has_layout(conv, desc.weights_desc(), call.input(1)) &&
               has_layout(desc.diff_dst_desc(), call.input(0), kImageAxes);
      },
      to_desc(call.output(0), kImageAxes), filter_desc(conv, call.input(1)),
      to_desc(call.input(0), kImageAxes));
}

auto grad_filter_desc(const KernelCall& call, Way way) {
  const Convolution conv = grad_filter_of(call, way);
  return describe_node(
      [&](const auto& x, const auto& dw, const auto& dy) { return conv.grad_filter(x, dw, dy); },
      any_desc(conv.image, kImageAxes), conv.any_filter(), any_desc(conv.result, kImageAxes),
      [&](const auto& desc) {
        return has_layout(desc.src_desc(), call.input(0), kImageAxes) &&
               filter_has_layout(conv, desc.diff_weights_desc(), call.output(0)) &&
               has_layout(desc.diff_dst_desc(), call.input(1), kImageAxes);
      },
      to_desc(call.input(0), kImageAxes), filter_desc(conv, call.output(0)),
      to_desc(call.input(1), kImageAxes));
}

dnnl::reorder::primitive_desc reorder_desc(const memory::desc& plain, const memory::desc& blocked,
                                           bool gradient) {
  const memory::desc& from = gradient ? blocked : plain;
  const memory::desc& to = gradient ? plain : blocked;
  return {engine(), from, engine(), to, user_scratchpad()};
}

// A convolution whose grouped filter is reordered before it, or the filter's gradient after it.
// Workspace: the filter in oneDNN's layout, then the reorder's scratchpad, then the convolution's.
class GroupedKernel final : public Kernel {
 public:
  GroupedKernel(dnnl::primitive primitive, std::vector<PrimitiveKernel::Argument> arguments,
                memory::desc plain, memory::desc blocked, bool gradient, memory::desc scratchpad)
      : plain_(std::move(plain)),
        blocked_(std::move(blocked)),
        gradient_(gradient),
        primitive_(std::move(primitive), std::move(arguments), std::move(scratchpad)),
        reorder_(reorder_desc(plain_, blocked_, gradient)),
        stream_(engine()) {}

  // In the primitive's binding, the filter is at the beginning of the workspace.
  void bind(const Binding& binding) override {
    Binding inner = binding;
    std::byte* scratch = binding.workspace + aligned(blocked_.get_size());
    inner.workspace = binding.workspace + own_bytes(plain_, blocked_, gradient_);
    const std::byte* plain = gradient_ ? binding.outputs[0] : binding.inputs[1];
    if (gradient_) {
      inner.outputs[0] = binding.workspace;
    } else {
      inner.inputs[1] = binding.workspace;
    }
    primitive_.bind(inner);
    memory theirs(blocked_, engine(), binding.workspace);
    memory ours(plain_, engine(), const_cast<std::byte*>(plain));
    memories_ = gradient_ ? std::vector{theirs, ours} : std::vector{ours, theirs};
    memories_.emplace_back(reorder_desc(plain_, blocked_, gradient_).scratchpad_desc(), engine(),
                           scratch);
    list_ = {{DNNL_ARG_FROM, memories_[0].get()},
             {DNNL_ARG_TO, memories_[1].get()},
             {DNNL_ARG_SCRATCHPAD, memories_[2].get()}};
  }

  void run(Stream& stream) override {
    if (gradient_) primitive_.run(stream);
    const dnnl_status_t status =
        dnnl_primitive_execute(reorder_.get(), stream_.get(), 3, list_.data());
    ensure(status == dnnl_success, "oneDNN failed to reorder a filter");
    if (!gradient_) primitive_.run(stream);
  }

  // What the kernel needs in addition to the primitive's scratchpad.
  static std::size_t own_bytes(const memory::desc& plain, const memory::desc& blocked,
                               bool gradient) {
    return aligned(blocked.get_size()) +
           aligned(reorder_desc(plain, blocked, gradient).scratchpad_desc().get_size());
  }
  static std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  memory::desc plain_, blocked_;
  bool gradient_;
  PrimitiveKernel primitive_;
  dnnl::reorder reorder_;
  std::vector<memory> memories_;
  std::vector<dnnl_exec_arg_t> list_;
  dnnl::stream stream_;
};

std::unique_ptr<Kernel> finish(const Convolution& conv, dnnl::primitive primitive,
                               std::vector<PrimitiveKernel::Argument> arguments,
                               const memory::desc& filter, bool gradient,
                               const memory::desc& scratchpad) {
  if (!conv.grouped()) {
    return std::make_unique<PrimitiveKernel>(std::move(primitive), std::move(arguments),
                                             scratchpad);
  }
  return std::make_unique<GroupedKernel>(std::move(primitive), std::move(arguments),
                                         conv.plain_filter(), filter, gradient, scratchpad);
}

std::size_t bytes_for(const Convolution& conv, const memory::desc& filter, bool gradient,
                      const memory::desc& scratchpad) {
  const std::size_t own =
      conv.grouped() ? GroupedKernel::own_bytes(conv.plain_filter(), filter, gradient) : 0;
  return own + scratchpad.get_size();
}

std::unique_ptr<Kernel> make_forward(const KernelCall& call, Way way) {
  const auto desc = forward_desc(call, way);
  std::vector<PrimitiveKernel::Argument> arguments = {
      {DNNL_ARG_SRC, desc.src_desc(), false, 0},
      {DNNL_ARG_WEIGHTS, desc.weights_desc(), false, 1},
      {DNNL_ARG_DST, desc.dst_desc(), true, 0}};
  if (call.in_count() > 2) arguments.push_back({DNNL_ARG_BIAS, desc.bias_desc(), false, 2});
  auto kernel = finish(forward_of(call, way), dnnl::convolution_forward(desc), std::move(arguments),
                       desc.weights_desc(), false, desc.scratchpad_desc());
  if (!needs_activation_pass(call.attrs().text_or_empty("activation"))) return kernel;
  const std::int64_t elements = call.output(0).layout.elements(call.out_shape(0));
  return std::make_unique<ActivatedKernel>(std::move(kernel), elements, call.attrs());
}

std::unique_ptr<Kernel> make_grad_input(const KernelCall& call, Way way) {
  const auto desc = grad_input_desc(call, way);
  return finish(grad_input_of(call, way), dnnl::convolution_backward_data(desc),
                {{DNNL_ARG_DIFF_SRC, desc.diff_src_desc(), true, 0},
                 {DNNL_ARG_WEIGHTS, desc.weights_desc(), false, 1},
                 {DNNL_ARG_DIFF_DST, desc.diff_dst_desc(), false, 0}},
                desc.weights_desc(), false, desc.scratchpad_desc());
}

std::unique_ptr<Kernel> make_grad_filter(const KernelCall& call, Way way) {
  const auto desc = grad_filter_desc(call, way);
  std::vector<PrimitiveKernel::Argument> arguments = {
      {DNNL_ARG_SRC, desc.src_desc(), false, 0},
      {DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc(), true, 0},
      {DNNL_ARG_DIFF_DST, desc.diff_dst_desc(), false, 1}};
  if (call.node.outputs.size() > 1) {
    arguments.push_back({DNNL_ARG_DIFF_BIAS, desc.diff_bias_desc(), true, 1});
  }
  return finish(grad_filter_of(call, way), dnnl::convolution_backward_weights(desc),
                std::move(arguments), desc.diff_weights_desc(), true, desc.scratchpad_desc());
}

std::size_t forward_workspace(const KernelCall& call, Way way) {
  const auto desc = forward_desc(call, way);
  return bytes_for(forward_of(call, way), desc.weights_desc(), false, desc.scratchpad_desc());
}
std::size_t grad_input_workspace(const KernelCall& call, Way way) {
  const auto desc = grad_input_desc(call, way);
  return bytes_for(grad_input_of(call, way), desc.weights_desc(), false, desc.scratchpad_desc());
}
std::size_t grad_filter_workspace(const KernelCall& call, Way way) {
  const auto desc = grad_filter_desc(call, way);
  return bytes_for(grad_filter_of(call, way), desc.diff_weights_desc(), true,
                   desc.scratchpad_desc());
}

bool has_forward(const KernelCall& call, Way way) {
  return describable(forward_of(call, way), call.input(0), call.input(1), call.output(0)) ||
         forward_desc(call, way);
}
bool has_grad_input(const KernelCall& call, Way way) {
  return describable(grad_input_of(call, way), call.output(0), call.input(1), call.input(0)) ||
         grad_input_desc(call, way);
}
bool has_grad_filter(const KernelCall& call, Way way) {
  return describable(grad_filter_of(call, way), call.input(0), call.output(0), call.input(1)) ||
         grad_filter_desc(call, way);
}

// The layouts that oneDNN chooses; row-major for any that a Layout cannot express.
Layout image_layout(const memory::desc& desc) {
  return to_layout(desc, kImageAxes).value_or(Layout{});
}
Layout filter_layout(const Convolution& conv, const memory::desc& desc) {
  return conv.grouped() ? Layout{} : to_layout(desc, kFilterAxes).value_or(Layout{});
}

bool fuses(const KernelCall& call, std::string_view activation) {
  return keeps_padding(activation, call.out_shape(0)[3]);
}

// Nodes that also pool have other kernels (pooled_conv.h).
bool is_plain(const KernelCall& call) {
  return f32_and_not_empty(call) && !is_pooled(call.attrs());
}

bool is_forward(const KernelCall& call) {
  return is_plain(call) && fuses(call, call.attrs().text_or_empty("activation"));
}

NodeLayouts forward_layouts(const KernelCall& call, Way way) {
  if (!is_forward(call)) return {};
  const Convolution conv = forward_of(call, way);
  const auto desc = conv.forward(any_desc(conv.image, kImageAxes), conv.any_filter(),
                                 any_desc(conv.result, kImageAxes));
  if (!desc) return {};
  NodeLayouts wish{{image_layout(desc.src_desc()), filter_layout(conv, desc.weights_desc())},
                   {image_layout(desc.dst_desc())}};
  if (conv.biased) wish.inputs.emplace_back();
  return wish;
}

NodeLayouts grad_input_layouts(const KernelCall& call, Way way) {
  if (!f32_and_not_empty(call)) return {};
  const Convolution conv = grad_input_of(call, way);
  const auto desc = conv.grad_input(any_desc(conv.image, kImageAxes), conv.any_filter(),
                                    any_desc(conv.result, kImageAxes));
  if (!desc) return {};
  return {{image_layout(desc.diff_dst_desc()), filter_layout(conv, desc.weights_desc())},
          {image_layout(desc.diff_src_desc())}};
}

NodeLayouts grad_filter_layouts(const KernelCall& call, Way way) {
  if (!is_plain(call)) return {};
  const Convolution conv = grad_filter_of(call, way);
  const auto desc = conv.grad_filter(any_desc(conv.image, kImageAxes), conv.any_filter(),
                                     any_desc(conv.result, kImageAxes));
  if (!desc) return {};
  NodeLayouts wish{{image_layout(desc.src_desc()), image_layout(desc.diff_dst_desc())},
                   {filter_layout(conv, desc.diff_weights_desc())}};
  if (conv.biased) wish.outputs.emplace_back();
  return wish;
}

// Whether a convolution's result, the last of these layouts, is in blocks of channels without
// padding, so that pooling can take it in oneDNN's preferred layout.
bool fills_blocks(const Shape& result, const std::vector<Layout>& layouts) {
  return !layouts.empty() && !layouts.back().row_major() &&
         tiles_of(result, layouts.back()).has_value();
}

template <Way kWay>
KernelDef forward_def(std::string_view name) {
  return {.name = name,
          .supports =
              [](const KernelCall& call) { return is_forward(call) && has_forward(call, kWay); },
          .make = [](const KernelCall& call) { return make_forward(call, kWay); },
          .workspace_bytes = [](const KernelCall& call) { return forward_workspace(call, kWay); },
          .layouts = [](const KernelCall& call) { return forward_layouts(call, kWay); },
          .fuses_activation = fuses,
          .offers =
              [](const KernelCall& call, std::string_view extra) {
                return extra == "pool" && fits_between(call.out_shape(0)) &&
                       fills_blocks(call.out_shape(0), forward_layouts(call, kWay).outputs);
              }};
}

template <Way kWay>
KernelDef grad_input_def(std::string_view name) {
  return {
      .name = name,
      .supports =
          [](const KernelCall& call) {
            return f32_and_not_empty(call) && has_grad_input(call, kWay);
          },
      .make = [](const KernelCall& call) { return make_grad_input(call, kWay); },
      .workspace_bytes = [](const KernelCall& call) { return grad_input_workspace(call, kWay); },
      .layouts = [](const KernelCall& call) { return grad_input_layouts(call, kWay); }};
}

template <Way kWay>
KernelDef grad_filter_def(std::string_view name) {
  return {
      .name = name,
      .supports =
          [](const KernelCall& call) { return is_plain(call) && has_grad_filter(call, kWay); },
      .make = [](const KernelCall& call) { return make_grad_filter(call, kWay); },
      .workspace_bytes = [](const KernelCall& call) { return grad_filter_workspace(call, kWay); },
      .layouts = [](const KernelCall& call) { return grad_filter_layouts(call, kWay); },
      // Only for images with one channel: oneDNN's kernels are slower on a few images at a time.
      .offers =
          [](const KernelCall& call, std::string_view extra) {
            return extra == "pool" && is_thin_conv(call) && fits_between(call.in_shape(1)) &&
                   fills_blocks(call.in_shape(1), grad_filter_layouts(call, kWay).inputs);
          }};
}

}  // namespace

void add_conv(KernelLibrary& library) {
  library.add(Op::Conv2D, forward_def<Way::First>("onednn.conv2d"));
  library.add(Op::Conv2D, forward_def<Way::Second>("onednn.conv2d.second"));
  library.add(Op::Conv2D, forward_def<Way::Third>("onednn.conv2d.third"));
  library.add(Op::Conv2D, forward_def<Way::Winograd>("onednn.conv2d.winograd"));
  const Op input = Op::Conv2DGradInput;
  library.add(input, grad_input_def<Way::First>("onednn.conv2d_grad_input"));
  library.add(input, grad_input_def<Way::Second>("onednn.conv2d_grad_input.second"));
  library.add(input, grad_input_def<Way::Third>("onednn.conv2d_grad_input.third"));
  library.add(input, grad_input_def<Way::Winograd>("onednn.conv2d_grad_input.winograd"));
  const Op filter = Op::Conv2DGradFilter;
  library.add(filter, grad_filter_def<Way::First>("onednn.conv2d_grad_filter"));
  library.add(filter, grad_filter_def<Way::Second>("onednn.conv2d_grad_filter.second"));
  library.add(filter, grad_filter_def<Way::Third>("onednn.conv2d_grad_filter.third"));
  library.add(filter, grad_filter_def<Way::Winograd>("onednn.conv2d_grad_filter.winograd"));
}

}  // namespace lockstep::onednn
