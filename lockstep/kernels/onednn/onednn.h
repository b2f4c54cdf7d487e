// What the oneDNN kernels share: the engine, layouts as memory descriptors, and a kernel that runs
// one primitive.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "lockstep/kernels/kernel.h"
#include "lockstep/kernels/onednn/api.h"

namespace lockstep::onednn {

dnnl::engine& engine();

// The families; each adds its kernels to the library.
void add_matmul(KernelLibrary& library);
void add_thin_conv(KernelLibrary& library);  // before add_conv
void add_conv(KernelLibrary& library);
void add_pool(KernelLibrary& library);
void add_norm(KernelLibrary& library);
void add_norm_inference(KernelLibrary& library);
void add_layer_norm(KernelLibrary& library);
void add_softmax(KernelLibrary& library);
void add_elementwise(KernelLibrary& library);
void add_reorder(KernelLibrary& library);

// How the axes of a value map to oneDNN's: oneDNN's axis i is the value's axis axes[i].
using Axes = std::vector<int>;
inline const Axes kImageAxes = {0, 3, 1, 2};   // (N, H, W, C) seen as (N, C, H, W)
inline const Axes kFilterAxes = {3, 2, 0, 1};  // (kh, kw, I, O) seen as (O, I, kh, kw)

// The descriptor of an f32, u8 or i32 value in its layout; nothing if oneDNN cannot describe that.
std::optional<dnnl::memory::desc> to_desc(const ValueInfo& value, const Axes& axes);
// A descriptor whose layout oneDNN may choose.
dnnl::memory::desc any_desc(const ValueType& type, const Axes& axes);
// The layout that a descriptor describes; nothing if a Layout cannot express it.
std::optional<Layout> to_layout(const dnnl::memory::desc& desc, const Axes& axes);

// Runs one primitive. Arguments are identified by oneDNN's numbers and come from the node's
// binding.
class PrimitiveKernel final : public Kernel {
 public:
  struct Argument {
    int name;  // DNNL_ARG_…
    dnnl::memory::desc desc;
    bool output;  // whether `index` is that of an output or of an input of the node
    std::size_t index;
  };
  PrimitiveKernel(dnnl::primitive primitive, std::vector<Argument> arguments,
                  dnnl::memory::desc scratchpad);
  void bind(const Binding& binding) override;
  void run(Stream& stream) override;

 private:
  dnnl::primitive primitive_;
  std::vector<Argument> arguments_;
  dnnl::memory::desc scratchpad_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> list_;
  dnnl::stream stream_;
};

// Attributes with which a primitive takes its scratch memory from the plan.
dnnl::primitive_attr user_scratchpad();

// Whether thin_conv.cpp can compute a filter's gradient, provided that dy is in blocks.
bool is_thin_conv(const KernelCall& call);

// Whether all of a node's floating-point inputs and outputs are f32 and none is empty.
bool f32_and_not_empty(const KernelCall& call);

}  // namespace lockstep::onednn
